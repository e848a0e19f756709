// The partition core in random company: workers that duplicate, retry, reconnect, die and come
// back, and an adaptor that takes its time. Whatever happens, each item counts once, each buffer is
// released once, all work is done in the end, and a repeater of the records has the same state.
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/partition.h"

namespace starling {
namespace {

constexpr uint32_t kSlices = 3;
constexpr uint32_t kReplicas = 3;
constexpr uint32_t kMicroBatches = 8;
constexpr uint32_t kEpochs = 2;
constexpr uint32_t kSteps = 3;  // of an epoch

PartitionConfig Config(PolicyKind policy) {
  PartitionConfig config;
  config.run = {JobUid(1), 0};
  config.self = ShardId(1);
  for (uint32_t s = 0; s < kSlices; ++s) config.slices.push_back({SliceId(s), 4, true});
  config.samples = 16 * kSteps;
  config.batch = 16;
  config.micro_batches = kMicroBatches;
  config.steps = kEpochs * kSteps;
  config.policy = {policy, policy == PolicyKind::kSsp ? 1u : 0u};
  config.rate = [](int64_t) { return 1.0f; };
  config.evaluates_at = [](uint32_t) { return true; };
  config.name_of_element = [](SliceId, uint32_t) { return std::string("w"); };
  return config;
}

class RandomCompany {
 public:
  RandomCompany(PolicyKind policy, uint32_t seed)
      : bsp_(policy == PolicyKind::kBsp), core_(Config(policy)), random_(seed) {
    core_.ObserveEffects([this](const Record& record) { effects_.push_back(record); });
    for (uint32_t r = 1; r <= kReplicas; ++r) Revive(r);
    SendOrders();
  }

  void Run() {
    for (int i = 0; i < 4000 && !Done(); ++i) Act();
    EXPECT_TRUE(Done());
    while (!verifying_.empty() || !applying_.empty()) Carry();
    events_ += absl::ToInt64Milliseconds(kParkedFrameDeadline);
    Feed(ShardTick());  // what still waits for a roster is refused
    const PartitionStatus status = core_.Status();
    EXPECT_EQ(core_.ordered().Write(), core_.applied().Write());
    PartitionState read(&core_.config());
    ASSERT_TRUE(read.Read(core_.applied().Write()).ok());
    EXPECT_EQ(read.Write(), core_.applied().Write());
    EXPECT_LE(read.Write().size(), PartitionState::BytesMax(core_.config()));
    EXPECT_EQ(status.applied_min(), kSteps);
    EXPECT_EQ(status.applied_max(), kSteps);
    EXPECT_EQ(status.fault(), "");
    EXPECT_TRUE(live_.empty()) << live_.size() << " buffers were never released";
    for (uint32_t s = 0; s < kSlices; ++s) EXPECT_EQ(applied_[s].size(), kEpochs * kSteps);
  }

  const PartitionCounters& counters() const { return core_.counters(); }

 private:
  struct Process {
    uint64_t incarnation = 0;
    ConnectionId connection;
  };

  bool Done() { return core_.Status().cut_epochs() == kEpochs; }
  uint32_t Pick(uint32_t n) { return random_() % n; }

  void Act() {
    switch (Pick(12)) {
      case 0: {  // a stream breaks
        Process& process = processes_[1 + Pick(kReplicas)];
        Feed(ConnectionDown{process.connection});
        process.connection = ConnectionId(++last_connection_);
        return;
      }
      case 1:
        if (Pick(4) == 0) Revive(1 + Pick(kReplicas));
        SendOrders();
        return;
      case 2:
      case 3: return Pull();
      case 4:
      case 5:
      case 6:
      case 7: return Push();
      default: return Carry();
    }
  }

  // A replica's process dies; another one is registered, which old frames do not know.
  void Revive(uint32_t replica) {
    processes_[replica] = {++last_incarnation_, ConnectionId(++last_connection_)};
    ++roster_;
  }

  void SendOrders() {
    OrdersReceived orders;
    orders.generation = Generation(1);
    orders.view = ViewNumber(1);
    orders.primary = ShardId(1);
    orders.policy.policy = core_.config().policy;
    orders.roster.number = RosterNumber(roster_);
    for (const auto& [replica, process] : processes_) {
      orders.roster.members.push_back(
          {ReplicaId(replica), WorkerId(replica), Incarnation(process.incarnation), 0});
    }
    orders.epoch = std::min(core_.Status().cut_epochs(), kEpochs - 1);
    orders.discard_cuts_before = orders.epoch;
    Feed(orders);
  }

  FrameHeader Header(FrameType type, uint32_t replica) {
    FrameHeader h;
    h.type = type;
    h.key.run = core_.config().run;
    h.key.slice = SliceId(Pick(kSlices));
    h.view = ViewNumber(1);
    h.roster = RosterNumber(roster_ + (Pick(20) == 0 ? 1 : 0));
    const uint64_t stale = Pick(10) == 0 ? 1 : 0;
    h.origin = {ReplicaId(replica), WorkerId(replica),
                Incarnation(processes_[replica].incarnation - stale), 1};
    h.request_id = ++last_request_;
    return h;
  }

  // Any part of any step that can be worked on, again and again.
  void Push() {
    const uint32_t replica = 1 + Pick(kReplicas);
    FrameHeader h = Header(FrameType::kPush, replica);
    h.kind = PayloadKind::kDense;
    const uint32_t done = static_cast<uint32_t>(applied_[h.key.slice.value].size());
    const uint32_t step = bsp_ ? std::min(done, kEpochs * kSteps - 1) : Pick(kEpochs * kSteps);
    const uint32_t count = bsp_ ? 1u << Pick(4) : kMicroBatches;
    const uint32_t first = Pick(kMicroBatches / count) * count;
    h.key.work = {WorkPurpose::kTrain, step / kSteps, (step % kSteps) * kMicroBatches + first,
                  count};
    h.elements = 4;
    h.payload_bytes = 16;
    h.samples = 2 * count;
    h.digest = 5;
    const BufferId buffer(++last_buffer_);
    live_[buffer] = ((uint64_t{1} << count) - 1) << first;  // a bit per micro-batch
    Feed(FrameReceived{processes_[replica].connection, h, buffer});
  }

  void Pull() {
    const uint32_t replica = 1 + Pick(kReplicas);
    FrameHeader h = Header(FrameType::kPull, replica);
    h.key.work.purpose = WorkPurpose::kTrain;
    h.clock = Pick(kEpochs * kSteps);
    Feed(FrameReceived{processes_[replica].connection, h, BufferId()});
  }

  // Does one of the things that the core asked for: verifications in any order, applies in theirs.
  void Carry() {
    if (!verifying_.empty() && (applying_.empty() || Pick(2) == 0)) {
      const size_t i = Pick(static_cast<uint32_t>(verifying_.size()));
      const BufferId buffer = verifying_[i];
      verifying_.erase(verifying_.begin() + static_cast<std::ptrdiff_t>(i));
      Feed(Verified{buffer, Pick(8) == 0 ? 6u : 5u, -1});
    } else if (!applying_.empty()) {
      const Record record = applying_.front();
      applying_.pop_front();
      Feed(Applied{record.lsn});
    }
  }

  void Feed(const PartitionEvent& event) {
    PartitionActions actions;
    core_.Step(event, absl::UnixEpoch() + absl::Milliseconds(++events_), actions);
    for (const PartitionAction& action : actions) Do(action);
    RepeatRecords();
  }

  // A second state, which has nothing but the bytes of the records.
  void RepeatRecords() {
    if (effects_.empty()) return;
    for (const Record& record : std::exchange(effects_, {})) {
      std::string bytes;
      EncodeRecord(record, &bytes);
      const absl::StatusOr<Record> decoded = DecodeRecord(bytes);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      const absl::Status fits = repeated_.Repeat(*decoded, LogDigest(repeated_.digest(), bytes));
      ASSERT_TRUE(fits.ok()) << fits;
    }
    EXPECT_EQ(repeated_.digest(), core_.applied().digest());
    EXPECT_EQ(repeated_.Write(), core_.applied().Write());
  }

  void Do(const PartitionAction& action) {
    if (const auto* verify = std::get_if<Verify>(&action)) {
      verifying_.push_back(verify->payload);
    } else if (const auto* merge = std::get_if<MergeSums>(&action)) {
      EXPECT_EQ(live_.at(merge->into) & live_.at(merge->from), 0u);
      live_.at(merge->into) |= live_.at(merge->from);
    } else if (const auto* apply = std::get_if<ApplyNow>(&action)) {
      const Record& record = apply->record;
      EXPECT_EQ(live_.at(apply->payload), (uint64_t{1} << kMicroBatches) - 1);
      std::set<uint64_t>& applied = applied_[record.slice.value];
      if (bsp_) {
        EXPECT_EQ(apply->version, applied.size());
      }
      EXPECT_EQ(static_cast<uint64_t>(record.scalars.t), applied.size() + 1);
      EXPECT_TRUE(
          applied.insert(record.work.epoch * kSteps + record.work.first / kMicroBatches).second)
          << "twice";
      applying_.push_back(record);
    } else if (const auto* release = std::get_if<Release>(&action)) {
      EXPECT_EQ(live_.erase(release->buffer), 1u) << "released twice";
    } else if (const auto* copy = std::get_if<CopyForCut>(&action)) {
      for (uint32_t s = 0; s < kSlices; ++s)
        EXPECT_EQ(applied_[s].size(), (copy->epoch + 1) * kSteps);
      EXPECT_FALSE(copied_);
      copied_ = true;
    } else if (std::get_if<DropCopy>(&action) != nullptr) {
      EXPECT_TRUE(copied_);
      copied_ = false;
    } else if (const auto* send = std::get_if<SendFrame>(&action)) {
      if (send->header.answer == Answer::kCounted) {
        const WorkRange& work = send->header.key.work;
        EXPECT_TRUE(applied_[send->header.key.slice.value].count(work.epoch * kSteps +
                                                                 work.first / kMicroBatches));
      }
    }
  }

  const bool bsp_;
  Partition core_;
  std::vector<Record> effects_;  // of the step under way
  PartitionState repeated_{&core_.config()};
  std::mt19937 random_;
  std::map<uint32_t, Process> processes_;
  uint64_t roster_ = 0;
  uint64_t last_incarnation_ = 0;
  uint64_t last_connection_ = 0;
  uint64_t last_request_ = 0;
  uint64_t last_buffer_ = 0;
  int64_t events_ = 0;

  std::map<BufferId, uint64_t> live_;  // which micro-batches the buffer is the sum of
  std::vector<BufferId> verifying_;
  std::deque<Record> applying_;
  std::map<uint32_t, std::set<uint64_t>> applied_;
  bool copied_ = false;
};

class PartitionRandomTest : public ::testing::TestWithParam<PolicyKind> {};

TEST_P(PartitionRandomTest, EachItemCountsOnceAndEachBufferIsReleasedOnce) {
  PartitionCounters sum;
  for (uint32_t seed = 0; seed < 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomCompany company(GetParam(), seed);
    company.Run();
    sum.joined += company.counters().joined;
    sum.already_counted += company.counters().already_counted;
    sum.parked += company.counters().parked;
    sum.fenced += company.counters().fenced;
    sum.replaced_sums += company.counters().replaced_sums;
    sum.duplicate_sums += company.counters().duplicate_sums;
    sum.blocked_pulls += company.counters().blocked_pulls;
  }
  EXPECT_GT(sum.joined, 100u);
  EXPECT_GT(sum.already_counted, 100u);
  EXPECT_GT(sum.parked, 100u);
  EXPECT_GT(sum.fenced, 100u);
  EXPECT_GT(sum.blocked_pulls, 100u);
  if (GetParam() == PolicyKind::kBsp) {
    EXPECT_GT(sum.replaced_sums, 100u);
    EXPECT_GT(sum.duplicate_sums, 100u);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, PartitionRandomTest,
                         ::testing::Values(PolicyKind::kBsp, PolicyKind::kSsp, PolicyKind::kAsync));

}  // namespace
}  // namespace starling
