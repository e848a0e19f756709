// The limit of a push: bytes over one TCP connection, without any protocol, into the memory where
// they belong.
//
//   raw_tcp receive ADDRESS place|stream BUFFER [SECONDS]   prints its port, takes one connection
//                                                 until its end, prints {"bytes": B, "seconds": S}
//   raw_tcp send ADDRESS PORT SECONDS [place|stream]
//
// With the last word, both send and both receive, and both print what they received.
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

OwnedFd Socket() {
  OwnedFd fd(socket(AF_INET, SOCK_STREAM, 0));
  if (!fd.open()) Die("socket");
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
  const OwnedFd listener = Socket();
  if (buffer > 0 &&  // before the connection: it settles the window's scale
      setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) != 0) {
    Die("SO_RCVBUF");
  }
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

OwnedFd Connect(const char* address, int port) {
  OwnedFd connection = Socket();
  SetCubic(connection.get());
  const sockaddr_in in = Address(address, port);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&in), sizeof(in)) != 0) {
    Die("connect");
  }
  return connection;
}

// Receives until the other side sends no more, and prints how much.
void Receive(int connection, bool stream) {
  const Memory tensors = Allocate(kTensors), piece = Allocate(kPiece);
  uint64_t bytes = 0;
  size_t at = 0, filled = 0;  // in the tensors; in the piece
  Steady::time_point begin;
  while (true) {
    char* const to = stream ? piece.get() + filled : tensors.get() + at;
    const ssize_t got = recv(connection, to, stream ? kPiece - filled : kTensors - at, 0);
    if (got < 0) Die("recv");
    if (bytes == 0) begin = Steady::now();
    if (got == 0) break;
    bytes += static_cast<uint64_t>(got);
    if (!stream) {
      at += static_cast<size_t>(got);
    } else if (filled += static_cast<size_t>(got); filled == kPiece) {
      StreamTo(tensors.get() + at, piece.get(), kPiece);
      at += kPiece;
      filled = 0;
    }
    if (at == kTensors) at = 0;
  }
  std::printf("{\"bytes\": %llu, \"seconds\": %.6f}\n", static_cast<unsigned long long>(bytes),
              SecondsSince(begin));
}

void Send(int connection, double seconds) {
  const Memory tensors = Allocate(kTensors);
  size_t at = 0;
  for (const auto begin = Steady::now(); SecondsSince(begin) < seconds;) {
    for (size_t left = kMessage; left > 0;) {
      const ssize_t sent = send(connection, tensors.get() + at, left, MSG_NOSIGNAL);
      if (sent < 0) Die("send");
      left -= static_cast<size_t>(sent);
      at = (at + static_cast<size_t>(sent)) % kTensors;
    }
  }
  if (shutdown(connection, SHUT_WR) != 0) Die("shutdown");
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const bool both = argc == 6;
  int number = 0;
  double seconds = 0;
  if (what == "receive" && (argc == 5 || both) && absl::SimpleAtoi(argv[4], &number) &&
      (!both || absl::SimpleAtod(argv[5], &seconds))) {
    const OwnedFd connection = Accept(argv[2], number);
    std::thread sender;
    if (both) sender = std::thread(Send, connection.get(), seconds);
    Receive(connection.get(), std::string(argv[3]) == "stream");
    if (both) sender.join();
    return 0;
  }
  if (what == "send" && (argc == 5 || both) && absl::SimpleAtoi(argv[3], &number) &&
      absl::SimpleAtod(argv[4], &seconds)) {
    const OwnedFd connection = Connect(argv[2], number);
    std::thread receiver;
    if (both) receiver = std::thread(Receive, connection.get(), std::string(argv[5]) == "stream");
    Send(connection.get(), seconds);
    if (both) receiver.join();
    return 0;
  }
  std::fprintf(stderr,
               "usage: raw_tcp receive ADDRESS place|stream BUFFER [SECONDS]\n"
               "       raw_tcp send ADDRESS PORT SECONDS [place|stream]\n");
  return 2;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main(argc, argv); }
