#include "common/transport/send_queue.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/testing/counting_memory.h"

namespace starling {
namespace {

OutgoingFrame Control(uint64_t id) {
  OutgoingFrame frame;
  frame.header.type = FrameType::kAck;
  frame.header.request_id = id;
  return frame;
}

OutgoingFrame Bulk(uint64_t id, size_t bytes) {
  static const std::vector<uint8_t> memory(1000);
  OutgoingFrame frame;
  frame.header.type = FrameType::kPush;
  frame.header.kind = PayloadKind::kDense;
  frame.header.request_id = id;
  frame.payload.bytes = absl::MakeConstSpan(memory).subspan(0, bytes);
  return frame;
}

uint64_t PopId(SendQueue* queue, size_t credit) {
  const auto frame = queue->Pop(credit);
  return frame.has_value() ? frame->header.request_id : 0;
}

TEST(SendQueue, NegativeFirstThenUrgencyThenAge) {
  SendQueue queue({});
  ASSERT_TRUE(queue.Push(Bulk(1, 10), 5).ok());
  ASSERT_TRUE(queue.Push(Bulk(2, 10), 5).ok());
  ASSERT_TRUE(queue.Push(Bulk(3, 10), 2).ok());
  ASSERT_TRUE(queue.Push(Control(4), -1).ok());
  ASSERT_TRUE(queue.Push(Control(5), -1).ok());
  EXPECT_EQ(queue.payload_bytes(), 30u);
  for (const uint64_t id : {4, 5, 3, 1, 2, 0}) EXPECT_EQ(PopId(&queue, 1000), id);
  EXPECT_EQ(queue.payload_bytes(), 0u);
}

TEST(SendQueue, HasRoomFromTheBegin) {
  CountingMemory memory;
  SendQueue queue({});
  const int at_first = memory.allocations();
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t i = 0; i < SendQueue::kFramesAtFirst; ++i) {
      ASSERT_TRUE(queue.Push(Control(i), -1).ok());
      ASSERT_TRUE(queue.Push(Bulk(i, 1), 0).ok());
    }
    while (queue.Pop(1).has_value()) {
    }
  }
  EXPECT_EQ(memory.allocations(), at_first);
  for (size_t i = 0; i < 4 * SendQueue::kFramesAtFirst; ++i) {
    ASSERT_TRUE(queue.Push(Control(i), -1).ok());
    ASSERT_TRUE(queue.Push(Bulk(i, 1), 0).ok());
  }
  EXPECT_GT(memory.allocations(), at_first);
}

TEST(SendQueue, APullStaysBehindThePushOfItsUrgency) {
  SendQueue queue({});
  ASSERT_TRUE(queue.Push(Bulk(1, 10), 5).ok());
  ASSERT_TRUE(queue.Push(Control(2), 5).ok());
  ASSERT_TRUE(queue.Push(Control(3), 4).ok());
  EXPECT_EQ(PopId(&queue, 9), 3u);
  EXPECT_EQ(PopId(&queue, 9), 0u);  // 1 waits for credit, 2 for 1
  EXPECT_EQ(PopId(&queue, 10), 1u);
  EXPECT_EQ(PopId(&queue, 0), 2u);
}

TEST(SendQueue, WithoutCreditNegativeUrgencyStillMoves) {
  SendQueue queue({});
  ASSERT_TRUE(queue.Push(Bulk(1, 10), 0).ok());
  ASSERT_TRUE(queue.Push(Control(2), -1).ok());
  EXPECT_EQ(PopId(&queue, 9), 2u);
  EXPECT_EQ(PopId(&queue, 9), 0u);
  EXPECT_EQ(PopId(&queue, 10), 1u);
}

TEST(SendQueue, RefusesWhenFull) {
  SendQueue queue({.payload_bytes_max = 25, .frames_max = 3});
  EXPECT_TRUE(queue.Push(Bulk(1, 20), 0).ok());
  EXPECT_EQ(queue.Push(Bulk(2, 6), 0).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(queue.Push(Control(3), 0).ok());
  EXPECT_TRUE(queue.Push(Control(4), 0).ok());
  EXPECT_EQ(queue.Push(Control(5), 0).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace starling
