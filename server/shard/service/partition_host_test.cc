#include "server/shard/service/partition_host.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/graph/builders.h"
#include "server/shard/apply/verify.h"
#include "xxhash.h"

namespace starling {
namespace {

constexpr uint32_t kRows = 1000;

class FakeConnection : public ShardConnection {
 public:
  struct Sent {
    FrameHeader header;
    OutgoingPayload payload;

    // As they are now, where they lie.
    float First() const {
      float value = 0;
      std::memcpy(&value, payload.bytes.data(), sizeof(value));
      return value;
    }
    std::string Text() const {
      return std::string(reinterpret_cast<const char*>(payload.bytes.data()), payload.bytes.size());
    }
  };

  explicit FakeConnection(uint64_t id) : id_(id) {}
  ConnectionId id() const override { return id_; }
  void Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) override {
    EXPECT_EQ(header.payload_bytes, payload.bytes.size());
    EXPECT_EQ(urgency < 0, header.type != FrameType::kValue);
    sent.push_back({header, std::move(payload)});
  }

  std::vector<Sent> sent;

 private:
  const ConnectionId id_;
};

class PartitionHostTest : public testing::Test {
 protected:
  // 8 samples, 2 steps an epoch of 4 micro-batches, 2 epochs, evaluated after each. Rate 1.
  void Start(Policy::Kind policy) {
    JobDescription job;
    job.mutable_run()->set_job_uid(7);
    JobSpec& spec = *job.mutable_spec();
    spec.set_name("job");
    *spec.mutable_model() = BuildCounter(kRows).value();
    spec.mutable_batch()->set_global(4);
    spec.mutable_batch()->set_micro_batches(4);
    spec.mutable_optimizer()->mutable_sgd();
    spec.mutable_optimizer()->mutable_learning_rate()->set_constant(1);
    spec.mutable_policy()->set_kind(policy);
    spec.mutable_policy()->set_staleness(policy == Policy::SSP ? 5 : 0);
    spec.set_workers_max(2);
    spec.mutable_evaluate()->set_every_epochs(1);
    spec.mutable_stop()->set_epochs(2);
    spec.mutable_test()->mutable_counter()->set_samples(8);
    job.set_train_samples(8);
    job.set_test_samples(8);
    if (change_model_) change_model_(*spec.mutable_model());
    if (clip_norm_ > 0) {
      spec.mutable_clip()->set_scope(clip_scope_);
      spec.mutable_clip()->set_norm(clip_norm_);
    }
    const Layout layout = MakeLayout(spec).value();
    job.set_partitions(static_cast<uint32_t>(layout.partitions.size()));
    job.set_layout_digest(layout.digest);
    plan_ = MakeShardJobPlan(job).value();
    // The slices of partition 0 alone.
    slice_ = plan_->layout.slices[plan_->layout.partitions[0][0].value];
    auto host = PartitionHost::Create(plan_, PartitionId(0), ShardId(1), memory_, &spans_,
                                      [this](const PartitionStatus& status, bool at_once) {
                                        status_ = status;
                                        if (at_once) ++urgent_reports_;
                                      },
                                      [this](const FrameHeader& norm) { norms_.push_back(norm); });
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    Orders(0, 0);
    for (uint32_t worker = 1; worker <= 2; ++worker) {
      FrameHeader enter = Header(FrameType::kClose, worker);
      enter.flags = frame_flags::kEnter;
      host_->OnFrame(connection_, enter, {});
      ASSERT_EQ(Last().header.type, FrameType::kAck);
    }
  }

  // Anew, with no more memory than memory_limit_.
  void Restart(Policy::Kind policy) {
    host_.reset();
    memory_ = std::make_shared<ShardMemory>(ShardMemory::Options{.bytes_max = memory_limit_});
    Start(policy);
  }

  void Orders(uint32_t epoch, uint32_t discard_before) {
    OrdersReceived orders;
    orders.generation = Generation(1);
    orders.view = ViewNumber(1);
    orders.primary = ShardId(1);
    orders.roster.number = RosterNumber(1);
    for (uint32_t worker = 1; worker <= 2; ++worker) {
      orders.roster.members.push_back({ReplicaId(worker), WorkerId(worker), Incarnation(worker), 0});
    }
    orders.policy.policy.kind = plan_->bsp() ? PolicyKind::kBsp : PolicyKind::kSsp;
    orders.policy.policy.staleness = plan_->description.spec().policy().staleness();
    orders.decider = ViewNumber(1);
    orders.epoch = epoch;
    orders.discard_cuts_before = discard_before;
    host_->OnOrders(std::move(orders));
  }

  FrameHeader Header(FrameType type, uint32_t worker) {
    FrameHeader header;
    header.type = type;
    header.key.run = plan_->run;
    header.key.slice = slice_.id;
    header.partition = PartitionId(0);
    header.view = ViewNumber(1);
    header.roster = RosterNumber(1);
    header.origin = {ReplicaId(worker), WorkerId(worker), Incarnation(worker), 0};
    header.request_id = ++last_request_;
    return header;
  }

  // Pushes a gradient of `value` everywhere; returns what watches the transport's memory.
  std::weak_ptr<const void> Push(uint32_t worker, const WorkRange& work, float value) {
    auto memory = std::make_shared<std::vector<float>>(slice_.elements, value);
    const auto* bytes = reinterpret_cast<const uint8_t*>(memory->data());
    const size_t size = memory->size() * sizeof(float);
    // Cut within a float.
    const std::vector<ReceivedPayload::Piece> pieces = {{bytes, 6}, {bytes + 6, size - 6}};
    FrameHeader header = Header(FrameType::kPush, worker);
    header.kind = PayloadKind::kDense;
    header.key.work = work;
    header.samples = work.count;
    header.elements = slice_.elements;
    header.payload_bytes = static_cast<uint32_t>(size);
    header.digest = VerifyPayload(pieces).digest;
    const std::weak_ptr<const void> watch = memory;
    ReceivedPayload payload(pieces, std::move(memory));
    host_->OnFrame(connection_, header, std::move(payload));
    return watch;
  }

  void PushOtherSlicesOfThePartition(const WorkRange& work) {
    const Slice first = slice_;
    for (const SliceId id : plan_->layout.partitions[0]) {
      slice_ = plan_->layout.slices[id.value];
      if (slice_.id != first.id) Push(1, work, 1);
    }
    slice_ = first;
  }

  void Pull(Clock clock) {
    FrameHeader header = Header(FrameType::kPull, 1);
    header.clock = clock;
    host_->OnFrame(connection_, header, {});
  }

  void PullCut(uint32_t epoch) {
    FrameHeader header = Header(FrameType::kPull, 1);
    header.key.work.purpose = WorkPurpose::kEvaluate;
    header.key.work.epoch = epoch;
    host_->OnFrame(connection_, header, {});
  }

  FakeConnection::Sent& Last() { return connection_->sent.back(); }

  static WorkRange Step(uint32_t epoch, uint32_t step) {
    return {WorkPurpose::kTrain, epoch, uint64_t{step} * 4, 4};
  }

  SpanRing spans_;
  std::shared_ptr<ShardMemory> memory_ = std::make_shared<ShardMemory>(ShardMemory::Options{});
  std::shared_ptr<const ShardJobPlan> plan_;
  Slice slice_;
  std::shared_ptr<FakeConnection> connection_ = std::make_shared<FakeConnection>(1);
  uint64_t memory_limit_ = 0;
  std::function<void(Graph&)> change_model_;
  double clip_norm_ = 0;
  Clip::Scope clip_scope_ = Clip::GLOBAL;
  std::vector<FrameHeader> norms_;  // reported
  PartitionStatus status_;
  int urgent_reports_ = 0;
  uint64_t last_request_ = 0;
  std::unique_ptr<PartitionHost> host_;
};

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
  EXPECT_TRUE(status_.ready());
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

TEST_F(PartitionHostTest, FramesThatWaitForOrdersHaveABudgetOfTheWholeShard) {
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

TEST_F(PartitionHostTest, WithoutMemoryAFrameThatWaitsStaysWithTheTransport) {
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

// A reader that keeps an old value while there is no memory for the next: the partition stops, the process
// does not.
TEST_F(PartitionHostTest, WithoutMemoryForAValueThePartitionStopsByName) {
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
  EXPECT_EQ(kept.First(), 0);
  Push(1, Step(0, 1), 1);
  EXPECT_EQ(Last().header.answer, Answer::kNotHosted);
  EXPECT_NE(Last().Text().find("no memory"), std::string::npos) << Last().Text();
  host_->OnTick();
  Orders(0, 0);
  host_->OnConnectionDown(connection_->id());
}

TEST_F(PartitionHostTest, WithoutMemoryForASumThePartitionStopsByName) {
  Start(Policy::BSP);
  memory_limit_ = memory_->allocated();
  Restart(Policy::BSP);
  Push(1, {WorkPurpose::kTrain, 0, 0, 2}, 1);
  EXPECT_EQ(status_.fault(), "") << "one sum may stay with the transport";
  Push(2, {WorkPurpose::kTrain, 0, 2, 2}, 2);
  EXPECT_NE(status_.fault().find("no memory"), std::string::npos) << status_.fault();
}

TEST_F(PartitionHostTest, WithoutMemoryForItsFirstValuesThereIsNoPartition) {
  Start(Policy::SSP);
  memory_ = std::make_shared<ShardMemory>(ShardMemory::Options{.bytes_max = 1});
  EXPECT_EQ(PartitionHost::Create(plan_, PartitionId(0), ShardId(1), memory_, &spans_,
                                  [](const PartitionStatus&, bool) {}, [](const FrameHeader&) {})
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
}

absl::Status CreateHost(std::shared_ptr<const ShardJobPlan> plan) {
  SpanRing spans;
  return PartitionHost::Create(std::move(plan), PartitionId(0), ShardId(1),
                               std::make_shared<ShardMemory>(ShardMemory::Options{}), &spans,
                               [](const PartitionStatus&, bool) {}, [](const FrameHeader&) {})
      .status();
}

// What a file holds is compared by the first partition that needs it, and by others only when the file is
// another one. That they do not look again is seen by what they miss: other bytes under the same time.
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
  EXPECT_TRUE(CreateHost(plan_).ok());
  write(3, 2000);
  EXPECT_NE(std::string(CreateHost(plan_).message()).find("has other bytes"), std::string::npos);
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
    EXPECT_EQ(Last().header.answer, Answer::kNonFinite);
    EXPECT_EQ(status_.sealed_steps(), 0u);
    Pull(0);
    ASSERT_EQ(Last().header.type, FrameType::kValue);
    EXPECT_EQ(Last().First(), 0);
    Push(1, {WorkPurpose::kTrain, 0, 0, 2}, 3e38f);  // again
    EXPECT_EQ(Last().header.answer, Answer::kNonFinite);
  }
}

// What a step holds until it is decided was planned for.
TEST_F(PartitionHostTest, AHeldStepFitsIntoWhatWasPlanned) {
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
