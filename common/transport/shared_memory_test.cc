// Streams with segments of shared memory, over loopback.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/transport/grpc_util.h"
#include "common/transport/segment_exchange.h"
#include "common/transport/testing/transport_fixture.h"
#include "common/transport/transport.h"

namespace starling {
namespace {

// Segments are used as soon as both ends have exchanged them; until then bytes go over the stream.
class SharedMemory : public RawCaller {
 protected:
  static constexpr uint32_t kElements = limits::kSharedPayloadBytesMin / 4;

  SharedMemory() { shared_memory_ = true; }

  // A pair of which both directions are shared. Its recorders have seen equally many frames.
  Pair ConnectShared() {
    Pair pair = Connect();
    AwaitShared(&pair);
    return pair;
  }
  void AwaitShared(Pair* pair) {
    const absl::Time deadline = absl::Now() + kLong;
    size_t there = pair->there->frames(), here = pair->here->frames();
    while ((!pair->there->shared() || !pair->here->shared()) && absl::Now() < deadline) {
      EXPECT_TRUE(pair->stream->Send(Bulk(there, kElements), Floats(kElements), 0).ok());
      EXPECT_TRUE(pair->back->Send(Bulk(here, kElements), Floats(kElements), 0).ok());
      pair->there->AwaitFrames(++there);
      pair->here->AwaitFrames(++here);
    }
    EXPECT_TRUE(pair->there->shared());
    EXPECT_TRUE(pair->here->shared());
  }
};

TEST_F(SharedMemory, FramesArriveWholeAndInOrderBothWays) {
  Pair pair = ConnectShared();
  const size_t before = pair.there->frames();
  const auto stats = [&] { return pair.stream->stats(); };
  const uint64_t shared_before = stats().shared_payload_bytes;
  const std::vector<uint32_t> sizes = {1,         kElements - 1,
                                       kElements, kElements + 1,
                                       32767,     32768,
                                       32769,     100'000,
                                       3,         limits::kSliceElementsMax};
  uint64_t shared = 0;
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(pair.stream->Send(Bulk(i, sizes[i]), Floats(sizes[i], i), 0).ok());
    ASSERT_TRUE(pair.stream->Send(Control(i)).ok());
    ASSERT_TRUE(pair.back->Send(Bulk(i, sizes[i]), Floats(sizes[i], 100 + i), 0).ok());
    if (sizes[i] >= kElements) shared += 2 * 4 * sizes[i];
  }
  const auto there = pair.there->AwaitFrames(before + 2 * sizes.size());
  const auto here = pair.here->AwaitFrames(before + sizes.size());
  std::vector<std::vector<float>> floats;
  for (size_t i = before; i < there.size(); ++i) {
    if (there[i].header.type == FrameType::kPush) floats.push_back(there[i].floats);
  }
  ASSERT_EQ(floats.size(), sizes.size());
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(here[before + i].header, Bulk(i, sizes[i]));
    ASSERT_EQ(floats[i].size(), sizes[i]);
    ASSERT_EQ(here[before + i].floats.size(), sizes[i]);
    for (uint32_t k = 0; k < sizes[i]; ++k) {
      ASSERT_EQ(floats[i][k], static_cast<float>(i + k));
      ASSERT_EQ(here[before + i].floats[k], static_cast<float>(100 + i + k));
    }
  }
  EXPECT_EQ(stats().shared_payload_bytes - shared_before, shared);
}

TEST_F(SharedMemory, MuchMoreThanTheSegmentFlows) {
  Pair pair = ConnectShared();
  const size_t before = pair.there->frames();
  constexpr int kFrames = 100;
  const OutgoingPayload payload = Floats(limits::kSliceElementsMax);
  for (int i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(pair.stream->Send(Bulk(i, limits::kSliceElementsMax), payload, 0).ok());
    ASSERT_TRUE(pair.back->Send(Bulk(i, limits::kSliceElementsMax), payload, 0).ok());
  }
  const auto there = pair.there->AwaitFrames(before + kFrames);
  pair.here->AwaitFrames(before + kFrames);
  EXPECT_EQ(there.back().floats.back(), static_cast<float>(limits::kSliceElementsMax - 1));
  // Credit and blocks come back together, so there is room but for the gaps that small ones left.
  EXPECT_GT(pair.stream->stats().shared_payload_bytes, kFrames * limits::kTensorBytesMax);
}

// Small tensors fill the segment before they use up credit.
TEST_F(SharedMemory, WhatFindsNoRoomGoesOverTheStream) {
  Pair pair = ConnectShared();
  const size_t before = pair.there->frames();
  pair.there->Keep();
  const uint64_t shared_before = pair.stream->stats().shared_payload_bytes;
  constexpr int kFrames = 2 * limits::kSegmentBlocks;
  for (int i = 0; i < kFrames; ++i)
    ASSERT_TRUE(pair.stream->Send(Bulk(i, kElements), Floats(kElements, i), 0).ok());
  const auto frames = pair.there->AwaitFrames(before + kFrames);
  for (int i = 0; i < kFrames; ++i) {
    EXPECT_EQ(frames[before + i].header.request_id, static_cast<uint64_t>(i));
    EXPECT_EQ(frames[before + i].floats.back(), static_cast<float>(i + kElements - 1));
  }
  EXPECT_FALSE(pair.there->shared());
  const uint64_t shared = pair.stream->stats().shared_payload_bytes - shared_before;
  EXPECT_GT(shared, 0u);
  EXPECT_LE(shared, limits::kSegmentBlocks * limits::kSharedPayloadBytesMin);
  // What was kept stays as it came, although more was sent meanwhile.
  std::vector<float> kept(kElements);
  for (size_t i = 0; i < pair.there->kept().size(); ++i) {
    pair.there->kept()[i].CopyTo(kept.data());
    EXPECT_EQ(kept.front(), static_cast<float>(i));
  }
  pair.there->LetGo();
  ASSERT_TRUE(pair.stream->Send(Bulk(99, kElements), Floats(kElements), 0).ok());
  pair.there->AwaitFrames(before + kFrames + 1);
}

TEST_F(SharedMemory, WhatHasArrivedOutlivesItsSender) {
  Pair pair = ConnectShared();
  const size_t before = pair.there->frames();
  pair.there->Keep();
  ASSERT_TRUE(pair.stream->Send(Bulk(1, kElements), Floats(kElements, 7), 0).ok());
  pair.there->AwaitFrames(before + 1);
  EXPECT_TRUE(pair.there->shared());
  pair.stream->Close(absl::CancelledError("dies"));
  EXPECT_FALSE(pair.there->AwaitDown().ok());
  pair.stream.reset();
  client_.reset();
  std::vector<float> floats(kElements);
  pair.there->kept()[0].CopyTo(floats.data());
  EXPECT_EQ(floats.back(), static_cast<float>(7 + kElements - 1));
  pair.there->LetGo();
}

// The mappings of segments in this process, which has both ends.
int MappedSegments() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += absl::StrContains(line, "memfd:starling-segment") ? 1 : 0;
  return count;
}

TEST_F(SharedMemory, AStreamLeavesNoSegment) {
  const int before = MappedSegments();
  {
    Pair pair = ConnectShared();
    EXPECT_EQ(MappedSegments(), before + 4);
    pair.stream->Close(absl::CancelledError("enough"));
    EXPECT_FALSE(pair.there->AwaitDown().ok());
    ConnectShared();
    EXPECT_EQ(MappedSegments(), before + 4);
  }
  client_.reset();
  server_.reset();
  EXPECT_EQ(MappedSegments(), before);
}

// A digest that does not fit leads back to the stream, for good.
TEST_F(SharedMemory, WhatWasDamagedGoesOverTheStreamFromThenOn) {
  for (const bool by_answer : {true, false}) {
    client_ = MakeStreamClient({PeerRole::kWorker, "worker-0"}, nullptr, true);
    Pair pair = ConnectShared();
    if (by_answer) {
      FrameHeader error = Control(1);
      error.type = FrameType::kError;
      error.answer = Answer::kBadDigest;
      const size_t before = pair.here->frames();
      ASSERT_TRUE(pair.back->Send(error).ok());
      pair.here->AwaitFrames(before + 1);
      const size_t pushed = pair.there->frames();
      ASSERT_TRUE(pair.stream->Send(Bulk(2, kElements), Floats(kElements, 5), 0).ok());
      EXPECT_EQ(pair.there->AwaitFrames(pushed + 1).back().floats.front(), 5);
      EXPECT_FALSE(pair.there->shared());
    }
    pair.stream->Close(absl::DataLossError("a value's digest was wrong"));
    EXPECT_FALSE(pair.there->AwaitDown().ok());
    const int before = MappedSegments();
    Pair next = Connect();
    for (uint64_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(next.stream->Send(Bulk(i, kElements), Floats(kElements), 0).ok());
      next.there->AwaitFrames(i + 1);
    }
    EXPECT_EQ(next.stream->stats().shared_payload_bytes, 0u);
    EXPECT_LE(MappedSegments(), before);
  }
}

// What fails for a reason that passes is tried again: here the system has no memory for segments.
TEST_F(SharedMemory, AHandshakeThatFailsForAWhileIsRepeated) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = limits::kSegmentBytes / 2;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  OwnedFd fd;
  EXPECT_FALSE(Segment::Create(&fd).ok());
  Pair pair = Connect();
  ASSERT_TRUE(pair.stream->Send(Bulk(1, kElements), Floats(kElements, 5), 0).ok());
  EXPECT_EQ(pair.there->AwaitFrames(1).back().floats.front(), 5);
  EXPECT_FALSE(pair.there->shared());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  AwaitShared(&pair);
}

TEST_F(SharedMemory, IsOfferedToWorkersAlone) {
  EXPECT_NE(OpenRaw("worker:w", protocol_)->Metadata(kSegmentsKey), "");
  for (const char* other : {"shard:s", "client:c"})
    EXPECT_EQ(OpenRaw(other, protocol_)->Metadata(kSegmentsKey), "") << other;
}

TEST_F(SharedMemory, IsNotUsedByAClientThatDoesNotWantIt) {
  const int before = MappedSegments();
  client_ = MakeStreamClient({PeerRole::kWorker, "w"}, nullptr, /*shared_memory=*/false);
  Pair pair = Connect();
  // Another client's handshake, which is begun later, is over.
  std::unique_ptr<StreamClient> unwilling = std::exchange(
      client_, MakeStreamClient({PeerRole::kWorker, "w2"}, nullptr, /*shared_memory=*/true));
  Pair other = ConnectShared();
  EXPECT_EQ(MappedSegments(), before + 4);
  ASSERT_TRUE(pair.stream->Send(Bulk(1, kElements), Floats(kElements), 0).ok());
  pair.there->AwaitFrames(1);
  EXPECT_FALSE(pair.there->shared());
  client_.reset();
}

std::string Encoded(const FrameHeader& header, const std::string& behind = "") {
  std::string bytes(limits::kFrameHeaderBytes, '\0');
  EncodeFrameHeader(header, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes + behind;
}

TEST_F(SharedMemory, AStreamWithoutSegmentsEndsWithAFrameThatNamesBlocks) {
  FrameHeader push = Bulk(1, kElements);
  push.blocks = 1;
  FrameHeader credit;
  credit.type = FrameType::kCredit;
  credit.blocks = 1;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Encoded(push), "the stream has none"},
      {Encoded(push, std::string(push.payload_bytes, 'x')), "beside shared memory"},
      {Encoded(push, "x"), "beside shared memory"},
      {Encoded(credit), "blocks that are not in use"},
  };
  for (const auto& [message, text] : cases) {
    const absl::Status status = Call(true, protocol_, message);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(text), absl::string_view::npos) << status;
  }
  ConnectShared();
}

// A worker by hand that has exchanged segments.
TEST_F(SharedMemory, AStreamEndsWithBlocksThatAreNotFree) {
  FrameHeader push = Bulk(1, kElements);
  push.blocks = 2;
  FrameHeader credit;
  credit.type = FrameType::kCredit;
  credit.blocks = ~uint64_t{0};
  struct Case {
    bool keep;  // the receiver keeps what it gets
    std::vector<FrameHeader> frames;
    const char* text;
  };
  const std::vector<Case> cases = {
      {true, {push, push}, "that are not free"},
      {false, {push, push}, "that are not free"},  // handled, and not given back yet
      {false, {credit, credit}, "blocks that are not in use"},
  };
  for (const Case& wrong : cases) {
    keep_all_ = wrong.keep;
    const auto raw = OpenRaw("worker:raw", protocol_);
    const auto handshake = BeginHandshake(raw->Metadata(kSegmentsKey));
    ASSERT_TRUE(handshake.ok()) << handshake.status();
    grpc::ByteBuffer reply;
    ASSERT_TRUE(raw->call->Read(&reply));  // credit with all blocks
    ASSERT_EQ(reply.Length(), limits::kFrameHeaderBytes);
    EXPECT_TRUE(EndHandshake(*handshake).ok());
    for (const FrameHeader& frame : wrong.frames) {
      const grpc::Slice slice(Encoded(frame));
      raw->call->Write(grpc::ByteBuffer(&slice, 1));
    }
    const absl::Status status = raw->End();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.text;
    EXPECT_NE(status.message().find(wrong.text), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace starling
