#include "server/shard/core/partition_config.h"

#include "common/placement/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

JobDescription Job() {
  JobDescription job;
  job.mutable_run()->set_job_uid(7);
  job.set_train_samples(100);
  JobSpec* spec = job.mutable_spec();
  for (const char* name : {"a", "b"}) {
    Parameter* parameter = spec->mutable_model()->add_parameters();
    parameter->set_name(name);
    parameter->set_kind(TRAINABLE);
    parameter->add_shape(300'000);
  }
  spec->mutable_batch()->set_global(32);
  spec->mutable_batch()->set_micro_batches(8);
  spec->mutable_stop()->set_steps(6);  // S is 4: the second epoch has two
  spec->mutable_evaluate()->set_every_epochs(1);
  spec->mutable_policy()->set_kind(Policy::SSP);
  spec->mutable_policy()->set_staleness(2);
  spec->mutable_optimizer()->mutable_learning_rate()->set_constant(0.25);
  return job;
}

TEST(PartitionConfigTest, TakesWhatTheDescriptionSays) {
  JobDescription job = Job();
  const Layout layout = MakeLayout(job.spec()).value();
  job.set_layout_digest(layout.digest);
  const PartitionConfig config =
      MakePartitionConfig(job, layout, PartitionId(0), ShardId(3)).value();
  EXPECT_EQ(config.FullSteps(), 4u);
  EXPECT_EQ(config.Epochs(), 2u);
  EXPECT_EQ(config.StepsIn(0), 4u);
  EXPECT_EQ(config.StepsIn(1), 2u);
  EXPECT_EQ(config.StepsIn(2), 0u);
  EXPECT_EQ(config.policy, (ConsistencyPolicy{PolicyKind::kSsp, 2}));
  EXPECT_EQ(config.rate(3), 0.25f);
  EXPECT_TRUE(config.evaluates_at(0));
  EXPECT_EQ(config.SamplesIn({WorkPurpose::kTrain, 0, 0, 8}), 32u);
  EXPECT_EQ(config.SamplesIn({WorkPurpose::kTrain, 0, 24, 8}), 4u);
  EXPECT_EQ(config.SamplesIn({WorkPurpose::kTrain, 0, 25, 1}), 0u);
}

TEST(PartitionConfigTest, BeginsWhereTheCheckpointWas) {
  JobDescription job = Job();  // S is 4, and there are 6 steps
  const Layout layout = MakeLayout(job.spec()).value();
  job.set_layout_digest(layout.digest);
  const auto made = [&] { return MakePartitionConfig(job, layout, PartitionId(0), ShardId(3)); };
  EXPECT_FALSE(made()->start.has_value());

  Restore& restore = *job.mutable_restore();
  restore.set_mode(Restore::CONTINUE);
  restore.set_step(5);
  restore.set_skipped(2);
  restore.set_loss_scale_log2(9);
  restore.set_loss_scale_clean(7);
  restore.mutable_policy()->set_kind(Policy::BSP);
  restore.set_copy_epoch(0);
  const PartitionConfig config = made().value();
  EXPECT_EQ(config.policy, (ConsistencyPolicy{PolicyKind::kBsp, 0})) << "not the job file's";
  ASSERT_TRUE(config.start.has_value());
  EXPECT_EQ(config.start->step, 5u);
  EXPECT_EQ(config.start->skipped, 2u);
  EXPECT_EQ(config.start->policy, (PolicyAt{PolicyNumber(), config.policy, 5}));
  EXPECT_EQ(config.start->loss_scale, (LossScale::State{9, 7}));
  EXPECT_EQ(config.start->copy, 0u);

  const auto why = [&](const Restore& wrong) {
    *job.mutable_restore() = wrong;
    return std::string(made().status().message());
  };
  const Restore right = restore;
  Restore wrong = right;
  wrong.set_step(6);
  EXPECT_THAT(why(wrong), HasSubstr("begins at step 6 and has 6"));
  wrong = right;
  wrong.set_skipped(6);
  EXPECT_THAT(why(wrong), HasSubstr("6 steps of 5 are skipped"));
  wrong = right;
  wrong.set_copy_epoch(1);
  EXPECT_THAT(why(wrong), HasSubstr("with a copy of epoch 1, which is not over"));
  wrong = right;
  wrong.set_loss_scale_log2(99);
  EXPECT_THAT(why(wrong), HasSubstr("a loss scale of 2^99"));
  wrong = right;
  wrong.clear_mode();
  EXPECT_THAT(why(wrong), HasSubstr("restore.mode 0"));
  wrong = right;
  wrong.set_mode(Restore::VALUES);
  EXPECT_THAT(why(wrong), HasSubstr("another job begins at step 5; expected 0"));
}

TEST(PartitionConfigTest, AnotherJobTakesValuesAlone) {
  JobDescription job = Job();
  const Layout layout = MakeLayout(job.spec()).value();
  job.set_layout_digest(layout.digest);
  Restore& restore = *job.mutable_restore();
  restore.set_mode(Restore::VALUES_AND_OPTIMIZER);
  restore.set_updates_before(100);
  const PartitionConfig config =
      MakePartitionConfig(job, layout, PartitionId(0), ShardId(3)).value();
  EXPECT_EQ(config.policy, (ConsistencyPolicy{PolicyKind::kSsp, 2})) << "the job file's";
  EXPECT_EQ(config.start->updates_before, 100u);
  EXPECT_EQ(config.start->loss_scale, LossScale::State());
  EXPECT_EQ(config.start->policy.policy, config.policy);
}

TEST(PartitionConfigTest, SlicesHaveTheirGroupsRateAndDecay) {
  JobDescription job = Job();
  Optimizer& optimizer = *job.mutable_spec()->mutable_optimizer();
  optimizer.set_weight_decay(0.1);
  optimizer.mutable_momentum();
  Optimizer::Group* group = optimizer.add_groups();
  group->add_match("b");
  group->set_rate_scale(2);
  group->set_weight_decay(0);
  const Layout layout = MakeLayout(job.spec()).value();
  job.set_layout_digest(layout.digest);
  int of_group = 0;
  for (const Slice& slice : layout.slices) {
    const PartitionConfig config =
        MakePartitionConfig(job, layout, slice.partition, ShardId(1)).value();
    for (const PartitionConfig::SliceInfo& info : config.slices) {
      if (info.id != slice.id) continue;
      of_group += slice.group == 0 ? 1 : 0;
      EXPECT_EQ(info.rate_scale, slice.group == 0 ? 2 : 1);
      EXPECT_EQ(info.decay, slice.group == 0 ? 0 : 0.1);
      EXPECT_EQ(info.slots, 1);
    }
  }
  EXPECT_EQ(of_group, 2);  // 300,000 elements of b
}

// In fp16 a step is decided about on every slice that changes, statistics included; where its
// gradient is clipped, on those that are trained.
TEST(PartitionConfigTest, SaysWhatIsDecidedAbout) {
  JobDescription job = Job();
  JobSpec& spec = *job.mutable_spec();
  spec.mutable_policy()->set_kind(Policy::BSP);
  spec.mutable_model()->mutable_parameters(1)->set_kind(STATISTIC);
  const Layout layout = MakeLayout(spec).value();
  job.set_layout_digest(layout.digest);
  const auto decided = [&] {
    int slices = 0;
    size_t reporters = 0;
    for (uint32_t p = 0; p < layout.partitions.size(); ++p) {
      const PartitionConfig config =
          MakePartitionConfig(job, layout, PartitionId(p), ShardId(1)).value();
      for (const PartitionConfig::SliceInfo& info : config.slices) slices += info.decided ? 1 : 0;
      reporters = config.reporters.size();
    }
    EXPECT_EQ(reporters, static_cast<size_t>(slices)) << "a partition has one slice here";
    return slices;
  };
  EXPECT_EQ(decided(), 0);
  spec.mutable_clip()->set_scope(Clip::GLOBAL);
  spec.mutable_clip()->set_norm(1);
  const int trained = decided();
  EXPECT_GT(trained, 0);
  spec.set_precision(PRECISION_FP16);
  EXPECT_EQ(decided(), static_cast<int>(layout.slices.size()));
  EXPECT_GT(decided(), trained);
  spec.clear_clip();
  EXPECT_EQ(decided(), static_cast<int>(layout.slices.size()));
}

TEST(PartitionConfigTest, NamesElementsAcrossSlices) {
  JobDescription job = Job();
  const Layout layout = MakeLayout(job.spec()).value();
  job.set_layout_digest(layout.digest);
  const Slice& slice = layout.slices.at(1);  // the end of a, the beginning of b
  const PartitionConfig config =
      MakePartitionConfig(job, layout, slice.partition, ShardId(1)).value();
  EXPECT_EQ(config.name_of_element(slice.id, 0), "a[262144]");
  ASSERT_EQ(slice.segments.size(), 1u + (slice.elements > 300'000 - 262'144));
  EXPECT_EQ(config.name_of_element(slice.id, 37'855), "a[299999]");
}

TEST(PartitionConfigTest, AnotherLayoutIsRefused) {
  JobDescription job = Job();
  const Layout layout = MakeLayout(job.spec()).value();
  job.set_layout_digest(layout.digest + 1);
  EXPECT_THAT(MakePartitionConfig(job, layout, PartitionId(0), ShardId(1)).status().message(),
              HasSubstr("run the same version everywhere"));
  job.set_layout_digest(layout.digest);
  EXPECT_THAT(MakePartitionConfig(job, layout, PartitionId(64), ShardId(1)).status().message(),
              HasSubstr("partition 64 of"));
  job.mutable_spec()->clear_policy();
  EXPECT_THAT(MakePartitionConfig(job, layout, PartitionId(0), ShardId(1)).status().message(),
              HasSubstr("expected bsp, ssp or async"));
  job.mutable_spec()->clear_stop();
  EXPECT_THAT(MakePartitionConfig(job, layout, PartitionId(0), ShardId(1)).status().message(),
              HasSubstr("neither stop.epochs nor stop.steps"));
}

}  // namespace
}  // namespace starling
