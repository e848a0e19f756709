// A partition's host where memory is short, and what was planned.
#include <gtest/gtest.h>

#include "server/shard/host/testing/partition_fixture.h"

namespace starling {
namespace {

using PartitionMemoryTest = PartitionHostTest;

TEST_F(PartitionMemoryTest, FramesThatWaitForOrdersHaveABudgetOfTheWholeShard) {
  const uint64_t bytes = kRows * sizeof(float);
  memory_ = std::make_shared<ShardMemory>(ShardMemory::Options{.waiting_bytes_max = bytes});
  Start(Policy::SSP);
  ASSERT_LE(slice_.elements, kRows);
  ASSERT_TRUE(memory_->ReserveWaiting(bytes));  // another partition's
  Push(1, Step(1, 0), 1);
  EXPECT_EQ(Last().header.answer, Answer::kOverBudget);
  Push(1, Step(0, 0), 1);
  EXPECT_EQ(Last().header.answer, Answer::kCounted) << "what need not wait needs no room";
  memory_->ReturnWaiting(bytes);

  const size_t before = connection_->sent.size();
  Push(1, Step(1, 0), 1);
  EXPECT_EQ(connection_->sent.size(), before) << "waits";
  EXPECT_EQ(memory_->waiting(), slice_.elements * sizeof(float));
  host_->OnConnectionDown(connection_->id());
  EXPECT_EQ(memory_->waiting(), 0u);
  Push(1, Step(1, 0), 1);
  EXPECT_GT(memory_->waiting(), 0u);
  host_.reset();
  EXPECT_EQ(memory_->waiting(), 0u);
  EXPECT_EQ(memory_->StreamQueueBytesMax(), limits::kStreamInFlightBytesMax);
}

TEST_F(PartitionMemoryTest, WithoutMemoryAFrameThatWaitsStaysWithTheTransport) {
  Start(Policy::SSP);
  memory_limit_ = memory_->allocated() + slice_.elements * sizeof(float);
  Restart(Policy::SSP);
  auto taken = memory_->Allocate(slice_.elements);
  const auto watch = Push(1, Step(1, 0), 1);
  EXPECT_FALSE(watch.expired());
  taken.reset();  // the next value, beside the cut's copy, has room
  for (uint32_t step = 0; step < 2; ++step) {
    Push(1, Step(0, step), 1);
    PushOtherSlicesOfThePartition(Step(0, step));
  }
  Orders(1, 0);
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  EXPECT_TRUE(watch.expired());
}

// A reader that keeps an old value while there is no memory for the next: the partition stops, the
// process does not.
TEST_F(PartitionMemoryTest, WithoutMemoryForAValueThePartitionStopsByName) {
  Start(Policy::SSP);
  memory_limit_ = memory_->allocated();
  Restart(Policy::SSP);
  Pull(0);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  const FakeConnection::Sent kept = Last();
  const int before = urgent_reports_;
  Push(1, Step(0, 0), 1);
  EXPECT_EQ(urgent_reports_, before + 1);
  EXPECT_NE(status_.fault().find("no memory"), std::string::npos) << status_.fault();
  EXPECT_TRUE(status_.no_memory());
  EXPECT_EQ(kept.First(), 0);
  Push(1, Step(0, 1), 1);
  EXPECT_EQ(Last().header.answer, Answer::kNotHosted);
  EXPECT_NE(Last().Text().find("no memory"), std::string::npos) << Last().Text();
  host_->OnTick();
  Orders(0, 0);
  host_->OnConnectionDown(connection_->id());
}

// The same, where the reader's stream can be closed for it: the job goes on.
TEST_F(PartitionMemoryTest, AReaderThatHoldsTheMemoryEndsAndThePartitionGoesOn) {
  Start(Policy::SSP);
  memory_limit_ = memory_->allocated();
  Restart(Policy::SSP);
  Pull(0);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  const auto stream = std::make_shared<FakeStream>(
      ValueStream::Load{.reads_only = true, .bytes = 5 << 20, .stalled_seconds = 3},
      [this] { connection_->sent.clear(); });
  memory_->AddStream(stream);
  Push(1, Step(0, 0), 1);
  EXPECT_EQ(status_.fault(), "");
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  EXPECT_NE(stream->why.find(
                "the shard needs the memory: 5 MiB of values wait for this stream, the last one "
                "was sent 3.0 s ago"),
            std::string::npos)
      << stream->why;
  EXPECT_EQ(memory_->allocated(), memory_limit_);
}

// What a closed stream was just sending is not free at once: the partition waits for it, and what
// comes meanwhile waits behind it.
TEST_F(PartitionMemoryTest, WhatAClosedStreamWasSendingIsWaitedFor) {
  Start(Policy::SSP);
  memory_limit_ = memory_->allocated();
  Restart(Policy::SSP);
  Pull(0);
  FakeConnection::Sent kept = Last();
  connection_->sent.clear();
  const auto stream = std::make_shared<FakeStream>(
      ValueStream::Load{.reads_only = true, .bytes = 5 << 20, .stalled_seconds = 3}, [] {});
  memory_->AddStream(stream);
  Push(1, Step(0, 0), 1);
  Pull(0);
  loop_.Advance(ShardMemory::kClosedAfter / 2);
  EXPECT_TRUE(stream->over());
  EXPECT_TRUE(connection_->sent.empty());
  host_->OnTick();
  EXPECT_EQ(kept.First(), 0) << "it is not written while it is being sent";
  kept = {};
  loop_.Advance(absl::Milliseconds(2));
  ASSERT_EQ(connection_->sent.size(), 2u);
  EXPECT_EQ(connection_->sent[0].header.answer, Answer::kCounted);
  EXPECT_EQ(connection_->sent[1].header.type, FrameType::kValue);
  EXPECT_EQ(connection_->sent[1].First(), -1);
  EXPECT_EQ(status_.fault(), "");
}

// And not for long: then the partition stops, and refuses what came meanwhile.
TEST_F(PartitionMemoryTest, WhereWhatAClosedStreamWasSendingStaysThePartitionStops) {
  Start(Policy::SSP);
  memory_limit_ = memory_->allocated();
  Restart(Policy::SSP);
  Pull(0);
  const FakeConnection::Sent kept = Last();
  connection_->sent.clear();
  const auto stream = std::make_shared<FakeStream>(
      ValueStream::Load{.reads_only = true, .bytes = 5 << 20, .stalled_seconds = 3}, [] {});
  memory_->AddStream(stream);
  Push(1, Step(0, 0), 1);
  Pull(0);
  loop_.Advance(ShardMemory::kClosedAfter + absl::Milliseconds(2));
  EXPECT_NE(status_.fault().find("no memory"), std::string::npos) << status_.fault();
  ASSERT_EQ(connection_->sent.size(), 1u);
  EXPECT_EQ(Last().header.answer, Answer::kNotHosted);
}

// Values that were replaced and are still to be sent have a budget, whatever memory there is.
TEST_F(PartitionMemoryTest, TheWorstStreamsEndFirstWhereOldValuesTakeTooMuch) {
  const uint64_t value = kRows * sizeof(float);
  const auto memory =
      std::make_shared<ShardMemory>(ShardMemory::Options{.old_values_bytes_max = 3 * value});
  std::vector<std::shared_ptr<float>> held;
  std::vector<std::shared_ptr<FakeStream>> streams;
  const auto add = [&](const ValueStream::Load& load) {
    streams.push_back(std::make_shared<FakeStream>(load, [&held] {
      if (!held.empty()) held.pop_back();
    }));
    memory->AddStream(streams.back());
    return streams.back();
  };
  const auto worker = add({.bytes = 9 * value, .stalled_seconds = 0.1});
  const auto stalled_worker = add({.bytes = value, .stalled_seconds = 5});
  const auto reader = add({.reads_only = true, .bytes = 8 * value, .stalled_seconds = 0.1});
  const auto small = add({.reads_only = true, .bytes = value, .stalled_seconds = 2});
  const auto large = add({.reads_only = true, .bytes = 2 * value, .stalled_seconds = 2});
  const auto replaced = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      held.push_back(memory->Allocate(kRows));
      memory->Retire(held.back());
      memory->Retire(held.back());  // counts once
    }
  };
  replaced(3);
  EXPECT_EQ(memory->old_values(), 3 * value);
  EXPECT_EQ(memory->old_values_room(), 0u);
  EXPECT_FALSE(large->over());
  // What a closed stream was sending may take a moment: room for a frame each.
  const size_t frame = limits::kTensorBytesMax / value;
  replaced(1);
  EXPECT_TRUE(large->over());
  EXPECT_FALSE(small->over());
  replaced(frame + 2);
  EXPECT_TRUE(small->over());
  EXPECT_FALSE(reader->over());
  replaced(frame + 2);
  EXPECT_TRUE(reader->over());
  EXPECT_FALSE(stalled_worker->over());
  replaced(frame + 2);
  EXPECT_TRUE(stalled_worker->over());
  replaced(10 * frame);
  EXPECT_FALSE(worker->over()) << "it gets on";
  EXPECT_TRUE(memory->CloseWorst(1, /*any=*/true));
  EXPECT_TRUE(worker->over());
  EXPECT_FALSE(memory->CloseWorst(1, /*any=*/true));
  held.clear();
  EXPECT_EQ(memory->old_values(), 0u);
  EXPECT_EQ(memory->allocated(), 0u);
}

TEST_F(PartitionMemoryTest, WithoutMemoryForASumThePartitionStopsByName) {
  Start(Policy::BSP);
  memory_limit_ = memory_->allocated();
  Restart(Policy::BSP);
  Push(1, {WorkPurpose::kTrain, 0, 0, 2}, 1);
  EXPECT_EQ(status_.fault(), "") << "one sum may stay with the transport";
  Push(2, {WorkPurpose::kTrain, 0, 2, 2}, 2);
  EXPECT_NE(status_.fault().find("no memory"), std::string::npos) << status_.fault();
}

TEST_F(PartitionMemoryTest, WithoutMemoryForItsFirstValuesThereIsNoPartition) {
  Start(Policy::SSP);
  memory_ = std::make_shared<ShardMemory>(ShardMemory::Options{.bytes_max = 1});
  EXPECT_EQ(PartitionHost::Create(plan_, PartitionId(0), Environment()).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// What a step holds until it is decided was planned for.
TEST_F(PartitionMemoryTest, AHeldStepFitsIntoWhatWasPlanned) {
  clip_norm_ = 1;
  Start(Policy::BSP);
  memory_limit_ = plan_->PlannedBytes(PartitionId(0));
  Restart(Policy::BSP);
  Push(1, {WorkPurpose::kTrain, 0, 0, 2}, 1);
  Push(2, {WorkPurpose::kTrain, 0, 2, 2}, 2);
  PushOtherSlicesOfThePartition(Step(0, 0));
  EXPECT_EQ(status_.fault(), "");
  EXPECT_EQ(norms_.size(), 1u);
  EXPECT_LE(memory_->allocated(), memory_limit_);
}

TEST_F(PartitionMemoryTest, SaysWhatBspWouldNeedBeyondWhatWasPlanned) {
  Start(Policy::BSP);
  const uint64_t bsp = plan_->PlannedBytes(PartitionId(0));
  EXPECT_EQ(status_.bsp_bytes_more(), 0u);
  Start(Policy::SSP);
  EXPECT_GT(status_.bsp_bytes_more(), 0u);
  EXPECT_EQ(plan_->PlannedBytes(PartitionId(0)) + status_.bsp_bytes_more(), bsp);
}

}  // namespace
}  // namespace starling
