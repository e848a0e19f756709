#include "server/coordinator/core/checkpoints.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kCluster = 7;

Checkpoint EverySteps(uint64_t steps) {
  Checkpoint rule;
  rule.set_every_steps(steps);
  return rule;
}

Checkpoint EverySeconds(double seconds) {
  Checkpoint rule;
  rule.set_every_seconds(seconds);
  return rule;
}

TEST(CheckpointDue, CountsWhatTheRuleCounts) {
  const absl::Duration no = absl::ZeroDuration();
  EXPECT_FALSE(IsCheckpointDue(EverySteps(10), 9, absl::Hours(9), no));
  EXPECT_TRUE(IsCheckpointDue(EverySteps(10), 10, no, no));
  EXPECT_FALSE(IsCheckpointDue(EverySeconds(60), 1000, absl::Seconds(58), no));
  EXPECT_TRUE(IsCheckpointDue(EverySeconds(60), 1, absl::Seconds(59), no));
  EXPECT_FALSE(IsCheckpointDue(Checkpoint(), 1000, absl::Hours(9), no)) << "no rule";
}

TEST(CheckpointDue, WhatHasNotChangedIsNotTakenAgain) {
  EXPECT_FALSE(IsCheckpointDue(EverySeconds(60), 0, absl::Hours(9), absl::ZeroDuration()));
}

TEST(CheckpointDue, IsWholeBeforeMoreIsAtStake) {
  const absl::Duration takes = absl::Seconds(9);
  EXPECT_FALSE(IsCheckpointDue(EverySeconds(60), 1, absl::Seconds(49), takes));
  EXPECT_TRUE(IsCheckpointDue(EverySeconds(60), 1, absl::Seconds(50), takes));
  EXPECT_FALSE(IsCheckpointDue(EverySeconds(60), 1, absl::Seconds(29), absl::Minutes(5)));
  EXPECT_TRUE(IsCheckpointDue(EverySeconds(60), 1, absl::Seconds(30), absl::Minutes(5)));
}

TEST(CheckpointRetry, ComesTwiceAsLateEachTimeWithinItsBounds) {
  EXPECT_EQ(CheckpointRetryWait(EverySteps(1), 1), absl::Seconds(10));
  EXPECT_EQ(CheckpointRetryWait(EverySteps(1), 2), absl::Seconds(20));
  EXPECT_EQ(CheckpointRetryWait(EverySteps(1), 4), absl::Seconds(80));
  EXPECT_EQ(CheckpointRetryWait(EverySteps(1), 1000), absl::Minutes(10));
  EXPECT_EQ(CheckpointRetryWait(EverySeconds(30), 3), absl::Seconds(30));
  EXPECT_EQ(CheckpointRetryWait(EverySeconds(1), 3), absl::Seconds(10)) << "the disk needs a rest";
  EXPECT_EQ(CheckpointRetryWait(EverySeconds(3600), 1000), absl::Minutes(10));
}

TEST(BoundaryStep, LiesBeyondWhatHasBegun) {
  EXPECT_EQ(BoundaryStep({.begun = 100, .recent = 0, .misses = 0, .end = 1000}), 102);
  EXPECT_EQ(BoundaryStep({.begun = 100, .recent = 7, .misses = 0, .end = 1000}), 109);
  EXPECT_EQ(BoundaryStep({.begun = 100, .recent = 7, .misses = 1, .end = 1000}), 118);
  EXPECT_EQ(BoundaryStep({.begun = 100, .recent = 7, .misses = 2, .end = 1000}), 136);
}

TEST(BoundaryStep, IsAStepOfTheJob) {
  EXPECT_EQ(BoundaryStep({.begun = 97, .recent = 0, .misses = 0, .end = 100}), 99);
  EXPECT_EQ(BoundaryStep({.begun = 98, .recent = 0, .misses = 0, .end = 100}), std::nullopt);
  EXPECT_EQ(BoundaryStep({.begun = 1, .recent = 0, .misses = 2000, .end = 100}), std::nullopt);
}

// ---- Parts ----

CheckpointPart Written(uint32_t shard, uint64_t step) {
  CheckpointPart part;
  part.set_state(CheckpointPart::WRITTEN);
  part.set_step(step);
  part.mutable_file()->set_name(ShardFileName(ShardId(shard)));
  part.mutable_file()->set_bytes(100);
  part.mutable_file()->set_xxh3(std::string(16, 'x'));
  return part;
}

TEST(CheckpointPart, HasCapturedWhenAllItsPartitionsHave) {
  CheckpointPart part;
  EXPECT_FALSE(HasCaptured(part, 2));
  part.set_state(CheckpointPart::WAITING);
  part.set_captured(1);
  EXPECT_FALSE(HasCaptured(part, 2));
  part.set_captured(2);
  EXPECT_TRUE(HasCaptured(part, 2));
  for (const auto state : {CheckpointPart::WRITING, CheckpointPart::WRITTEN}) {
    part.set_state(state);
    EXPECT_TRUE(HasCaptured(part, 2));
    EXPECT_FALSE(HasCaptured(part, 1)) << "another one's, too";
  }
  for (const auto state : {CheckpointPart::MISSED, CheckpointPart::FAILED}) {
    part.set_state(state);
    EXPECT_FALSE(HasCaptured(part, 0));
  }
}

TEST(CheckpointPart, IsThatOfTheShardAtTheStep) {
  const auto error = [](const CheckpointPart& part, std::optional<uint32_t> copy = std::nullopt) {
    return std::string(CheckWrittenPart(part, ShardId(3), 50, copy).message());
  };
  EXPECT_EQ(error(Written(3, 50)), "");
  EXPECT_THAT(error(Written(4, 50)), HasSubstr("expected the file shard-0000000003.safetensors"));
  EXPECT_THAT(error(Written(3, 51)),
              HasSubstr("expected the values of step 50, got those of step 51"));
  CheckpointPart part = Written(3, 50);
  part.mutable_file()->set_xxh3("short");
  EXPECT_THAT(error(part), HasSubstr("with its size and digest"));
  part = Written(3, 50);
  part.mutable_file()->set_bytes(0);
  EXPECT_THAT(error(part), HasSubstr("of 0 bytes"));
}

TEST(CheckpointPart, HasTheCopyOfWhatIsBeingEvaluated) {
  CheckpointPart part = Written(3, 50);
  EXPECT_THAT(std::string(CheckWrittenPart(part, ShardId(3), 50, 4).message()),
              HasSubstr("expected the copy of epoch 5, which is being evaluated, got none"));
  part.set_copy_epoch(3);
  EXPECT_THAT(std::string(CheckWrittenPart(part, ShardId(3), 50, 4).message()),
              HasSubstr("got that of epoch 4"));
  EXPECT_TRUE(CheckWrittenPart(part, ShardId(3), 50, std::nullopt).ok()) << "one too many is fine";
  part.set_copy_epoch(4);
  EXPECT_TRUE(CheckWrittenPart(part, ShardId(3), 50, 4).ok());
}

TEST(CheckpointPart, TogetherTheyHaveTheJobsNumbers) {
  CheckpointPart frozen = Written(1, 50), scaled = Written(2, 50), other = Written(3, 50);
  scaled.set_skipped(4);
  scaled.set_loss_scale_log2(12);
  scaled.set_loss_scale_clean(99);
  other.set_skipped(4);
  CheckpointManifest manifest;
  ASSERT_TRUE(JoinParts({&frozen, &scaled, &other}, manifest).ok());
  EXPECT_EQ(manifest.files_size(), 3);
  EXPECT_EQ(manifest.files(2).name(), "shard-0000000003.safetensors");
  EXPECT_EQ(manifest.skipped(), 4u);
  EXPECT_EQ(manifest.loss_scale_log2(), 12);
  EXPECT_EQ(manifest.loss_scale_clean(), 99u);
  other.set_skipped(5);
  CheckpointManifest torn;
  EXPECT_THAT(std::string(JoinParts({&frozen, &scaled, &other}, torn).message()),
              HasSubstr("disagree about the skipped updates: 5 and 4"));
}

// ---- Which ones ----

CheckpointId Own(uint64_t job, uint64_t number) { return {kCluster, JobUid(job), number}; }

void Add(KnownCheckpoints& known, const CheckpointId& id, const std::string& job,
         const std::string& created, bool asked_for = false) {
  CheckpointInfo& info = known[id];
  info.set_id(ToString(id));
  info.set_job(job);
  info.set_created(created);
  info.set_asked_for(asked_for);
}

KnownCheckpoints Several() {
  KnownCheckpoints known;
  Add(known, Own(1, 1), "a", "2026-01-05T00:00:00Z");
  Add(known, Own(1, 2), "a", "2026-01-04T00:00:00Z", /*asked_for=*/true);
  Add(known, Own(1, 3), "a", "2026-01-03T00:00:00Z");
  Add(known, Own(1, 4), "a", "2026-01-02T00:00:00Z");
  Add(known, Own(2, 1), "b", "2026-01-01T00:00:00Z");
  const uint64_t other = kCluster - 1;
  Add(known, {other, JobUid(9), 5}, "a", "2026-02-01T00:00:00Z");
  Add(known, {kCluster + 1, JobUid(9), 5}, "c", "2026-02-02T00:00:00Z");
  Add(known, {other, JobUid(10), 1}, "c", "2026-02-03T00:00:00Z");
  return known;
}

TEST(SurplusCheckpoints, AreTheOldestOnesOfTheRule) {
  const KnownCheckpoints known = Several();
  EXPECT_THAT(SurplusCheckpoints(known, kCluster, JobUid(1), 1, {}),
              ElementsAre(Own(1, 1), Own(1, 3)));
  EXPECT_THAT(SurplusCheckpoints(known, kCluster, JobUid(1), 2, {}), ElementsAre(Own(1, 1)));
  EXPECT_THAT(SurplusCheckpoints(known, kCluster, JobUid(1), 3, {}), IsEmpty());
  EXPECT_THAT(SurplusCheckpoints(known, kCluster, JobUid(1), 1, {Own(1, 1)}),
              ElementsAre(Own(1, 3)))
      << "a job starts from the other one";
  EXPECT_THAT(SurplusCheckpoints(known, kCluster, JobUid(3), 1, {}), IsEmpty());
}

TEST(KnownCheckpoints, TheLastOneOfAJobHasTheGreatestNumber) {
  const KnownCheckpoints known = Several();
  ASSERT_NE(LastCheckpoint(known, kCluster, JobUid(1)), nullptr);
  EXPECT_EQ(LastCheckpoint(known, kCluster, JobUid(1))->id(), ToString(Own(1, 4)));
  EXPECT_EQ(LastCheckpoint(known, kCluster, JobUid(3)), nullptr);
  ASSERT_NE(LastCheckpoint(known, kCluster, JobUid(1), /*below=*/4), nullptr);
  EXPECT_EQ(LastCheckpoint(known, kCluster, JobUid(1), 4)->id(), ToString(Own(1, 3)));
  EXPECT_EQ(LastCheckpoint(known, kCluster, JobUid(1), 1), nullptr);
  EXPECT_EQ(LastCheckpoint({}, kCluster, JobUid(3)), nullptr);
}

TEST(KnownCheckpoints, ANameMeansThisClustersNewest) {
  const KnownCheckpoints known = Several();
  EXPECT_EQ(NewestNamed(known, kCluster, "a"), Own(1, 4));
  EXPECT_EQ(NewestNamed(known, kCluster, "c"), (CheckpointId{kCluster - 1, JobUid(10), 1}))
      << "of other clusters, that of the latest time";
  EXPECT_EQ(NewestNamed(known, kCluster, "d"), std::nullopt);
}

TEST(KnownCheckpoints, ListsThisClustersFirst) {
  const KnownCheckpoints known = Several();
  EXPECT_THAT(NewestFirst(known, kCluster, "a"),
              ElementsAre(Own(1, 4), Own(1, 3), Own(1, 2), Own(1, 1),
                          CheckpointId{kCluster - 1, JobUid(9), 5}));
  EXPECT_EQ(NewestFirst(known, kCluster, "").size(), known.size());
  EXPECT_EQ(NewestFirst(known, kCluster, "").front(), Own(2, 1));
}

}  // namespace
}  // namespace starling::coordinator
