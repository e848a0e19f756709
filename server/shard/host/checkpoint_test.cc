// What a partition's host captures for a checkpoint, and how a partition begins with one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/store.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "server/shard/host/testing/partition_fixture.h"

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kNonce = 9;

class CheckpointTest : public PartitionHostTest {
 protected:
  void SetUp() override {
    change_spec_ = [](JobSpec& spec) { spec.mutable_optimizer()->mutable_momentum(); };
  }

  // Each has its own gradient.
  void Train(uint64_t step) {
    Push(1, Step(static_cast<uint32_t>(step / 2), static_cast<uint32_t>(step % 2)),
         1 + 0.25f * static_cast<float>(step));
    ASSERT_EQ(Last().header.answer, Answer::kCounted) << Last().Text();
  }
  // Steps below `end`, with a checkpoint of the step `at`.
  void TrainWithCheckpoint(uint64_t at, uint64_t end) {
    const auto epoch_of = [](uint64_t step) { return static_cast<uint32_t>(step / 2); };
    for (uint64_t step = 0; step < end; ++step) {
      Orders(epoch_of(step), 0, CheckpointAt{1, at});
      Train(step);
    }
    ASSERT_THAT(missed_, ElementsAre());
    ASSERT_EQ(captured_.size(), 1u);
    EXPECT_EQ(captured_[0].state.step, at);
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const CapturedBlock& block : captured_.at(0).blocks) names.push_back(ToString(block.name));
    return names;
  }
  float FirstOf(size_t block) const { return captured_.at(0).blocks.at(block).values[0]; }

  // All bytes of the slice, as they are sent to a reader.
  std::string Read() {
    FrameHeader pull = Header(FrameType::kPull, 1);
    pull.flags = frame_flags::kReader;
    host_->OnFrame(connection_, pull, {}, loop_.Now());
    EXPECT_EQ(Last().header.type, FrameType::kValue) << Last().Text();
    return Last().Text();
  }

  // Makes a checkpoint of what was captured, by two shards. The job that begins with it.
  JobDescription Seal() {
    const CheckpointId id{5, JobUid(7), ++number_};
    const CutState state = captured_.at(0).state;
    EXPECT_TRUE(BeginCheckpoint(*disk_, id, kNonce).ok());
    CheckpointManifest manifest;
    manifest.set_format(1);
    manifest.set_id(ToString(id));
    *manifest.mutable_job() = plan_->description;
    manifest.set_step(state.step);
    std::vector<CapturedBlock> blocks = std::exchange(captured_, {})[0].blocks;
    const auto half = blocks.begin() + static_cast<ptrdiff_t>(blocks.size() / 2);
    for (const uint32_t shard : {1, 2}) {
      CheckpointCapture capture;
      capture.Add(shard == 1 ? std::vector(blocks.begin(), half) : std::vector(half, blocks.end()));
      const absl::StatusOr<CheckpointFile> file =
          WriteShardFile(*disk_, id, kNonce, state.step, ShardId(shard), capture, [](uint64_t) {});
      EXPECT_TRUE(file.ok()) << file.status();
      *manifest.add_files() = *file;
    }
    EXPECT_TRUE(SealCheckpoint(*disk_, id, manifest).ok());
    JobDescription job = plan_->description;
    Restore& restore = *job.mutable_restore();
    restore.set_checkpoint(ToString(id));
    restore.set_manifest_digest(ListCheckpoints(*disk_).value().whole.back().manifest_digest());
    restore.set_mode(Restore::CONTINUE);
    restore.set_step(state.step);
    restore.set_skipped(state.skipped);
    restore.set_loss_scale_log2(state.loss_scale.log2);
    restore.set_loss_scale_clean(state.loss_scale.clean);
    *restore.mutable_policy() = job.spec().policy();
    if (state.copy.has_value()) restore.set_copy_epoch(*state.copy);
    return job;
  }
  absl::Status WhyNot(const JobDescription& job, std::shared_ptr<CheckpointDisk> disk) {
    const auto plan = MakeShardJobPlan(job, std::move(disk));
    if (!plan.ok()) return plan.status();
    return PartitionHost::Create(*plan, PartitionId(0), Environment()).status();
  }

  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  uint64_t number_ = 0;
};

// ---- Capture ----

TEST_F(CheckpointTest, WhatIsCapturedDoesNotChangeUntilItIsReleased) {
  change_spec_ = [](JobSpec& spec) {
    spec.mutable_optimizer()->mutable_momentum();
    spec.clear_evaluate();  // no copy holds a value
  };
  for (const Policy::Kind policy : {Policy::SSP, Policy::BSP}) {
    Start(policy);
    const uint64_t before = memory_->allocated();
    TrainWithCheckpoint(/*at=*/1, /*end=*/2);
    EXPECT_THAT(Names(), ElementsAre("counter@0", "counter@0.slot0"));
    Orders(1, 0);
    Train(2);
    EXPECT_EQ(FirstOf(0), -1);
    EXPECT_EQ(FirstOf(1), 1);
    EXPECT_GT(memory_->allocated(), before);
    captured_.clear();
    const uint64_t released = memory_->allocated();
    Train(3);
    EXPECT_EQ(memory_->allocated(), released) << "in place";
    EXPECT_EQ(memory_->old_values(), 0u) << "no stream was late to send it";
  }
}

TEST_F(CheckpointTest, TheCopyForEvaluationIsCapturedUnlessItIsTheValues) {
  Start(Policy::BSP);
  TrainWithCheckpoint(/*at=*/3, /*end=*/3);
  EXPECT_EQ(captured_[0].state.copy, 0u);
  EXPECT_THAT(Names(), ElementsAre("counter@0", "counter@0.slot0", "counter@0.evaluation"));
  EXPECT_EQ(FirstOf(2), -2.25) << "as of step 2";
  EXPECT_EQ(FirstOf(0), -3.75);

  captured_.clear();
  Start(Policy::BSP);
  TrainWithCheckpoint(/*at=*/2, /*end=*/2);
  EXPECT_EQ(captured_[0].state.copy, 0u);
  EXPECT_THAT(Names(), ElementsAre("counter@0", "counter@0.slot0"));
}

TEST_F(CheckpointTest, OneThatWasPassedIsMissed) {
  Start(Policy::BSP);
  Train(0);
  Train(1);
  Orders(0, 0, CheckpointAt{1, 1});
  EXPECT_THAT(missed_, ElementsAre(HasSubstr("slice 0 has 2 updates")));
  EXPECT_TRUE(captured_.empty());
}

// A checkpoint can be taken later, an update cannot wait. No stream is closed for it.
TEST_F(CheckpointTest, WhatIsCapturedIsGivenUpForAnUpdate) {
  Start(Policy::SSP);
  memory_limit_ = memory_->allocated();
  Restart(Policy::SSP);
  const auto stream = std::make_shared<FakeStream>(
      ValueStream::Load{.reads_only = true, .bytes = 5 << 20, .stalled_seconds = 3}, [] {});
  memory_->AddStream(stream);
  Orders(0, 0, CheckpointAt{1, 0});
  ASSERT_EQ(captured_.size(), 1u);
  Train(0);
  EXPECT_TRUE(captured_.empty());
  EXPECT_EQ(status_.fault(), "");
  EXPECT_FALSE(stream->over());
}

// ---- A run that begins with a checkpoint ----

TEST_F(CheckpointTest, TheRunGoesOnBitwise) {
  change_spec_ = [](JobSpec& spec) {
    Optimizer::Adam& adam = *spec.mutable_optimizer()->mutable_adam();
    adam.set_beta1(0.9);
    adam.set_beta2(0.999);
    adam.set_epsilon(1e-8);
  };
  for (const Policy::Kind policy : {Policy::SSP, Policy::BSP}) {
    Start(policy);
    for (uint64_t step = 0; step < 4; ++step) {
      Orders(static_cast<uint32_t>(step / 2), /*discard_before=*/0);
      Train(step);
    }
    const std::string undisturbed = Read();
    for (const uint64_t at : {0, 1, 2, 3}) {
      Start(policy);
      TrainWithCheckpoint(at, at == 3 ? 4 : at + 1);  // updates beyond leave it alone
      StartJob(Seal(), disk_);
      EXPECT_EQ(plan_->first_step(), at);
      for (uint64_t step = at; step < 4; ++step) {
        Orders(static_cast<uint32_t>(step / 2), 0);
        Train(step);
      }
      EXPECT_EQ(Read(), undisturbed) << "from step " << at;
    }
  }
}

TEST_F(CheckpointTest, AnEvaluationThatWasNotOverReadsItsCopy) {
  for (const uint64_t at : {2, 3}) {
    Start(Policy::BSP);
    TrainWithCheckpoint(at, at);
    StartJob(Seal(), disk_);
    PullCut(0);
    ASSERT_EQ(Last().header.type, FrameType::kValue) << Last().Text();
    const FakeConnection::Sent copy = Last();
    EXPECT_EQ(copy.First(), -2.25);
    for (uint64_t step = at; step < 4; ++step) Train(step);
    EXPECT_EQ(copy.First(), -2.25);
    PullCut(0);
    EXPECT_EQ(Last().First(), -2.25);
  }
}

TEST_F(CheckpointTest, WithoutItsCheckpointThereIsNoPartition) {
  Start(Policy::BSP);
  TrainWithCheckpoint(1, 1);
  const JobDescription job = Seal();
  EXPECT_TRUE(WhyNot(job, disk_).ok()) << WhyNot(job, disk_);
  EXPECT_THAT(std::string(WhyNot(job, nullptr).message()),
              HasSubstr("begins with checkpoint 0000000000000005-7-1, and this shard has no "
                        "--checkpoint-root"));
  JobDescription other = job;
  other.mutable_restore()->set_checkpoint("nonsense");
  EXPECT_THAT(std::string(WhyNot(other, disk_).message()), HasSubstr("\"nonsense\", which is no"));
  other.mutable_restore()->set_checkpoint("0000000000000005-7-99");
  EXPECT_EQ(WhyNot(other, disk_).code(), absl::StatusCode::kNotFound);
  other = job;
  other.mutable_restore()->set_manifest_digest(1);
  EXPECT_EQ(WhyNot(other, disk_).code(), absl::StatusCode::kFailedPrecondition);
  const std::string folder = job.restore().checkpoint();
  const std::string name = ShardFileName(ShardId(1));
  std::string bytes = disk_->Get(folder, name).value();
  bytes.back() ^= 1;
  disk_->Put(folder, name, bytes);
  EXPECT_EQ(WhyNot(job, disk_).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(WhyNot(job, disk_).message()), HasSubstr(name));
}

// ---- Any slices, from any files ----

// A model of three slices and a frozen one: what a slice's segments have lies in entries that are
// cut elsewhere, in two files.
class CheckpointValuesTest : public CheckpointTest {
 protected:
  static constexpr uint64_t kLong = 600'000;

  static float ValueOf(BlockPart part, uint64_t element) {
    return static_cast<float>(element) + 1e6f * static_cast<float>(part);
  }
  static std::vector<float> ValuesOf(BlockPart part, uint64_t begin, uint64_t elements) {
    std::vector<float> values(elements);
    for (uint64_t i = 0; i < elements; ++i) values[i] = ValueOf(part, begin + i);
    return values;
  }
  static CapturedBlock BlockOf(const std::string& parameter, BlockPart part, uint64_t begin,
                               uint64_t elements) {
    const auto values = std::make_shared<const std::vector<float>>(ValuesOf(part, begin, elements));
    return {{parameter, begin, part}, absl::MakeConstSpan(*values), values};
  }

  // At a step of BSP, with Adam's slots.
  JobDescription Make(uint64_t step) {
    change_model_ = [](Graph& model) {
      model.mutable_parameters(0)->set_shape(0, kLong);
      Parameter& frozen = *model.add_parameters();
      frozen.set_name("frozen");
      frozen.set_kind(FROZEN);
      frozen.add_shape(10);
    };
    change_spec_ = [](JobSpec& spec) {
      Optimizer::Adam& adam = *spec.mutable_optimizer()->mutable_adam();
      adam.set_epsilon(1e-8);
    };
    plan_ = MakeShardJobPlan(Job(Policy::BSP)).value();
    Captured captured;
    captured.state.step = step;
    captured.state.copy = 0;
    for (const BlockPart part :
         {BlockPart::kValue, BlockPart::kSlot0, BlockPart::kSlot1, BlockPart::kEvaluation}) {
      for (uint64_t begin = 0; begin < kLong; begin += 150'000)
        captured.blocks.push_back(BlockOf("counter", part, begin, 150'000));
    }
    captured.blocks.push_back(BlockOf("frozen", BlockPart::kValue, 0, 10));
    captured_.push_back(std::move(captured));
    return Seal();
  }
  // By slice; `values` is kept for them.
  std::map<SliceId, HostedSlice> Begin(const JobDescription& job) {
    plan_ = MakeShardJobPlan(job, disk_).value();
    std::map<SliceId, HostedSlice> slices;
    for (uint32_t p = 0; p < plan_->layout.partitions.size(); ++p) {
      values_.push_back(std::make_unique<SliceValues>(memory_.get(), *plan_, PartitionId(p)));
      const absl::Status made = values_.back()->Make(*plan_);
      EXPECT_TRUE(made.ok()) << made;
      for (const HostedSlice& slice : values_.back()->Hosted()) slices[slice.id] = slice;
    }
    EXPECT_GE(slices.size(), 4u);
    return slices;
  }
  // Of the slice's one segment.
  std::vector<float> Expected(SliceId id, BlockPart part) const {
    const Slice& slice = plan_->layout.slices[id.value];
    EXPECT_EQ(slice.segments.size(), 1u);
    return ValuesOf(part, slice.segments[0].param_begin, slice.elements);
  }
  static std::vector<float> AsVector(absl::Span<const float> values) {
    return {values.begin(), values.end()};
  }

  std::vector<std::unique_ptr<SliceValues>> values_;
};

TEST_F(CheckpointValuesTest, EachSliceHasItsOwn) {
  for (const auto& [id, slice] : Begin(Make(/*step=*/3))) {
    EXPECT_EQ(AsVector(slice.newest), Expected(id, BlockPart::kValue));
    const bool frozen = plan_->layout.slices[id.value].kind == FROZEN;
    EXPECT_EQ(slice.before.empty(), frozen);
    EXPECT_EQ(slice.slots[0].empty(), frozen);
    EXPECT_EQ(AsVector(slice.cut),
              Expected(id, frozen ? BlockPart::kValue : BlockPart::kEvaluation));
    if (frozen) continue;
    EXPECT_EQ(AsVector(slice.slots[0]), Expected(id, BlockPart::kSlot0));
    EXPECT_EQ(AsVector(slice.slots[1]), Expected(id, BlockPart::kSlot1));
  }
}

TEST_F(CheckpointValuesTest, AnotherJobTakesValuesAndNoMore) {
  JobDescription job = Make(3);
  Restore& restore = *job.mutable_restore();
  restore.clear_step();
  restore.clear_copy_epoch();
  restore.set_mode(Restore::VALUES);
  for (const auto& [id, slice] : Begin(job)) {
    EXPECT_EQ(AsVector(slice.newest), Expected(id, BlockPart::kValue));
    EXPECT_TRUE(slice.cut.empty());
    for (const absl::Span<const float> slot : slice.slots) {
      EXPECT_TRUE(std::all_of(slot.begin(), slot.end(), [](float value) { return value == 0; }));
    }
  }
  restore.set_mode(Restore::VALUES_AND_OPTIMIZER);
  for (const auto& [id, slice] : Begin(job)) {
    if (plan_->layout.slices[id.value].kind == FROZEN) continue;
    EXPECT_EQ(AsVector(slice.slots[0]), Expected(id, BlockPart::kSlot0));
    EXPECT_EQ(AsVector(slice.slots[1]), Expected(id, BlockPart::kSlot1));
  }
}

}  // namespace
}  // namespace starling
