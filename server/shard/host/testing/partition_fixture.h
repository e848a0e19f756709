// For tests: one partition of a small job on its host, with a fake connection.
#ifndef STARLING_SERVER_SHARD_HOST_TESTING_PARTITION_FIXTURE_H_
#define STARLING_SERVER_SHARD_HOST_TESTING_PARTITION_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/event_loop/testing/manual_loop.h"
#include "common/graph/builders.h"
#include "server/shard/apply/verify.h"
#include "server/shard/host/partition_host.h"

namespace starling {

inline constexpr uint32_t kRows = 1000;

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
      return payload.head +
             std::string(reinterpret_cast<const char*>(payload.bytes.data()), payload.bytes.size());
    }
  };

  explicit FakeConnection(uint64_t id) : id_(id) {}
  ConnectionId id() const override { return id_; }
  void Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) override {
    EXPECT_EQ(header.payload_bytes, payload.size());
    EXPECT_EQ(urgency < 0, header.type != FrameType::kValue);
    sent.push_back({header, std::move(payload)});
  }

  std::vector<Sent> sent;

 private:
  const ConnectionId id_;
};

// A peer's stream on which values wait to be sent.
class FakeStream : public ValueStream {
 public:
  FakeStream(const Load& load, std::function<void()> drop) : load_(load), drop_(std::move(drop)) {}
  Load load() override { return load_; }
  void CloseForMemory(const std::string& text) override {
    load_.over = true;
    why = text;
    drop_();
  }
  bool over() const { return load_.over; }

  std::string why;

 private:
  Load load_;
  const std::function<void()> drop_;
};

class PartitionHostTest : public testing::Test {
 protected:
  // train_samples_, 2 steps an epoch unless changed, of 4 micro-batches each; 2 epochs, evaluated
  // after each. Rate 1.
  void Start(Policy::Kind policy) { StartJob(Job(policy)); }

  JobDescription Job(Policy::Kind policy) {
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
    job.set_train_samples(train_samples_);
    job.set_test_samples(8);
    if (change_model_) change_model_(*spec.mutable_model());
    if (clip_norm_ > 0) {
      spec.mutable_clip()->set_scope(clip_scope_);
      spec.mutable_clip()->set_norm(clip_norm_);
    }
    spec.set_precision(precision_);
    if (change_spec_) change_spec_(spec);
    const Layout layout = MakeLayout(spec).value();
    job.set_partitions(static_cast<uint32_t>(layout.partitions.size()));
    job.set_layout_digest(layout.digest);
    return job;
  }

  // `disk`: of the checkpoint that the job begins with.
  void StartJob(const JobDescription& job, std::shared_ptr<CheckpointDisk> disk = nullptr) {
    plan_ = MakeShardJobPlan(job, std::move(disk)).value();
    // The slices of partition 0 alone.
    slice_ = plan_->layout.slices[plan_->layout.partitions[0][0].value];
    auto host = PartitionHost::Create(plan_, PartitionId(0), Environment());
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    Orders(static_cast<uint32_t>(plan_->first_step() / 2), 0);
    for (uint32_t worker = 1; worker <= 2; ++worker) {
      FrameHeader enter = Header(FrameType::kClose, worker);
      enter.flags = frame_flags::kEnter;
      host_->OnFrame(connection_, enter, {}, loop_.Now());
      ASSERT_EQ(Last().header.type, FrameType::kAck);
    }
  }

  PartitionHost::Environment Environment() {
    return {.owner = &loop_,
            .self = ShardId(1),
            .memory = memory_,
            .spans = &spans_,
            .report =
                [this](const PartitionStatus& status, bool at_once) {
                  status_ = status;
                  if (at_once) ++urgent_reports_;
                },
            .send_report = [this](const FrameHeader& norm) { norms_.push_back(norm); },
            .send_to_backup =
                [this](const std::string&, const FrameHeader& header, OutgoingPayload payload) {
                  to_backup_.push_back({header, std::move(payload)});
                },
            .captured =
                [this](uint64_t number, const CutState& state, std::vector<CapturedBlock> blocks) {
                  captured_.push_back({number, state, std::move(blocks)});
                },
            .missed = [this](uint64_t, const std::string& why) { missed_.push_back(why); },
            .give_up_capture = [this] { return !std::exchange(captured_, {}).empty(); },
            .observer = observer_};
  }

  // All that is left, until the result is gone.
  std::vector<std::shared_ptr<float>> TakeAllMemory(ShardMemory& memory) {
    std::vector<std::shared_ptr<float>> taken;
    for (size_t elements = size_t{1} << 20; elements > 0; elements /= 2) {
      while (std::shared_ptr<float> some = memory.Allocate(elements)) taken.push_back(some);
    }
    return taken;
  }

  // Anew, with no more memory than memory_limit_.
  void Restart(Policy::Kind policy) {
    host_.reset();
    memory_ = std::make_shared<ShardMemory>(ShardMemory::Options{.bytes_max = memory_limit_});
    Start(policy);
  }

  void Orders(uint32_t epoch, uint32_t discard_before,
              std::optional<CheckpointAt> checkpoint = std::nullopt) {
    OrdersReceived orders;
    orders.checkpoint = checkpoint;
    orders.generation = Generation(1);
    orders.view = ViewNumber(1);
    orders.primary = ShardId(1);
    orders.roster.number = RosterNumber(1);
    for (uint32_t worker = 1; worker <= 2; ++worker) {
      orders.roster.members.push_back(
          {ReplicaId(worker), WorkerId(worker), Incarnation(worker), 0});
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
    struct Received {
      std::shared_ptr<std::vector<float>> values;
      std::vector<ReceivedPayload::Piece> pieces;
    };
    auto memory = std::make_shared<Received>();
    memory->values = std::make_shared<std::vector<float>>(slice_.elements, value);
    const auto* bytes = reinterpret_cast<const uint8_t*>(memory->values->data());
    const size_t size = memory->values->size() * sizeof(float);
    memory->pieces = {{bytes, 6}, {bytes + 6, size - 6}};  // cut within a float
    const absl::Span<const ReceivedPayload::Piece> pieces = memory->pieces;
    FrameHeader header = Header(FrameType::kPush, worker);
    header.kind = PayloadKind::kDense;
    header.flags = push_flags_;
    header.key.work = work;
    header.samples = work.count;
    header.elements = slice_.elements;
    header.payload_bytes = static_cast<uint32_t>(size);
    header.digest = VerifyPayload(pieces).digest;
    const std::weak_ptr<const void> watch = memory;
    segment_ = memory->values;
    ReceivedPayload payload(pieces, std::move(memory), shared_);
    host_->OnFrame(connection_, header, std::move(payload), loop_.Now() - queued_);
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
    host_->OnFrame(connection_, header, {}, loop_.Now());
  }

  void PullCut(uint32_t epoch) {
    FrameHeader header = Header(FrameType::kPull, 1);
    header.key.work.purpose = WorkPurpose::kEvaluate;
    header.key.work.epoch = epoch;
    host_->OnFrame(connection_, header, {}, loop_.Now());
  }

  FakeConnection::Sent& Last() { return connection_->sent.back(); }

  static WorkRange Step(uint32_t epoch, uint32_t step) {
    return {WorkPurpose::kTrain, epoch, uint64_t{step} * 4, 4};
  }

  ManualLoop loop_;
  SpanRing spans_;
  std::shared_ptr<ShardMemory> memory_ = std::make_shared<ShardMemory>(ShardMemory::Options{});
  std::shared_ptr<const ShardJobPlan> plan_;
  Slice slice_;
  std::shared_ptr<FakeConnection> connection_ = std::make_shared<FakeConnection>(1);
  uint64_t memory_limit_ = 0;
  std::function<void(Graph&)> change_model_;
  std::function<void(JobSpec&)> change_spec_;
  uint64_t train_samples_ = 8;
  double clip_norm_ = 0;
  Precision precision_ = PRECISION_FP32;
  uint16_t push_flags_ = 0;
  bool shared_ = false;                          // pushes come through shared memory
  std::shared_ptr<std::vector<float>> segment_;  // of the last push
  PartitionObserver* observer_ = nullptr;
  absl::Duration queued_;  // before their turn came, pushes waited at least so long
  Clip::Scope clip_scope_ = Clip::GLOBAL;
  std::vector<FrameHeader> norms_;  // reported
  std::deque<FakeConnection::Sent> to_backup_;
  struct Captured {
    uint64_t number = 0;
    CutState state;
    std::vector<CapturedBlock> blocks;
  };
  std::vector<Captured> captured_;
  std::vector<std::string> missed_;
  PartitionStatus status_;
  int urgent_reports_ = 0;
  uint64_t last_request_ = 0;
  std::unique_ptr<PartitionHost> host_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_TESTING_PARTITION_FIXTURE_H_
