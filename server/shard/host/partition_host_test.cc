#include "server/shard/host/partition_host.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include "server/shard/host/testing/partition_fixture.h"
#include "xxhash.h"

namespace starling {
namespace {

TEST_F(PartitionHostTest, WhatIsBeingSentNeverChanges) {
  Start(Policy::SSP);
  Pull(0);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  EXPECT_EQ(Last().First(), 0);
  const OutgoingPayload& bytes = Last().payload;
  EXPECT_EQ(VerifyPayload(Payload(&bytes.bytes, 1)).digest, Last().header.digest);
  const FakeConnection::Sent in_flight = Last();

  EXPECT_TRUE(Push(1, Step(0, 0), 1).expired());
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  EXPECT_EQ(in_flight.First(), 0);
  Pull(0);
  EXPECT_EQ(Last().First(), -1);
}

TEST_F(PartitionHostTest, TheStatusSaysWhereTimeWent) {
  Start(Policy::SSP);
  queued_ = absl::Milliseconds(40);
  Push(1, Step(0, 0), 1);
  Push(1, Step(0, 0), 1);  // a retry
  Pull(0);
  host_->OnTick();
  const PartitionTimes times = status_.times();
  const uint64_t bytes = slice_.elements * sizeof(float);
  EXPECT_EQ(times.pushes(), 2u);
  EXPECT_EQ(times.received_bytes(), 2 * bytes);
  EXPECT_GE(times.queue(), 0.08);
  EXPECT_EQ(times.applies(), 1u);
  EXPECT_EQ(times.pulls(), 1u);
  EXPECT_EQ(times.sent_bytes(), bytes);
  EXPECT_EQ(times.gate(), 0);
  EXPECT_EQ(times.verify(), 0) << "the clock stands still";
  EXPECT_EQ(times.apply(), 0);
  int pushes = 0, applies = 0;
  for (const TraceSpan& span : spans_.Read(0).spans) {
    if (span.category == SpanCategory::kPush) ++pushes;
    if (span.category == SpanCategory::kApply) ++applies;
  }
  EXPECT_EQ(pushes, 1);
  EXPECT_EQ(applies, 1);

  const ShardJobMetrics& metrics = *plan_->metrics;
  EXPECT_EQ(metrics.received_bytes, 2 * bytes);
  EXPECT_EQ(metrics.sent_bytes, bytes);
  EXPECT_DOUBLE_EQ(1e-6 * static_cast<double>(metrics.queue_us), times.queue());
  EXPECT_GE(metrics.push.counts().sum, 0.04);  // of the one that was verified
  EXPECT_EQ(metrics.pull.counts().buckets[0], 1u);
  EXPECT_DOUBLE_EQ(metrics.apply.counts().sum, times.apply());
  EXPECT_EQ(metrics.partitions, 1);
  EXPECT_GT(metrics.parameter_bytes, 0);
  host_.reset();
  EXPECT_EQ(metrics.partitions, 0);
  EXPECT_EQ(metrics.parameter_bytes, 0);
}

// Nothing happens at the partition but that a worker waits: that is news.
TEST_F(PartitionHostTest, WhileAPullIsHeldTheStatusGoesOn) {
  Start(Policy::BSP);
  Pull(1);
  host_->OnTick();
  const double before = status_.times().gate();
  loop_.Advance(absl::Milliseconds(1));
  host_->OnTick();
  EXPECT_GT(status_.times().gate(), before);
}

TEST_F(PartitionHostTest, WhatNobodyReadsIsUpdatedInPlace) {
  Start(Policy::SSP);
  Pull(0);
  const uint8_t* const place = Last().payload.bytes.data();
  connection_->sent.clear();
  Push(1, Step(0, 0), 1);
  Pull(0);
  EXPECT_EQ(Last().payload.bytes.data(), place);
  EXPECT_EQ(Last().First(), -1);
  const OutgoingPayload& bytes = Last().payload;
  EXPECT_EQ(VerifyPayload(Payload(&bytes.bytes, 1)).digest, Last().header.digest);
}

TEST_F(PartitionHostTest, TheCutKeepsItsValuesWhileTrainingGoesOn) {
  Start(Policy::SSP);
  for (uint32_t step = 0; step < 2; ++step) {
    Push(1, Step(0, step), 1);
    PushOtherSlicesOfThePartition(Step(0, step));
  }
  EXPECT_EQ(status_.cut_epochs(), 1u);
  EXPECT_EQ(status_.applied_min(), 2u);
  EXPECT_EQ(status_.applied_max(), 2u);
  Orders(1, 0);
  Push(1, Step(1, 0), 1);
  Pull(0);
  EXPECT_EQ(Last().First(), -3);
  PullCut(0);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  EXPECT_EQ(Last().First(), -2);
}

// A worker that writes to its segment before and after its push was checked.
class Scribbler : public PartitionObserver {
 public:
  Scribbler(const std::shared_ptr<std::vector<float>>* segment, bool before)
      : segment_(segment), before_(before) {}
  void OnStep(const Partition&, const PartitionEvent& event, const PartitionActions&) override {
    const FrameReceived* const frame = std::get_if<FrameReceived>(&event);
    const bool push = frame != nullptr && frame->header.type == FrameType::kPush;
    if (before_ ? !push : !std::holds_alternative<Verified>(event)) return;
    ++scribbled;
    std::fill((*segment_)->begin(), (*segment_)->end(), 100.0f);
  }
  void OnCarriedOut(const Partition&, const Record&, Payload, const HostedSlice&) override {}
  void OnEffect(const Partition&, const Record&) override {}
  void OnGone(const Partition&, absl::Span<const HostedSlice>) override {}

  int scribbled = 0;

 private:
  const std::shared_ptr<std::vector<float>>* const segment_;
  const bool before_;
};

TEST_F(PartitionHostTest, WhatIsAppliedIsWhatWasChecked) {
  Scribbler scribbler(&segment_, /*before=*/false);
  observer_ = &scribbler;
  shared_ = true;
  Start(Policy::SSP);
  EXPECT_TRUE(Push(1, Step(0, 0), 1).expired()) << "its credit is kept";
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  EXPECT_EQ(scribbler.scribbled, 1);
  Pull(0);
  EXPECT_EQ(Last().First(), -1);
  host_.reset();
}

TEST_F(PartitionHostTest, ASegmentThatChangesBeforeItIsCheckedHasAWrongDigest) {
  Scribbler scribbler(&segment_, /*before=*/true);
  observer_ = &scribbler;
  shared_ = true;
  Start(Policy::SSP);
  EXPECT_TRUE(Push(1, Step(0, 0), 1).expired());
  EXPECT_EQ(Last().header.answer, Answer::kBadDigest);
  EXPECT_EQ(scribbler.scribbled, 1);
  Pull(0);
  EXPECT_EQ(Last().First(), 0);
  host_.reset();
}

TEST_F(PartitionHostTest, SumsFromSharedMemoryWaitForTheirSiblings) {
  Scribbler scribbler(&segment_, /*before=*/false);
  observer_ = &scribbler;
  shared_ = true;
  Start(Policy::BSP);
  EXPECT_TRUE(Push(1, {WorkPurpose::kTrain, 0, 0, 2}, 1).expired());
  EXPECT_TRUE(Push(2, {WorkPurpose::kTrain, 0, 2, 2}, 2).expired());
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  Pull(1);
  EXPECT_EQ(Last().First(), -3);
  host_.reset();
}

// It waits in memory of the shard, so it is not read in its segment when its turn comes.
TEST_F(PartitionHostTest, APushFromSharedMemoryMayWaitForItsEpoch) {
  shared_ = true;
  Start(Policy::SSP);
  const size_t before = connection_->sent.size();
  EXPECT_TRUE(Push(1, Step(1, 0), 1).expired()) << "its credit is kept";
  EXPECT_EQ(connection_->sent.size(), before);
  for (uint32_t step = 0; step < 2; ++step) {
    Push(1, Step(0, step), 1);
    PushOtherSlicesOfThePartition(Step(0, step));
  }
  Orders(1, 0);
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  Pull(0);
  EXPECT_EQ(Last().First(), -3);
}

TEST_F(PartitionHostTest, ASumThatWaitsForItsSiblingKeepsNoCredit) {
  Start(Policy::BSP);
  const size_t before = connection_->sent.size();
  EXPECT_TRUE(Push(1, {WorkPurpose::kTrain, 0, 0, 2}, 1).expired());
  EXPECT_EQ(connection_->sent.size(), before) << "not sealed: no answer";
  EXPECT_TRUE(Push(2, {WorkPurpose::kTrain, 0, 2, 2}, 2).expired());
  ASSERT_EQ(connection_->sent.size(), before + 2);
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  Pull(1);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  EXPECT_EQ(Last().First(), -3);
  Pull(0);  // the version before is kept
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  EXPECT_EQ(Last().First(), 0);
}

TEST_F(PartitionHostTest, AFrameThatWaitsForItsEpochKeepsNoCreditAndIsCountedLater) {
  Start(Policy::SSP);
  const size_t before = connection_->sent.size();
  EXPECT_TRUE(Push(1, Step(1, 0), 1).expired());
  EXPECT_EQ(connection_->sent.size(), before);
  for (uint32_t step = 0; step < 2; ++step) {
    Push(1, Step(0, step), 1);
    PushOtherSlicesOfThePartition(Step(0, step));
  }
  Orders(1, 0);
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  Pull(0);
  EXPECT_EQ(Last().First(), -3);
}

TEST_F(PartitionHostTest, ReportsAtOnceWhatTheCoordinatorWaitsFor) {
  Start(Policy::SSP);
  const int before = urgent_reports_;
  Push(1, Step(0, 0), 1);
  EXPECT_EQ(urgent_reports_, before) << "an update can wait for the tick";
  host_->OnTick();
  EXPECT_GT(status_.lsn(), 0u);
  Push(1, Step(0, 1), 1);
  for (uint32_t step = 0; step < 2; ++step) PushOtherSlicesOfThePartition(Step(0, step));
  EXPECT_GT(urgent_reports_, before) << "a cut cannot";
}

TEST_F(PartitionHostTest, NothingIsSentToAConnectionThatIsGone) {
  Start(Policy::BSP);
  Pull(1);  // waits for the step
  const size_t before = connection_->sent.size();
  host_->OnConnectionDown(connection_->id());
  EXPECT_EQ(connection_.use_count(), 1);
  EXPECT_EQ(connection_->sent.size(), before);
}

// What a file holds is compared by the first partition that needs it, and by others only when the
// file is another one. That they do not look again is seen by what they miss: other bytes under the
// same time.
TEST_F(PartitionHostTest, FirstValuesInAFileAreComparedOnceForAllPartitions) {
  const std::string path = testing::TempDir() + "/first_values.safetensors";
  const auto write = [&](float value, time_t changed) {
    const std::vector<float> values(kRows, value);
    std::ofstream(path).write(reinterpret_cast<const char*>(values.data()), kRows * sizeof(float));
    const timespec times[2] = {{changed, 0}, {changed, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  change_model_ = [&](Graph& graph) {
    graph.set_init_file(path);
    Initializer& init = *graph.mutable_parameters(0)->mutable_init();
    const std::vector<float> values(kRows, 2.0f);
    init.set_kind(Initializer::FILE);
    init.set_file_digest(XXH3_64bits(values.data(), kRows * sizeof(float)));
  };
  write(2, 1000);
  Start(Policy::SSP);
  Pull(0);
  EXPECT_EQ(Last().First(), 2);
  write(3, 1000);
  const auto create = [&] {
    return PartitionHost::Create(plan_, PartitionId(0), Environment()).status();
  };
  EXPECT_TRUE(create().ok());
  write(3, 2000);
  EXPECT_NE(std::string(create().message()).find("has other bytes"), std::string::npos);
}

// Every element's gradient is 3; the whole partition is clipped to a quarter of its norm.
TEST_F(PartitionHostTest, AClippedStepWaitsForItsScale) {
  Start(Policy::BSP);
  uint64_t elements = 0;
  for (const SliceId id : plan_->layout.partitions[0])
    elements += plan_->layout.slices[id.value].elements;
  clip_norm_ = 1;
  Start(Policy::BSP);
  EXPECT_TRUE(Push(1, Step(0, 0), 3).expired()) << "what is held is not the transport's memory";
  const Slice first = slice_;
  for (const SliceId id : plan_->layout.partitions[0]) {
    slice_ = plan_->layout.slices[id.value];
    if (slice_.id != first.id) Push(1, Step(0, 0), 3);
  }
  slice_ = first;
  EXPECT_EQ(status_.sealed_steps(), 0u);
  ASSERT_EQ(norms_.size(), 1u);
  EXPECT_EQ(norms_[0].scalar, 9.0 * static_cast<double>(elements));
  Pull(1);
  EXPECT_NE(Last().header.type, FrameType::kValue);
  FrameHeader decision = norms_[0];
  decision.answer = Answer::kCounted;
  decision.scalar = 0.25;
  host_->OnDecision(decision, "");
  host_->OnDecision(decision, "");
  Pull(1);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  EXPECT_EQ(Last().First(), -0.75f);
}

// fp16: what overflowed is skipped, whatever its bytes say.
TEST_F(PartitionHostTest, ASkippedStepMakesAVersionLikeTheOneBefore) {
  precision_ = PRECISION_FP16;
  Start(Policy::BSP);
  for (const uint32_t step : {0, 1}) {
    push_flags_ = step == 0 ? 0 : frame_flags::kSkipped;
    Push(1, Step(0, step), 3);
    PushOtherSlicesOfThePartition(Step(0, step));
    ASSERT_EQ(norms_.size(), step + 1u);
    EXPECT_EQ(norms_[step].scalar, 0) << "nothing is clipped";
    EXPECT_EQ(norms_[step].flags, push_flags_);
    FrameHeader decision = norms_[step];
    decision.answer = Answer::kCounted;
    decision.scalar = 1;
    host_->OnDecision(decision, "");
    Pull(step + 1);
    ASSERT_EQ(Last().header.type, FrameType::kValue);
    EXPECT_EQ(Last().First(), -3);
  }
}

TEST_F(PartitionHostTest, ASkippedContributionChangesNothingInPlace) {
  precision_ = PRECISION_FP16;
  Start(Policy::SSP);
  Push(1, Step(0, 0), 3);
  push_flags_ = frame_flags::kSkipped;
  Push(1, Step(0, 1), 5);
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  Pull(0);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  EXPECT_EQ(Last().First(), -3);
}

// Clipped, an infinite sum would be infinity times 0.
TEST_F(PartitionHostTest, ASumThatOverflowsChangesNothingAndStopsTheJobByName) {
  for (const Clip::Scope scope : {Clip::SCOPE_UNSPECIFIED, Clip::PARAMETER}) {
    clip_norm_ = scope == Clip::PARAMETER ? 1 : 0;
    clip_scope_ = scope;
    Start(Policy::BSP);
    Push(1, {WorkPurpose::kTrain, 0, 0, 2}, 3e38f);
    EXPECT_EQ(status_.fault(), "");
    Push(2, {WorkPurpose::kTrain, 0, 2, 2}, 3e38f);
    const std::string name = plan_->description.spec().model().parameters(0).name();
    EXPECT_EQ(status_.fault(), "the sum of the workers' gradients is not finite for " + name +
                                   "[0] in step 0, although each worker's own was: it overflowed");
    EXPECT_EQ(Last().header.answer, Answer::kStopped);
    EXPECT_EQ(status_.sealed_steps(), 0u);
    Pull(0);
    ASSERT_EQ(Last().header.type, FrameType::kValue);
    EXPECT_EQ(Last().First(), 0);
    Push(1, {WorkPurpose::kTrain, 0, 0, 2}, 3e38f);  // again
    EXPECT_EQ(Last().header.answer, Answer::kStopped);
  }
}

TEST_F(PartitionHostTest, AnUpdateThatOverflowsStopsTheJobByName) {
  for (const Policy::Kind policy : {Policy::BSP, Policy::SSP}) {
    Start(policy);
    Push(1, Step(0, 0), 3e38f);
    EXPECT_EQ(status_.fault(), "");
    Push(1, Step(0, 1), 3e38f);
    const std::string name = plan_->description.spec().model().parameters(0).name();
    EXPECT_EQ(status_.fault().find("the update of step 1, or one of the 15 of these parameters "
                                   "before it, makes " +
                                   name + "[0], or what"),
              0u)
        << status_.fault();
    EXPECT_TRUE(status_.diverged());
    EXPECT_EQ(Last().header.answer, Answer::kStopped);
    if (policy == Policy::SSP) continue;
    Pull(1);
    ASSERT_EQ(Last().header.type, FrameType::kValue);
    EXPECT_EQ(Last().First(), -3e38f);
  }
}

// To look after each update would make it longer by half.
TEST_F(PartitionHostTest, InALongJobAnOverflowIsSeenAtTheNextLook) {
  train_samples_ = 4 * 2 * kUpdatesToLook;  // 4 a step
  for (const Policy::Kind policy : {Policy::BSP, Policy::SSP}) {
    Start(policy);
    for (uint32_t step = 0; step + 1 < kUpdatesToLook; ++step) {
      Push(1, Step(0, step), step == 3 || step == 4 ? 3e38f : 0);
      EXPECT_EQ(status_.fault(), "") << step;
    }
    Push(1, Step(0, kUpdatesToLook - 1), 0);
    EXPECT_EQ(status_.fault().find("the update of step 15, or one of the 15 "), 0u)
        << status_.fault();
    EXPECT_TRUE(status_.diverged());
  }
}

TEST_F(PartitionHostTest, RecordsWhatItDid) {
  Start(Policy::SSP);
  Push(1, Step(0, 0), 1);
  uint64_t push_flow = 0, apply_flow = 1;
  for (const TraceSpan& span : spans_.Read(0).spans) {
    if (span.category == SpanCategory::kPush) push_flow = span.flow;
    if (span.category == SpanCategory::kApply) apply_flow = span.flow;
  }
  EXPECT_EQ(push_flow, apply_flow);
}

// E9 of the trials: what only training needs is freed when the job is over, not when it is deleted.
TEST_F(PartitionHostTest, OfAJobThatIsOverOnlyWhatIsReadIsKept) {
  Start(Policy::BSP);
  Push(1, Step(0, 0), 1);  // version 1
  Push(1, Step(0, 1), 1);  // version 2, and 1 is still here
  const uint64_t version_bytes = memory_->allocated() / 2;
  const auto read = [&](EndedPartition& ended, Clock version) {
    FrameHeader pull = Header(FrameType::kPull, 0);
    pull.flags = frame_flags::kReader | frame_flags::kVersion;
    pull.clock = version;
    ended.OnFrame(*connection_, pull);
  };
  const std::unique_ptr<EndedPartition> ended = host_->End(1);
  host_.reset();
  connection_->sent.clear();
  EXPECT_EQ(memory_->allocated(), version_bytes);
  EXPECT_EQ(memory_->ended(), ended->value_bytes());

  read(*ended, 1);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  EXPECT_EQ(Last().First(), -1);
  EXPECT_EQ(Last().header.digest, VerifyPayload(Payload(&Last().payload.bytes, 1)).digest);
  read(*ended, 2);
  EXPECT_EQ(Last().header.answer, Answer::kStaleClock) << Last().Text();
  // Whoever trains on is told, and changes nothing.
  ended->OnFrame(*connection_, Header(FrameType::kPush, 1));
  EXPECT_EQ(Last().header.answer, Answer::kNotHosted) << Last().Text();
  FrameHeader other = Header(FrameType::kPull, 0);
  other.flags = frame_flags::kReader;
  other.key.slice = SliceId(999);
  ended->OnFrame(*connection_, other);
  EXPECT_EQ(Last().header.answer, Answer::kBadFrame) << Last().Text();
  other.key.run.era = 1;
  ended->OnFrame(*connection_, other);
  EXPECT_EQ(Last().header.answer, Answer::kStaleRun) << Last().Text();
}

// A copy for evaluation shares its memory with the values that are kept: they are no old values.
TEST_F(PartitionHostTest, WhatIsKeptDoesNotCountAsOld) {
  Start(Policy::SSP);
  for (uint32_t step = 0; step < 2; ++step) {
    Push(1, Step(0, step), 1);
    PushOtherSlicesOfThePartition(Step(0, step));
  }
  EXPECT_EQ(status_.cut_epochs(), 1u);  // and nothing came behind it
  PullCut(0);
  connection_->sent.clear();
  const std::unique_ptr<EndedPartition> ended = host_->End(std::nullopt);
  host_.reset();
  EXPECT_EQ(memory_->old_values(), 0u);
  EXPECT_EQ(memory_->allocated(), memory_->ended());
}

TEST_F(PartitionHostTest, WithoutVersionsTheNewestValuesAreKept) {
  Start(Policy::SSP);
  Push(1, Step(0, 0), 1);
  std::unique_ptr<EndedPartition> ended = host_->End(7);  // of partitions in BSP
  host_.reset();
  FrameHeader pull = Header(FrameType::kPull, 0);
  pull.flags = frame_flags::kReader;
  ended->OnFrame(*connection_, pull);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  EXPECT_EQ(Last().First(), -1);
  pull.flags |= frame_flags::kVersion;
  ended->OnFrame(*connection_, pull);
  EXPECT_EQ(Last().header.answer, Answer::kStaleClock) << "it may have asked others for it, too";
  connection_->sent.clear();
  ended.reset();
  EXPECT_EQ(memory_->allocated(), 0u);
  EXPECT_EQ(memory_->ended(), 0u);
}

TEST(ShardJobPlan, RefusesAnotherLayout) {
  JobDescription job;
  job.mutable_spec()->set_name("job");
  *job.mutable_spec()->mutable_model() = BuildCounter(kRows).value();
  job.mutable_spec()->mutable_optimizer()->mutable_sgd();
  const Layout layout = MakeLayout(job.spec()).value();
  job.set_partitions(static_cast<uint32_t>(layout.partitions.size()));
  job.set_layout_digest(layout.digest);
  EXPECT_TRUE(MakeShardJobPlan(job).ok());
  job.set_layout_digest(layout.digest + 1);
  EXPECT_EQ(MakeShardJobPlan(job).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace starling
