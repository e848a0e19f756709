// Conformance of the transport, over loopback.
#include "common/transport/transport.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/descriptors.h"
#include "common/transport/grpc_util.h"
#include "common/transport/testing/transport_fixture.h"
#include "common/version/version.h"

namespace starling {
namespace {

TEST_F(Transport, FramesArriveWholeAndInOrderBothWays) {
  Pair pair = Connect();
  const std::vector<uint32_t> sizes = {1, 2, 3, 1000, 16383, limits::kSliceElementsMax, 5};
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(pair.stream->Send(Bulk(i, sizes[i]), Floats(sizes[i], i), 0).ok());
    ASSERT_TRUE(pair.back->Send(Bulk(i, sizes[i]), Floats(sizes[i], 100 + i), 0).ok());
  }
  const auto there = pair.there->AwaitFrames(sizes.size());
  const auto here = pair.here->AwaitFrames(sizes.size());
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(there[i].header, Bulk(i, sizes[i]));
    EXPECT_EQ(here[i].header, Bulk(i, sizes[i]));
    ASSERT_EQ(there[i].floats.size(), sizes[i]);
    EXPECT_EQ(there[i].floats.front(), i);
    EXPECT_EQ(there[i].floats.back(), static_cast<float>(i + sizes[i] - 1));
    EXPECT_EQ(here[i].floats.back(), static_cast<float>(100 + i + sizes[i] - 1));
  }
  EXPECT_EQ(pair.back->peer().identity, (Identity{PeerRole::kWorker, "worker-0"}));
  EXPECT_EQ(pair.stream->peer().identity, (Identity{PeerRole::kShard, "ps-0"}));
}

TEST_F(Transport, AHeadComesBeforeTheBytes) {
  Pair pair = Connect();
  const float first[] = {7, 8};
  OutgoingPayload payload = Floats(3, 9);
  payload.head.assign(reinterpret_cast<const char*>(first), sizeof(first));
  ASSERT_TRUE(pair.stream->Send(Bulk(1, 5), payload, 0).ok());
  payload.bytes = {};
  ASSERT_TRUE(pair.stream->Send(Bulk(2, 2), payload, 0).ok());
  const auto frames = pair.there->AwaitFrames(2);
  EXPECT_EQ(frames[0].floats, (std::vector<float>{7, 8, 9, 10, 11}));
  EXPECT_EQ(frames[1].floats, (std::vector<float>{7, 8}));
  EXPECT_EQ(pair.stream->stats().sent_payload_bytes, 28u);
  EXPECT_EQ(pair.stream->Send(Bulk(3, 3), payload, 0).code(), absl::StatusCode::kInternal);
}

TEST_F(Transport, MuchMoreThanTheCreditFlows) {
  Pair pair = Connect();
  constexpr int kFrames = 100;  // 100 MiB against 8
  const OutgoingPayload payload = Floats(limits::kSliceElementsMax);
  for (int i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(pair.stream->Send(Bulk(i, limits::kSliceElementsMax), payload, 0).ok());
    ASSERT_TRUE(pair.back->Send(Bulk(i, limits::kSliceElementsMax), payload, 0).ok());
  }
  pair.there->AwaitFrames(kFrames);
  pair.here->AwaitFrames(kFrames);
}

TEST_F(Transport, SlowReaderBoundsWhatIsUnderWayAndControlStillPasses) {
  Pair pair = Connect();
  pair.there->Keep();
  constexpr size_t kFrames = 20;
  constexpr size_t kCredit = limits::kStreamInFlightBytesMax / limits::kTensorBytesMax;
  for (size_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(
        pair.stream->Send(Bulk(i, limits::kSliceElementsMax), Floats(limits::kSliceElementsMax), 0)
            .ok());
  }
  pair.there->AwaitFrames(kCredit);
  ASSERT_TRUE(pair.stream->Send(Control(99)).ok());
  const auto frames = pair.there->AwaitFrames(kCredit + 1);
  EXPECT_EQ(frames.back().header.request_id, 99u);
  EXPECT_EQ(pair.there->frames(), kCredit + 1);
  EXPECT_EQ(pair.stream->stats().queued_frames, kFrames - kCredit);
  EXPECT_LE(pair.stream->stats().sent_payload_bytes, limits::kStreamInFlightBytesMax);
  const double sending = pair.stream->stats().sending_seconds;
  EXPECT_GT(pair.stream->stats().sending_seconds, sending);  // still counts while payloads wait
  pair.there->LetGo();
  pair.there->AwaitFrames(kFrames + 1);
}

TEST_F(Transport, NothingToSendTakesNoTime) {
  Pair pair = Connect();
  EXPECT_EQ(pair.stream->stats().sending_seconds, 0);
  ASSERT_TRUE(pair.stream->Send(Control(1)).ok());
  pair.there->AwaitFrames(1);
  EXPECT_EQ(pair.stream->stats().sending_seconds, 0);
  ASSERT_TRUE(pair.stream->Send(Bulk(2, 16), Floats(16), 0).ok());
  pair.there->AwaitFrames(2);
  double seen = 0;  // stops growing once the write is over
  do {
    seen = pair.stream->stats().sending_seconds;
  } while (pair.stream->stats().sending_seconds != seen);
  EXPECT_GT(seen, 0);
}

// Frames that need no credit are bounded, too: beyond the limit they stay with the sender.
TEST_F(Transport, WhatIsNotHandledHoldsUpReading) {
  Pair pair = Connect();
  pair.there->Keep();
  constexpr size_t kMost = limits::kStreamFramesUnhandledMax;
  for (size_t i = 0; i < kMost + 100; ++i) ASSERT_TRUE(pair.stream->Send(Control(i)).ok());
  ASSERT_EQ(pair.there->AwaitFrames(kMost).size(), kMost);
  for (size_t i = 1; i <= 50; ++i) {
    pair.there->LetOneGo();
    ASSERT_EQ(pair.there->AwaitFrames(kMost + i).size(), kMost + i);
  }
  pair.there->LetGo();
  EXPECT_EQ(pair.there->AwaitFrames(kMost + 100).back().header.request_id, kMost + 99);
}

TEST_F(Transport, TextsThatAreNotHandledHoldUpReading) {
  Pair pair = Connect();
  pair.there->Keep();
  constexpr uint32_t kText = 1 << 20;
  FrameHeader header = Control(1);
  header.type = FrameType::kError;
  header.kind = PayloadKind::kText;
  header.payload_bytes = kText;
  constexpr size_t kMost = limits::kStreamUncreditedBytesMax / kText;
  for (size_t i = 0; i < 3 * kMost; ++i) {
    ASSERT_TRUE(pair.stream->Send(header, Floats(kText / 4), -1).ok());
  }
  for (size_t i = 0; i < kMost; ++i) {
    ASSERT_EQ(pair.there->AwaitFrames(kMost + i).size(), kMost + i);
    pair.there->LetOneGo();
  }
  pair.there->LetGo();
  pair.there->AwaitFrames(3 * kMost);
}

TEST_F(Transport, AStreamThatIsHeldUpCanBeEndedByBoth) {
  constexpr size_t kMost = limits::kStreamFramesUnhandledMax;
  for (const bool by_server : {true, false}) {
    Pair pair = Connect();
    pair.there->Keep();
    for (size_t i = 0; i < 2 * kMost; ++i) ASSERT_TRUE(pair.stream->Send(Control(i)).ok());
    pair.there->AwaitFrames(kMost);
    if (by_server) {
      pair.back->Close(absl::ResourceExhaustedError("too much"));
      EXPECT_EQ(pair.here->AwaitDown().code(), absl::StatusCode::kResourceExhausted);
    } else {
      pair.stream->Close(absl::CancelledError("bye"));
      pair.there->LetGo();  // reading resumes, and finds the end
      EXPECT_FALSE(pair.there->AwaitDown().ok());
    }
  }
}

// Reading resumes on one thread while the stream ends on another: the read starts before or after
// the call's end, and fails.
TEST_F(Transport, AStreamThatIsHeldUpEndsWhileItIsLetGo) {
  constexpr size_t kMost = limits::kStreamFramesUnhandledMax;
  for (int i = 0; i < 20; ++i) {
    Pair pair = Connect();
    pair.there->Keep();
    for (size_t n = 0; n < kMost + 10; ++n) ASSERT_TRUE(pair.stream->Send(Control(n)).ok());
    pair.there->AwaitFrames(kMost);
    std::thread end([&] { pair.back->Close(absl::ResourceExhaustedError("too much")); });
    pair.there->LetGo();
    end.join();
    EXPECT_FALSE(pair.here->AwaitDown().ok());
  }
}

TEST_F(Transport, UrgentOvertakesWhatWaits) {
  Pair pair = Connect();
  pair.there->Keep();
  constexpr size_t kCredit = limits::kStreamInFlightBytesMax / limits::kTensorBytesMax;
  const OutgoingPayload payload = Floats(limits::kSliceElementsMax);
  for (size_t i = 0; i < kCredit; ++i) {
    ASSERT_TRUE(pair.stream->Send(Bulk(1, limits::kSliceElementsMax), payload, 0).ok());
  }
  pair.there->AwaitFrames(kCredit);
  ASSERT_TRUE(pair.stream->Send(Bulk(4, limits::kSliceElementsMax), payload, 9).ok());
  ASSERT_TRUE(pair.stream->Send(Bulk(3, limits::kSliceElementsMax), payload, 5).ok());
  ASSERT_TRUE(pair.stream->Send(Bulk(2, limits::kSliceElementsMax), payload, 2).ok());
  pair.there->LetGo();
  const auto frames = pair.there->AwaitFrames(kCredit + 3);
  EXPECT_EQ(frames[kCredit].header.request_id, 2u);
  EXPECT_EQ(frames[kCredit + 1].header.request_id, 3u);
  EXPECT_EQ(frames[kCredit + 2].header.request_id, 4u);
}

TEST_F(Transport, PayloadIsReleasedOnceSentAndWhenTheStreamEnds) {
  Pair pair = Connect();
  OutgoingPayload sent = Floats(1000);
  const std::weak_ptr<const void> watch_sent = sent.keep;
  ASSERT_TRUE(pair.stream->Send(Bulk(1, 1000), std::move(sent), 0).ok());
  pair.there->AwaitFrames(1);
  const absl::Time deadline = absl::Now() + kLong;
  while (!watch_sent.expired() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(watch_sent.expired());

  pair.there->Keep();
  std::vector<std::weak_ptr<const void>> watch;
  for (int i = 0; i < 20; ++i) {
    OutgoingPayload queued = Floats(limits::kSliceElementsMax);
    watch.push_back(queued.keep);
    ASSERT_TRUE(pair.stream->Send(Bulk(i, limits::kSliceElementsMax), std::move(queued), 0).ok());
  }
  pair.stream->Close(absl::CancelledError("enough"));
  EXPECT_FALSE(pair.there->AwaitDown().ok());
  client_.reset();
  for (const auto& payload : watch) EXPECT_TRUE(payload.expired());
  EXPECT_EQ(pair.stream->Send(Control(1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(Transport, ServerStopEndsStreamsSoon) {
  Pair pair = Connect();
  const absl::Time begin = absl::Now();
  server_->Shutdown(absl::Seconds(2));
  EXPECT_EQ(pair.here->AwaitDown().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

TEST_F(Transport, ServerTellsThePeerWhy) {
  Pair pair = Connect();
  pair.back->Close(absl::FailedPreconditionError("a newer stream took over"));
  const absl::Status status = pair.here->AwaitDown();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "a newer stream took over");
}

TEST_F(Transport, ServerTellsThePeerWhyAlsoBehindAFrameThatIsBeingWritten) {
  const OutgoingPayload payload = Floats(limits::kSliceElementsMax);
  for (int round = 0; round < 10; ++round) {
    Pair pair = Connect();
    ASSERT_TRUE(pair.back->Send(Bulk(1, limits::kSliceElementsMax), payload, 0).ok());
    ASSERT_TRUE(pair.back->Send(Bulk(2, limits::kSliceElementsMax), payload, 0).ok());
    pair.back->Close(absl::FailedPreconditionError("a newer stream took over"));
    const absl::Status status = pair.here->AwaitDown();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  }
}

TEST_F(Transport, ClientCloseIsSeenByTheServerAndNotByItself) {
  Pair pair = Connect();
  pair.stream->Close(absl::CancelledError("bye"));
  EXPECT_FALSE(pair.there->AwaitDown().ok());
  client_.reset();
  EXPECT_EQ(pair.here.use_count(), 1);  // released without OnDown
}

TEST_F(Transport, RefusalIsNotRetried) {
  const auto banned = MakeStreamClient({PeerRole::kWorker, "banned"});
  auto handler = std::make_shared<Recorder>();
  const auto stream =
      banned->Connect({.address = server_->address(), .whom = "shard ps-0"}, handler);
  const absl::Status status = handler->AwaitDown();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(status.message().find("go away"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("shard ps-0"), absl::string_view::npos) << status;
}

TEST_F(Transport, NobodyThereNamesWhomWhereHowLongAndLastError) {
  const std::string address = server_->address();
  server_->Shutdown(absl::ZeroDuration());
  server_.reset();
  auto handler = std::make_shared<Recorder>();
  const absl::Time begin = absl::Now();
  const auto stream = client_->Connect(
      {.address = address, .whom = "shard ps-7", .deadline = absl::Milliseconds(700)}, handler);
  const absl::Status status = handler->AwaitDown();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(600));
  for (const std::string& part : {std::string("shard ps-7"), address, std::string("after 7"),
                                  std::string("last error: UNAVAILABLE")}) {
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << part << ": " << status;
  }
}

// Accepts connections but never answers.
TEST_F(Transport, SilentPeerRunsIntoTheDeadline) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 4), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  auto handler = std::make_shared<Recorder>();
  const auto stream =
      client_->Connect({.address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port)),
                        .whom = "shard ps-0",
                        .deadline = absl::Milliseconds(300)},
                       handler);
  EXPECT_EQ(handler->AwaitDown().code(), absl::StatusCode::kDeadlineExceeded);
  close(fd);
}

TEST_F(Transport, ConnectsOnceThePeerComesUp) {
  const std::string address = server_->address();
  server_->Shutdown(absl::ZeroDuration());
  server_.reset();
  auto handler = std::make_shared<Recorder>();
  const auto stream =
      client_->Connect({.address = address, .whom = "shard ps-0", .deadline = kLong}, handler);
  ASSERT_TRUE(stream->Send(Control(5)).ok());  // waits for the stream
  absl::SleepFor(absl::Milliseconds(250));     // some attempts fail
  auto there = std::make_shared<Recorder>();
  RpcServer::Options options;
  options.listen = address;
  options.self = {PeerRole::kShard, "ps-0"};
  options.accept = [&](auto, const auto&) { return there; };
  auto server = StartRpcServer(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(handler->AwaitUp());
  EXPECT_EQ(there->AwaitFrames(1)[0].header.request_id, 5u);
}

// A server stops while callers come and talk: no operation starts on a queue that is shut down.
TEST_F(Transport, StopsWhileCallersComeAndTalk) {
  for (int round = 0; round < 40; ++round) {
    std::atomic<int> accepted = 0;
    RpcServer::Options options;
    options.listen = "127.0.0.1:0";
    options.self = {PeerRole::kShard, "ps-1"};
    options.accept = [&](auto, const auto&) {
      ++accepted;
      return std::make_shared<Recorder>();
    };
    auto server = StartRpcServer(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    auto client = MakeStreamClient({PeerRole::kWorker, "worker-1"});
    std::vector<std::shared_ptr<FrameStream>> streams;
    while (accepted < 1 + round % 3 || streams.size() < 4) {
      streams.push_back(client->Connect({.address = (*server)->address(), .whom = "shard ps-1"},
                                        std::make_shared<Recorder>()));
      for (int i = 0; i < 20; ++i) (void)streams.back()->Send(Control(i));
    }
    (*server)->Shutdown(absl::ZeroDuration());
  }
}

TEST_F(Transport, PortInUseSaysSo) {
  RpcServer::Options options;
  options.listen = server_->address();
  options.self = {PeerRole::kShard, "ps-1"};
  const absl::Status status = StartRpcServer(std::move(options)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("Address already in use"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find(server_->address()), absl::string_view::npos) << status;
}

// Idle connections take all descriptors; they close, and a new peer gets in.
TEST_F(Transport, AcceptsAgainWhenThereAreDescriptors) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const OwnedFd lowest(open("/", O_PATH));
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(lowest.get()) + 200;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(server_->port()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<OwnedFd> idle;
  const absl::Time deadline = MonotonicNow() + kLong;
  while (WhyNoDescriptors().empty() && MonotonicNow() < deadline) {
    OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.open() && connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0)
      idle.push_back(std::move(fd));
  }
  EXPECT_THAT(WhyNoDescriptors(), testing::HasSubstr("out of file descriptors"));
  // All of them: gRPC's own listener would end here.
  std::vector<OwnedFd> all;
  for (;;) {
    OwnedFd fd(open("/", O_PATH));
    if (!fd.open()) break;
    all.push_back(std::move(fd));
  }
  OwnedFd waiting;
  all.pop_back();
  waiting.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(waiting.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0) << "it waits";
  absl::SleepFor(absl::Milliseconds(300));  // long enough for the server to check
  all.clear();
  idle.clear();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(WhyNoDescriptors(), "");
  Connect();
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd"), end;
  return static_cast<size_t>(std::distance(begin, end));
}

// Closed at any moment of being connected.
TEST_F(Transport, AClosedStreamLeavesNoConnection) {
  Connect().stream->Close(absl::OkStatus());  // whatever gRPC opens once is open
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 300; ++i) {
    const auto stream = client_->Connect({.address = server_->address(), .whom = "shard ps-0"},
                                         std::make_shared<Recorder>());
    absl::SleepFor(absl::Microseconds(20 * (i % 100)));
    stream->Close(absl::OkStatus());
  }
  const absl::Time deadline = absl::Now() + kLong;
  while (OpenDescriptors() > before && absl::Now() < deadline) {
    {
      absl::MutexLock lock(&mutex_);
      accepted_.clear();  // a stream keeps its connection
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_LE(OpenDescriptors(), before);
}

TEST_F(RawCaller, WithoutIdentity) {
  EXPECT_EQ(Call(false, "", "").code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(RawCaller, OtherProtocol) {
  const absl::Status status = Call(true, "99", "");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("7.7.7"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find(std::string(ReleaseVersion())), absl::string_view::npos)
      << status;
}

TEST(ErrorText, IsCutToWhatACallCarries) {
  const auto cut = [](const std::string& text) {
    return ToGrpc(absl::InvalidArgumentError(text)).error_message();
  };
  EXPECT_EQ(cut(std::string(5000, 'x')), std::string(5000, 'x'));
  const std::string of_ascii = cut(std::string(100'000, 'x'));
  EXPECT_TRUE(absl::EndsWith(of_ascii, "x ... (cut: 100000 bytes in all)"));
  EXPECT_GT(of_ascii.size(), 12'000u);
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += "ä";
  const std::string of_others = cut(text);
  EXPECT_LT(of_others.size(), 6'000u);
  EXPECT_TRUE(absl::StartsWith(of_others.substr(of_others.find(" ...") - 2), "ä ... (cut"));
}

TEST_F(RawCaller, UnknownMethod) {
  EXPECT_EQ(Call(true, protocol_, "", "/starling.ParameterServer/Nothing").code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(RawCaller, WhoSendsMoreThanItsCreditIsCutOff) {
  keep_all_ = true;
  std::string frame(limits::kFrameHeaderBytes + limits::kTensorBytesMax, '\0');
  EncodeFrameHeader(Bulk(1, limits::kSliceElementsMax), reinterpret_cast<uint8_t*>(frame.data()));
  const absl::Status status =
      Call(true, protocol_, frame, "/starling.ParameterServer/Exchange", 20);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(RawCaller, MalformedFramesEndTheStreamByName) {
  std::string frame(limits::kFrameHeaderBytes, '\0');
  EncodeFrameHeader(Bulk(1, 2), reinterpret_cast<uint8_t*>(frame.data()));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"x", "length"},
      {std::string(limits::kFrameBytesMax + 1, 'x'), "length"},
      {std::string(limits::kFrameHeaderBytes, 'x'), "magic"},
      {frame + "1234567", "payload_bytes"},
      {frame + "123456789", "payload_bytes"},
  };
  for (const auto& [message, field] : cases) {
    const absl::Status status = Call(true, protocol_, message);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_NE(status.message().find(field), absl::string_view::npos) << status;
  }
  // The server is still alive.
  Connect();
}

}  // namespace
}  // namespace starling
