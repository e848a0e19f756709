// The limit of a push: bytes over one TCP connection, without any protocol, into the memory where
// they belong.
//
//   raw_tcp receive ADDRESS place|stream BUFFER [SECONDS]   prints its port, takes one connection
//   raw_tcp send ADDRESS PORT SECONDS [place|stream BUFFER]
//
// At the end both print {"bytes": B, "seconds": S, "cpu": C}: what they received, how long that
// took, and their CPU seconds from the connection on. With the last words, both send and receive.
// `place`: the system copies to their place; `stream`: to a small buffer, from which streaming
// stores bring them to their place. BUFFER: bytes of the receive buffer, 0: as the system sizes it.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "common/base/owned_fd.h"
#include "tools/bench/cpu_seconds.h"

namespace starling {
namespace {

using Steady = std::chrono::steady_clock;

constexpr size_t kTensors = size_t{64} << 20;  // on each side, more than a cache holds
constexpr size_t kMessage = size_t{4} << 20;
constexpr size_t kPiece = size_t{256} << 10;
constexpr int kTimeoutSeconds = 30;  // of every wait for the other side

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "raw_tcp: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

double SecondsSince(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

struct FreeAligned {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, FreeAligned>;

// Touched, and aligned to cache lines.
Memory Allocate(size_t bytes) {
  auto* const memory = static_cast<char*>(std::aligned_alloc(64, bytes));
  if (memory == nullptr) Die("memory");
  std::memset(memory, 1, bytes);
  return Memory(memory);
}

// `to` is aligned to 16 bytes where the machine has streaming stores; `bytes` is a multiple.
void StreamTo(char* to, const char* from, size_t bytes) {
#ifdef __SSE2__
  for (size_t i = 0; i < bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

// `buffer`: set before the connection, as it settles the window's scale.
OwnedFd Socket(int buffer) {
  OwnedFd fd(socket(AF_INET, SOCK_STREAM, 0));
  if (!fd.open()) Die("socket");
  if (buffer > 0 && setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) != 0) {
    Die("SO_RCVBUF");
  }
  const timeval timeout = {kTimeoutSeconds, 0};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (setsockopt(fd.get(), SOL_SOCKET, option, &timeout, sizeof(timeout)) != 0) Die("timeout");
  }
  return fd;
}

// As most hosts have it, whatever this one's default; without it, that.
void SetCubic(int fd) {
  constexpr char kCubic[] = "cubic";
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCubic, sizeof(kCubic) - 1);
}

sockaddr_in Address(const char* address, int port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address, &in.sin_addr) != 1) Die(address);
  return in;
}

OwnedFd Accept(const char* address, int buffer) {
  const OwnedFd listener = Socket(buffer);
  SetCubic(listener.get());
  sockaddr_in in = Address(address, 0);
  socklen_t size = sizeof(in);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&in), size) != 0) Die("bind");
  if (listen(listener.get(), 1) != 0) Die("listen");
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&in), &size) != 0) Die("port");
  std::printf("%d\n", ntohs(in.sin_port));
  std::fflush(stdout);
  OwnedFd connection(accept(listener.get(), nullptr, nullptr));
  if (!connection.open()) Die("accept");
  return connection;
}

OwnedFd Connect(const char* address, int port, int buffer) {
  OwnedFd connection = Socket(buffer);
  SetCubic(connection.get());
  const sockaddr_in in = Address(address, port);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&in), sizeof(in)) != 0) {
    Die("connect");
  }
  return connection;
}

struct Received {
  uint64_t bytes = 0;
  double seconds = 0;
};

// Receives until the other side sends no more.
Received Receive(int connection, bool stream, char* tensors, char* piece) {
  Received received;
  size_t at = 0, filled = 0;  // in the tensors; in the piece
  Steady::time_point begin;
  while (true) {
    char* const to = stream ? piece + filled : tensors + at;
    const ssize_t got = recv(connection, to, stream ? kPiece - filled : kTensors - at, 0);
    if (got < 0) Die("recv");
    if (received.bytes == 0) begin = Steady::now();
    if (got == 0) break;
    received.bytes += static_cast<uint64_t>(got);
    if (!stream) {
      at += static_cast<size_t>(got);
    } else if (filled += static_cast<size_t>(got); filled == kPiece) {
      StreamTo(tensors + at, piece, kPiece);
      at += kPiece;
      filled = 0;
    }
    if (at == kTensors) at = 0;
  }
  received.seconds = SecondsSince(begin);
  return received;
}

void Send(int connection, double seconds, const char* tensors) {
  size_t at = 0;
  for (const auto begin = Steady::now(); SecondsSince(begin) < seconds;) {
    for (size_t left = kMessage; left > 0;) {
      const ssize_t sent = send(connection, tensors + at, left, MSG_NOSIGNAL);
      if (sent < 0) Die("send");
      left -= static_cast<size_t>(sent);
      at = (at + static_cast<size_t>(sent)) % kTensors;
    }
  }
  if (shutdown(connection, SHUT_WR) != 0) Die("shutdown");
}

struct Options {
  bool receives = false;
  bool sends = false;
  bool stream = false;
  int buffer = 0;
  double seconds = 0;  // of sending
};

// Memory is touched before the connection, so that its cost is nobody's.
int Run(const Options& options, const char* address, int port) {
  const Memory in = Allocate(options.receives ? kTensors : kPiece), piece = Allocate(kPiece);
  const Memory out = Allocate(options.sends ? kTensors : kPiece);
  const OwnedFd connection =
      port == 0 ? Accept(address, options.buffer) : Connect(address, port, options.buffer);
  const double before = CpuSeconds();
  std::thread sender;
  if (options.sends)
    sender = std::thread([&] { Send(connection.get(), options.seconds, out.get()); });
  Received received;
  if (options.receives) received = Receive(connection.get(), options.stream, in.get(), piece.get());
  if (sender.joinable()) sender.join();
  std::printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu\": %.6f}\n",
              static_cast<unsigned long long>(received.bytes), received.seconds,
              CpuSeconds() - before);
  return 0;
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  Options options;
  int port = 0;
  if (what == "receive" && (argc == 5 || argc == 6) && absl::SimpleAtoi(argv[4], &options.buffer) &&
      (argc == 5 || absl::SimpleAtod(argv[5], &options.seconds))) {
    options.receives = true;
    options.sends = argc == 6;
    options.stream = std::string(argv[3]) == "stream";
    return Run(options, argv[2], 0);
  }
  if (what == "send" && (argc == 5 || argc == 7) && absl::SimpleAtoi(argv[3], &port) && port > 0 &&
      absl::SimpleAtod(argv[4], &options.seconds) &&
      (argc == 5 || absl::SimpleAtoi(argv[6], &options.buffer))) {
    options.receives = argc == 7;
    options.sends = true;
    options.stream = argc == 7 && std::string(argv[5]) == "stream";
    return Run(options, argv[2], port);
  }
  std::fprintf(stderr,
               "usage: raw_tcp receive ADDRESS place|stream BUFFER [SECONDS]\n"
               "       raw_tcp send ADDRESS PORT SECONDS [place|stream BUFFER]\n");
  return 2;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main(argc, argv); }
