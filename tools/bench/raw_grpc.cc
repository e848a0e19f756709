// The limit of a push through gRPC: messages of raw bytes over one stream, with nothing else in the
// processes: one thread and one completion queue on each side.
//
//   raw_grpc receive ADDRESS             prints its port, takes one stream until its end
//   raw_grpc send ADDRESS PORT SECONDS
//
// At the end both print {"bytes": B, "seconds": S, "cpu": C}, as raw_tcp does.
// The receiver leaves the bytes where gRPC put them. It answers each message with a small one, and
// the sender has kWindow messages under way.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/daemon/malloc.h"
#include "tools/bench/cpu_seconds.h"

namespace starling {
namespace {

using Steady = std::chrono::steady_clock;

constexpr size_t kMessage = size_t{2} << 20;
constexpr int kWindow = 4;
constexpr size_t kTensors = size_t{64} << 20;  // more than a cache holds
constexpr std::chrono::seconds kTimeout(30);   // of every wait for the other side
constexpr char kMethod[] = "/raw/Stream";

enum Tag : intptr_t { kCall = 1, kRead, kWritten, kFinished };
void* Of(Tag tag) { return reinterpret_cast<void*>(tag); }

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "raw_grpc: %s\n", what);
  std::exit(1);
}

double SecondsSince(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

Tag Next(grpc::CompletionQueue& queue, bool* ok) {
  void* tag = nullptr;
  const auto deadline = std::chrono::system_clock::now() + kTimeout;
  if (queue.AsyncNext(&tag, ok, deadline) != grpc::CompletionQueue::GOT_EVENT)
    Die("the other side did nothing for 30 s");
  return static_cast<Tag>(reinterpret_cast<intptr_t>(tag));
}

// And ends the process: nothing is left to be told to anybody.
[[noreturn]] void Finish(uint64_t bytes, double seconds, double cpu) {
  std::printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu\": %.6f}\n",
              static_cast<unsigned long long>(bytes), seconds, cpu);
  std::fflush(stdout);
  std::_Exit(0);
}

[[noreturn]] void Receive(const std::string& address) {
  grpc::ServerBuilder builder;
  grpc::AsyncGenericService service;
  int port = 0;
  builder.AddListeningPort(address + ":0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterAsyncGenericService(&service);
  const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) Die("cannot listen");
  std::printf("%d\n", port);
  std::fflush(stdout);
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter call(&context);
  service.RequestCall(&context, &call, queue.get(), queue.get(), Of(kCall));
  const grpc::Slice credit("c");
  const grpc::ByteBuffer answer(&credit, 1);
  grpc::ByteBuffer incoming;
  uint64_t bytes = 0;
  int owed = 0;  // answers
  bool writing = false;
  Steady::time_point begin;
  double cpu = 0;
  while (true) {
    bool ok = false;
    const Tag tag = Next(*queue, &ok);
    if (tag == kCall) {
      if (!ok) Die("no call");
      cpu = CpuSeconds();
      call.Read(&incoming, Of(kRead));
    } else if (tag == kRead && ok) {
      if (bytes == 0) begin = Steady::now();
      grpc::ByteBuffer message;
      message.Swap(&incoming);
      call.Read(&incoming, Of(kRead));
      bytes += message.Length();
      ++owed;
    } else if (tag == kRead) {
      break;
    } else {
      writing = false;
    }
    if (owed > 0 && !writing) {
      --owed;
      writing = true;
      call.Write(answer, Of(kWritten));
    }
  }
  Finish(bytes, SecondsSince(begin), CpuSeconds() - cpu);
}

[[noreturn]] void Send(const std::string& address, double seconds) {
  std::vector<uint8_t> tensors(kTensors, 1);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  const auto call = stub.PrepareCall(&context, kMethod, &queue);
  call->StartCall(Of(kCall));
  bool ok = false;
  if (Next(queue, &ok) != kCall || !ok) Die("no connection");
  grpc::ByteBuffer incoming;
  call->Read(&incoming, Of(kRead));
  const auto begin = Steady::now();
  const double cpu = CpuSeconds();
  size_t at = 0;
  int under_way = 0;
  bool writing = false;
  while (true) {
    const bool more = SecondsSince(begin) < seconds;
    if (more && !writing && under_way < kWindow) {
      const grpc::Slice slice(
          tensors.data() + at, kMessage, [](void*) {}, nullptr);
      call->Write(grpc::ByteBuffer(&slice, 1), Of(kWritten));
      at = (at + kMessage) % kTensors;
      writing = true;
      ++under_way;
    }
    if (!more && under_way == 0 && !writing) break;
    const Tag tag = Next(queue, &ok);
    if (!ok) Die("the stream ended");
    if (tag == kWritten) {
      writing = false;
    } else {
      --under_way;
      call->Read(&incoming, Of(kRead));
    }
  }
  call->WritesDone(Of(kFinished));
  while (Next(queue, &ok) != kFinished) continue;
  Finish(0, 0, CpuSeconds() - cpu);
}

int Main(int argc, char** argv) {
  TuneMalloc();
  const std::string what = argc > 1 ? argv[1] : "";
  double seconds = 0;
  if (what == "receive" && argc == 3) Receive(argv[2]);
  if (what == "send" && argc == 5 && absl::SimpleAtod(argv[4], &seconds)) {
    Send(absl::StrCat(argv[2], ":", argv[3]), seconds);
  }
  std::fprintf(stderr,
               "usage: raw_grpc receive ADDRESS\n"
               "       raw_grpc send ADDRESS PORT SECONDS\n");
  return 2;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main(argc, argv); }
