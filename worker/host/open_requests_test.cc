#include "worker/host/open_requests.h"

#include <gtest/gtest.h>

#include "common/testing/counting_memory.h"

namespace starling {
namespace {

class OpenRequestsTest : public testing::Test {
 protected:
  void Sent(uint32_t shard, FrameType type, uint64_t id, uint32_t slice = 0,
            WorkPurpose purpose = WorkPurpose::kTrain) {
    FrameHeader header;
    header.type = type;
    header.request_id = id;
    header.key.slice = SliceId(slice);
    header.key.work.purpose = purpose;
    requests_.Sent(ShardId(shard), header, 0, WorkerId(), absl::UnixEpoch());
  }
  bool Answered(uint32_t shard, uint64_t id) {
    return requests_.Answered(ShardId(shard), id).has_value();
  }

  CountingMemory memory_;
  OpenRequests requests_;
};

TEST_F(OpenRequestsTest, ARequestIsOpenUntilItsAnswer) {
  EXPECT_FALSE(requests_.transferring());
  Sent(1, FrameType::kPush, 7, 3);
  EXPECT_TRUE(requests_.transferring());
  EXPECT_FALSE(Answered(2, 7));
  const auto request = requests_.Answered(ShardId(1), 7);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->type, FrameType::kPush);
  EXPECT_EQ(request->slice, SliceId(3));
  EXPECT_FALSE(requests_.transferring());
  EXPECT_FALSE(Answered(1, 7));
}

TEST_F(OpenRequestsTest, APullReplacesItsPredecessor) {
  Sent(1, FrameType::kPull, 1);
  Sent(1, FrameType::kPull, 2, 0, WorkPurpose::kEvaluate);
  Sent(1, FrameType::kPull, 3, 1);
  Sent(2, FrameType::kPull, 4);
  EXPECT_FALSE(Answered(1, 1));
  EXPECT_TRUE(Answered(1, 2));
  EXPECT_TRUE(Answered(1, 3));
  EXPECT_TRUE(Answered(2, 4));
  EXPECT_FALSE(requests_.transferring());
}

TEST_F(OpenRequestsTest, ACloseTransfersNothing) {
  Sent(1, FrameType::kClose, 1);
  EXPECT_FALSE(requests_.transferring());
  EXPECT_TRUE(Answered(1, 1));
}

TEST_F(OpenRequestsTest, ForgetsDeadStreams) {
  Sent(1, FrameType::kPush, 1);
  Sent(1, FrameType::kPull, 2);
  Sent(2, FrameType::kPush, 3);
  requests_.Forget(ShardId(1));
  EXPECT_FALSE(Answered(1, 1));
  EXPECT_FALSE(Answered(1, 2));
  EXPECT_TRUE(Answered(2, 3));
}

TEST_F(OpenRequestsTest, HasTheRoomThatWasMade) {
  requests_.Reserve(100);
  const int at_first = memory_.allocations();
  for (int i = 0; i < 100; ++i) Sent(1 + i % 2, FrameType::kPush, i);
  EXPECT_EQ(memory_.allocations(), at_first);
  for (int i = 100; i < 10000; ++i) Sent(1, FrameType::kPush, i);
  EXPECT_GT(memory_.allocations(), at_first);
}

}  // namespace
}  // namespace starling
