// A whole shard, on threads, that is ordered to write its part of a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/memory.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/store.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "common/event_loop/threaded_loop.h"
#include "common/placement/layout.h"
#include "server/shard/apply/verify.h"
#include "server/shard/host/shard_host.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);  // only ever reached by a failure
constexpr uint64_t kCluster = 5;
constexpr uint64_t kRootNonce = 77;
constexpr uint64_t kNonce = 9;
constexpr uint32_t kShard = 3;
constexpr uint64_t kElements = 600'000;
constexpr float kFirst = 2.5f;

// A coordinator of one shard. Holds a report until the next one or new orders. Thread-safe.
class Coordinator {
 public:
  void Give(std::vector<ShardJob> jobs) {
    ShardOrders orders = Base();
    for (ShardJob& job : jobs) *orders.add_jobs() = std::move(job);
    CoordinatorClient::Done<ShardOrders> held;
    {
      absl::MutexLock lock(&mutex_);
      orders.set_version(++version_);
      orders_ = orders;
      orders.set_sequence_taken(sequence_);
      held.swap(held_);
    }
    if (held != nullptr) held(orders);
  }

  void Take(const ShardReport& report, CoordinatorClient::Done<ShardOrders> done) {
    CoordinatorClient::Done<ShardOrders> answer = std::move(done);
    ShardOrders orders = Base();
    {
      absl::MutexLock lock(&mutex_);
      last_ = report;
      sequence_ = report.sequence();
      for (const HeldJob& held : report.held()) parts_[held.run().job_uid()] = held.checkpoint();
      for (const PartitionStatus& status : report.partitions())
        statuses_[{status.run().job_uid(), status.partition()}] = status;
      orders.set_unchanged(true);
      if (report.orders_seen() < version_) {
        orders = orders_;
      } else {
        answer.swap(held_);
      }
      orders.set_sequence_taken(sequence_);
    }
    if (answer != nullptr) answer(orders);
  }

  // The part of a job's checkpoint once it satisfies the condition.
  CheckpointPart AwaitPart(uint64_t job, const std::function<bool(const CheckpointPart&)>& is) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return is(parts_[job]); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kLong))
        << parts_[job].ShortDebugString();
    return parts_[job];
  }
  CheckpointPart AwaitState(uint64_t job, CheckpointPart::State state) {
    return AwaitPart(job, [&](const CheckpointPart& part) { return part.state() == state; });
  }
  PartitionStatus AwaitStatus(uint64_t job, uint32_t partition) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return statuses_.contains({job, partition}); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kLong));
    return statuses_[{job, partition}];
  }
  ShardReport Last() {
    absl::MutexLock lock(&mutex_);
    return last_;
  }

 private:
  static ShardOrders Base() {
    ShardOrders orders;
    orders.set_generation(1);
    orders.set_cluster(kCluster);
    orders.set_checkpoint_nonce(kRootNonce);
    return orders;
  }

  absl::Mutex mutex_;
  uint64_t version_ = 0;
  uint64_t sequence_ = 0;
  ShardOrders orders_;
  CoordinatorClient::Done<ShardOrders> held_;
  ShardReport last_;
  std::map<uint64_t, CheckpointPart> parts_;
  std::map<std::pair<uint64_t, uint32_t>, PartitionStatus> statuses_;
};

class Client : public CoordinatorClient {
 public:
  explicit Client(Coordinator* coordinator) : coordinator_(coordinator) {}
  void Register(const RegisterRequest&, absl::Duration, Done<RegisterReply> done) override {
    RegisterReply reply;
    reply.set_id(kShard);
    reply.set_incarnation(1);
    reply.set_generation(1);
    reply.set_cluster(kCluster);
    done(reply);
  }
  void ReportWorker(const WorkerReport&, absl::Duration, Done<WorkerOrders>) override {
    FAIL() << "a shard is no worker";
  }
  void ReportShard(const ShardReport& report, absl::Duration, Done<ShardOrders> done) override {
    coordinator_->Take(report, std::move(done));
  }
  void Heartbeat(const HeartbeatRequest&, absl::Duration, Done<HeartbeatReply>) override {}

 private:
  Coordinator* const coordinator_;
};

// A worker's stream: keeps the shard's answers. Thread-safe.
class WorkerStream : public FrameStream {
 public:
  absl::Status Send(const FrameHeader& header, OutgoingPayload, int64_t) override {
    absl::MutexLock lock(&mutex_);
    answers_[header.request_id] = header;
    return absl::OkStatus();
  }
  void Close(const absl::Status& why) override { ADD_FAILURE() << why; }
  PeerIdentity peer() const override { return {{PeerRole::kWorker, kWorker}, "", 0}; }
  Stats stats() const override { return {}; }

  Answer Await(uint64_t request) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return answers_.contains(request); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kLong));
    return answers_[request].answer;
  }

  static constexpr char kWorker[] = "w-0";

 private:
  absl::Mutex mutex_;
  std::map<uint64_t, FrameHeader> answers_;
};

class ShardCheckpointsTest : public testing::Test {
 protected:
  void Start(std::shared_ptr<CheckpointDisk> disk) {
    const Identity self{PeerRole::kShard, "ps-0"};
    host_ = std::make_unique<ShardHost>(
        ShardHost::Options{.self = self, .coordinator = "coordinator:1"},
        ShardHost::Environment{
            .make_loop = ThreadedLoop::Make,
            .available_memory = [] { return uint64_t{1} << 30; },
            .return_memory = [] {},
            .allocate = [this](size_t elements) -> std::shared_ptr<float> {
              return no_memory_ ? nullptr : AllocateFloats(elements);
            },
            .checkpoint_disk = std::move(disk),
            .spans = &spans_,
            .on_failed = [](const absl::Status& status) { ADD_FAILURE() << status; }},
        MakeStreamClient(self));
    host_->Start("127.0.0.1:1", std::make_unique<Client>(&coordinator_),
                 std::make_unique<Client>(&coordinator_));
  }

  // Three slices and a frozen one, each in a partition, all led here.
  static ShardJob Job(uint64_t uid) {
    ShardJob orders;
    JobDescription& job = *orders.mutable_job();
    job.mutable_run()->set_job_uid(uid);
    job.set_train_samples(100);
    JobSpec& spec = *job.mutable_spec();
    spec.set_name(absl::StrCat("job-", uid));
    for (const char* name : {"a", "frozen"}) {
      Parameter& parameter = *spec.mutable_model()->add_parameters();
      const bool frozen = spec.model().parameters_size() == 2;
      parameter.set_name(name);
      parameter.set_kind(frozen ? FROZEN : TRAINABLE);
      parameter.add_shape(frozen ? 10 : kElements);
      parameter.mutable_init()->set_kind(Initializer::CONSTANT);
      parameter.mutable_init()->set_value(kFirst);
    }
    spec.mutable_batch()->set_global(10);
    spec.mutable_batch()->set_micro_batches(2);
    spec.mutable_stop()->set_epochs(20);
    spec.mutable_policy()->set_kind(Policy::BSP);
    spec.mutable_optimizer()->mutable_momentum();
    spec.mutable_optimizer()->mutable_learning_rate()->set_constant(1);
    const Layout layout = MakeLayout(spec).value();
    job.set_partitions(static_cast<uint32_t>(layout.partitions.size()));
    job.set_layout_digest(layout.digest);
    *orders.mutable_run() = job.run();
    for (uint32_t p = 0; p < job.partitions(); ++p) {
      PartitionOrders& partition = *orders.add_partitions();
      partition.set_partition(p);
      partition.mutable_view()->set_number(1);
      partition.mutable_view()->set_primary(kShard);
    }
    orders.mutable_policy()->set_in_force(true);
    orders.mutable_policy()->mutable_policy()->set_kind(Policy::BSP);
    return orders;
  }
  static CheckpointId IdOf(uint64_t number) { return {kCluster, JobUid(7), number}; }
  // A job without updates is at step 0.
  static ShardJob WithCheckpoint(uint64_t number, uint64_t step = 0, uint64_t nonce = kNonce) {
    ShardJob orders = Job(7);
    ShardCheckpoint& checkpoint = *orders.mutable_checkpoint();
    checkpoint.set_id(ToString(IdOf(number)));
    checkpoint.set_number(number);
    checkpoint.set_step(step);
    checkpoint.set_nonce(nonce);
    return orders;
  }

  // Of the first slice, the whole step's gradient.
  static void Push(StreamHandler& stream, uint64_t step) {
    const Layout layout = MakeLayout(Job(7).job().spec()).value();
    const Slice& slice = layout.slices.front();
    FrameHeader header;
    header.type = FrameType::kPush;
    header.kind = PayloadKind::kDense;
    header.key.run = {JobUid(7), 0};
    header.key.slice = slice.id;
    header.key.work = {WorkPurpose::kTrain, 0, 2 * step, 2};
    header.partition = slice.partition;
    header.view = ViewNumber(1);
    header.roster = RosterNumber(1);
    header.origin = {ReplicaId(1), WorkerId(1), Incarnation(1), 0};
    header.samples = 10;
    header.elements = slice.elements;
    header.payload_bytes = slice.elements * static_cast<uint32_t>(sizeof(float));
    header.request_id = step + 1;
    struct Received {
      std::vector<float> values;
      std::vector<ReceivedPayload::Piece> pieces;
    };
    auto memory = std::make_shared<Received>();
    memory->values.assign(slice.elements, 1);
    memory->pieces = {{reinterpret_cast<const uint8_t*>(memory->values.data()),
                       memory->values.size() * sizeof(float)}};
    const absl::Span<const ReceivedPayload::Piece> pieces = memory->pieces;
    header.digest = VerifyPayload(pieces).digest;
    stream.OnFrame(header, ReceivedPayload(pieces, std::move(memory)));
  }

  // Gives no jobs, so that it reports again and again.
  void AwaitReport(const std::function<bool(const ShardReport&)>& is) {
    for (const absl::Time deadline = absl::Now() + kLong; !is(coordinator_.Last());) {
      ASSERT_LT(absl::Now(), deadline) << coordinator_.Last().ShortDebugString();
      coordinator_.Give({});
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  static bool SeesRoot(const ShardReport& report) {
    return report.checkpoint_nonce() == kRootNonce && report.checkpoint_error().empty();
  }
  static bool SeesNoRoot(const ShardReport& report) {
    return report.checkpoint_nonce() == 0 && !report.checkpoint_error().empty();
  }

  std::atomic<bool> no_memory_ = false;
  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  SpanRing spans_;
  Coordinator coordinator_;
  std::unique_ptr<ShardHost> host_;
};

TEST_F(ShardCheckpointsTest, AllPartitionsAreInOneFileAndAnotherJobBeginsWithIt) {
  ASSERT_TRUE(BeginCheckpoint(*disk_, IdOf(1), kNonce).ok());
  Start(disk_);
  coordinator_.Give({WithCheckpoint(1)});
  const CheckpointPart part = coordinator_.AwaitState(7, CheckpointPart::WRITTEN);
  EXPECT_EQ(part.number(), 1u);
  EXPECT_EQ(part.captured(), 4u);
  EXPECT_GE(part.bytes(), part.file().bytes()) << "written, and read back";
  EXPECT_EQ(part.file().name(), ShardFileName(ShardId(kShard)));

  CheckpointManifest manifest;
  manifest.set_format(1);
  manifest.set_id(ToString(IdOf(1)));
  *manifest.mutable_job() = Job(7).job();
  *manifest.add_files() = part.file();
  ASSERT_TRUE(SealCheckpoint(*disk_, IdOf(1), manifest).ok());
  coordinator_.Give({Job(7)});
  coordinator_.AwaitPart(7, [](const CheckpointPart& p) { return p.number() == 0; });
  const auto reader = CheckpointReader::Open(disk_, IdOf(1), std::nullopt);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> values(kElements);
  ASSERT_TRUE((*reader)->Read("a", 0, BlockPart::kValue, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values, std::vector<float>(kElements, kFirst));
  ASSERT_TRUE((*reader)->Read("a", 0, BlockPart::kSlot0, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values, std::vector<float>(kElements, 0.0f));

  ShardJob next = Job(8);
  Restore& restore = *next.mutable_job()->mutable_restore();
  restore.set_checkpoint(ToString(IdOf(1)));
  restore.set_manifest_digest(ListCheckpoints(*disk_)->whole.front().manifest_digest());
  restore.set_mode(Restore::CONTINUE);
  restore.set_step(25);  // as if
  restore.mutable_policy()->set_kind(Policy::BSP);
  coordinator_.Give({next});
  const PartitionStatus status = coordinator_.AwaitStatus(8, 0);
  EXPECT_EQ(status.fault(), "");
  EXPECT_EQ(status.sealed_steps(), 25u);
}

TEST_F(ShardCheckpointsTest, AFailureIsReportedAndTheNextAttemptIsAnother) {
  ASSERT_TRUE(BeginCheckpoint(*disk_, IdOf(1), kNonce).ok());
  ASSERT_TRUE(BeginCheckpoint(*disk_, IdOf(2), kNonce).ok());
  Start(disk_);
  coordinator_.Give({WithCheckpoint(1, 0, /*nonce=*/kNonce + 1)});
  EXPECT_THAT(coordinator_.AwaitState(7, CheckpointPart::FAILED).error(), HasSubstr("nonce"));
  coordinator_.Give({WithCheckpoint(2)});
  EXPECT_EQ(coordinator_.AwaitState(7, CheckpointPart::WRITTEN).number(), 2u);
}

TEST_F(ShardCheckpointsTest, WhatIsOrderedNoMoreIsDropped) {
  Start(disk_);
  coordinator_.Give({WithCheckpoint(1, /*step=*/100)});
  EXPECT_EQ(coordinator_.AwaitState(7, CheckpointPart::WAITING).number(), 1u);
  coordinator_.AwaitPart(7, [](const CheckpointPart& part) { return part.captured() == 1; });
  coordinator_.Give({Job(7)});
  coordinator_.AwaitPart(7, [](const CheckpointPart& part) { return part.number() == 0; });
  host_.reset();  // with a capture or without
  EXPECT_TRUE(disk_->List("")->empty());
}

TEST_F(ShardCheckpointsTest, WhatIsCapturedIsGivenUpForAnUpdateWithoutMemory) {
  Start(disk_);
  ShardJob orders = WithCheckpoint(1, /*step=*/1);
  orders.mutable_roster()->set_number(1);
  Member& member = *orders.mutable_roster()->add_members();
  member.set_replica(1);
  member.set_worker(1);
  member.set_incarnation(1);
  member.set_name(WorkerStream::kWorker);
  coordinator_.Give({orders});
  coordinator_.AwaitPart(7, [](const CheckpointPart& part) { return part.captured() == 1; });
  const auto stream = std::make_shared<WorkerStream>();
  const std::shared_ptr<StreamHandler> worker = host_->Accept(stream, stream->peer()).value();
  Push(*worker, 0);
  coordinator_.AwaitPart(7, [](const CheckpointPart& part) { return part.captured() == 2; });
  no_memory_ = true;
  Push(*worker, 1);
  EXPECT_THAT(coordinator_.AwaitState(7, CheckpointPart::FAILED).error(),
              HasSubstr("updates on shard ps-0 need the memory"));
  EXPECT_EQ(stream->Await(2), Answer::kCounted);
  worker->OnDown(absl::OkStatus());
}

TEST_F(ShardCheckpointsTest, SaysWhatIsBeneathItsRoot) {
  Start(disk_);
  AwaitReport(SeesNoRoot);
  ASSERT_TRUE(WriteRootNonce(*disk_, kCluster, kRootNonce).ok());
  AwaitReport(SeesRoot);
}

// The mount that it saw may be gone.
TEST_F(ShardCheckpointsTest, LooksForItsRootAgainWhenACheckpointCannotBeRead) {
  ASSERT_TRUE(WriteRootNonce(*disk_, kCluster, kRootNonce).ok());
  Start(disk_);
  AwaitReport(SeesRoot);
  ASSERT_TRUE(disk_->Remove(kRootNonceFolder, ToHex(kCluster)).ok());
  ShardJob job = Job(8);
  Restore& restore = *job.mutable_job()->mutable_restore();
  restore.set_checkpoint(ToString(IdOf(1)));
  restore.set_mode(Restore::VALUES);
  coordinator_.Give({job});
  EXPECT_THAT(coordinator_.AwaitStatus(8, 0).fault(), HasSubstr(ToString(IdOf(1))));
  AwaitReport(SeesNoRoot);
}

TEST_F(ShardCheckpointsTest, WithoutARootItHasNoPart) {
  Start(nullptr);
  coordinator_.Give({WithCheckpoint(1)});
  EXPECT_THAT(coordinator_.AwaitState(7, CheckpointPart::FAILED).error(),
              HasSubstr("shard ps-0 has no --checkpoint-root"));
  EXPECT_THAT(coordinator_.Last().checkpoint_error(), HasSubstr("without --checkpoint-root"));
}

}  // namespace
}  // namespace starling
