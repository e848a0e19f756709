// Two copies of a partition and what is between them: frames that wait, links that break, shards
// that die, are cut off or come back empty, and a coordinator that numbers views. Whatever happens,
// what a worker was told is counted is in the copy that leads in the end, and once all is quiet
// both copies have the same state and the same values.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

constexpr uint32_t kSlices = 3;
constexpr uint64_t kItems = 64;
constexpr ConnectionId kWorkers(1);

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15 + b + 1;
  x ^= x >> 31;
  return x * 0xBF58476D1CE4E5B9;
}

TranscriptOptions Options() {
  return {.policy = {PolicyKind::kAsync, 0}, .slices = kSlices, .samples = 8 * kItems, .epochs = 1};
}

// Between two copies, in either direction.
struct Frame {
  FrameHeader header;
  std::string text = {};
  std::optional<Record> record = {};
  CopyDigests digests = {};
  uint64_t tensor = 0;
  std::string state = {};
};

// A core with the simplest host: a slice's value, and its slot, is one number.
class Copy {
 public:
  Copy(uint32_t shard, FirstState first, std::set<std::pair<uint32_t, uint64_t>>* acked)
      : acked_(acked), core_(Config(shard), first) {}

  void Step(const PartitionEvent& event, absl::Time now) {
    events_.push_back(event);
    while (!events_.empty()) {
      const PartitionEvent next = std::move(events_.front());
      events_.pop_front();
      PartitionActions actions;
      core_.Step(next, now, actions);
      std::deque<PartitionEvent> later = std::exchange(events_, {});
      for (const PartitionAction& action : actions) {
        std::visit([this](const auto& a) { Do(a); }, action);
      }
      events_.insert(events_.end(), later.begin(), later.end());  // answers go first
    }
  }

  void Push(uint32_t slice, uint64_t item, ViewNumber view, absl::Time now) {
    FrameHeader h;
    h.type = FrameType::kPush;
    h.kind = PayloadKind::kDense;
    h.key.run = core_.config().run;
    h.key.slice = SliceId(slice);
    h.key.work = {WorkPurpose::kTrain, 0, item * 4, 4};
    h.view = view;
    h.roster = RosterNumber(1);
    h.origin = {ReplicaId(1), WorkerId(1), Incarnation(1), 1};
    h.elements = Transcript::kElements;
    h.payload_bytes = Transcript::kElements * sizeof(float);
    h.samples = 8;
    h.digest = Transcript::kDigest;
    h.request_id = ++last_request_;
    Step(FrameReceived{kWorkers, h, Hold(Mix(slice, item))}, now);
  }

  void Deliver(const Frame& frame, ConnectionId connection, absl::Time now) {
    if (frame.header.type != FrameType::kReplicate)
      return Step(BackupAnswered{frame.header, frame.text}, now);
    FrameReceived received{connection, frame.header, BufferId()};
    if (frame.record.has_value()) {
      if (frame.record->kind == RecordKind::kApply) received.payload = Hold(frame.tensor);
      return Step(RecordReceived{received, *frame.record, frame.digests}, now);
    }
    if ((frame.header.flags & frame_flags::kSnapshot) == 0) return Step(received, now);
    if (frame.header.kind == PayloadKind::kDense) received.payload = Hold(frame.tensor);
    Step(SnapshotReceived{received, frame.state}, now);
  }

  // As a bit of memory that flips.
  void Spoil(uint32_t slice, size_t part) { values_[SliceId(slice)][part] ^= 1; }
  void MayDiffer() { may_differ_ = true; }

  Partition& core() { return core_; }
  const std::map<SliceId, std::array<uint64_t, 2>>& values() const { return values_; }
  size_t buffers() const { return buffers_.size(); }
  std::deque<Frame> to_backup, to_primary;

 private:
  static PartitionConfig Config(uint32_t shard) {
    PartitionConfig config = Transcript::Config(Options());
    config.self = ShardId(shard);
    for (PartitionConfig::SliceInfo& slice : config.slices) slice.slots = 1;
    return config;
  }

  BufferId Hold(uint64_t tensor) {
    buffers_[BufferId(++last_buffer_)] = tensor;
    return BufferId(last_buffer_);
  }

  void Do(const Verify& a) { events_.push_back(Verified{a.payload, Transcript::kDigest, -1}); }
  void Do(const ApplyNow& a) {
    std::array<uint64_t, 2>& value = values_[a.record.slice];
    value[0] = Mix(value[0], buffers_.at(a.payload));
    value[1] = Mix(value[1], value[0] ^ static_cast<uint64_t>(a.record.scalars.t));
    events_.push_back(Applied{a.record.lsn, -1, a.digest ? Mix(value[0], value[1]) : 0});
  }
  void Do(const Release& a) { ASSERT_EQ(buffers_.erase(a.buffer), 1u); }
  void Do(const AskBackup& a) { to_backup.push_back({a.header}); }
  void Do(const Replicate& a) {
    Frame frame{a.header};
    frame.record = a.record;
    frame.digests = a.digests;
    if (a.payload.value != 0) frame.tensor = buffers_.at(a.payload);
    to_backup.push_back(std::move(frame));
  }
  // The state in two frames, then each slice's value and slot.
  void Do(const TakeSnapshot& a) {
    snapshot_.clear();
    const size_t half = a.state.size() / 2;
    for (const std::string& part : {a.state.substr(0, half), a.state.substr(half)}) {
      Frame& frame = snapshot_.emplace_back();
      frame.header.kind = PayloadKind::kRecord;
      frame.state = part;
    }
    for (uint32_t s = 0; s < kSlices; ++s) {
      for (const TensorPart part : {TensorPart::kVersion0, TensorPart::kSlot0}) {
        Frame& frame = snapshot_.emplace_back();
        frame.header.kind = PayloadKind::kDense;
        frame.header.key.slice = SliceId(s);
        frame.header.key.work.epoch = static_cast<uint32_t>(part);
        frame.header.elements = Transcript::kElements;
        frame.tensor = values_[SliceId(s)][part == TensorPart::kSlot0];
      }
    }
    events_.push_back(SnapshotTaken{snapshot_.size()});
  }
  void Do(const SendSnapshot& a) {
    Frame frame = snapshot_.at(static_cast<size_t>(a.header.clock));
    FrameHeader header = a.header;
    header.kind = frame.header.kind;
    header.key.slice = frame.header.key.slice;
    header.key.work.epoch = frame.header.key.work.epoch;
    header.elements = frame.header.elements;
    frame.header = header;
    to_backup.push_back(std::move(frame));
  }
  void Do(const DropSnapshot&) { snapshot_.clear(); }
  void Do(const BeginTensors&) { values_.clear(); }
  void Do(const InstallTensor& a) {
    EXPECT_EQ(a.newest, a.part == TensorPart::kVersion0);
    values_[a.slice][a.part == TensorPart::kSlot0] = buffers_.at(a.payload);
  }
  void Do(const SendFrame& a) {
    if (a.connection != kWorkers) {
      to_primary.push_back({a.header, a.text});
    } else if (a.header.type == FrameType::kAck) {
      acked_->emplace(a.header.key.slice.value, a.header.key.work.first / 4);
    }
  }
  void Do(const ReportFault& a) {
    if (!may_differ_) ADD_FAILURE() << a.message;
  }
  template <typename Other>
  void Do(const Other&) {}

  std::set<std::pair<uint32_t, uint64_t>>* const acked_;
  Partition core_;
  std::deque<PartitionEvent> events_;
  std::map<BufferId, uint64_t> buffers_;
  std::map<SliceId, std::array<uint64_t, 2>> values_;
  std::vector<Frame> snapshot_;
  uint64_t last_buffer_ = 0;
  uint64_t last_request_ = 0;
  bool may_differ_ = false;
};

class Pair {
 public:
  explicit Pair(uint32_t seed) : random_(seed) {
    copies_[1] = std::make_unique<Copy>(1, FirstState::kFirstValues, &acked_);
    Tell(1);
  }

  void Run() {
    for (int i = 0; i < 3000; ++i) Act();
    for (int i = 0; i < 4000 && !Quiet(); ++i) Calm();
    ASSERT_TRUE(Quiet());
    Copy& primary = *copies_.at(primary_);
    Copy& backup = *copies_.at(backup_);
    EXPECT_TRUE(primary.core().Status().backup_whole());
    EXPECT_EQ(primary.core().applied().Write(), backup.core().applied().Write());
    EXPECT_EQ(primary.values(), backup.values());
    EXPECT_EQ(backup.core().ordered().Write(), backup.core().applied().Write());
    for (Copy* copy : {&primary, &backup}) EXPECT_EQ(copy->buffers(), 0u);
    for (const auto& [slice, item] : acked_) {
      EXPECT_TRUE(primary.core().applied().Covers(SliceId(slice), 0, item))
          << "slice " << slice << " item " << item << " was acked and is lost";
    }
    Count(primary.core());
    Count(backup.core());
  }

  // Both copies train on after a value (part 0) or a slot of one of them was spoilt. Says how that
  // was found.
  std::string RunSpoilt(bool primary, size_t part) {
    for (int i = 0; i < 1000 && (backup_ == 0 || !Quiet()); ++i) Calm();
    copies_.at(primary ? primary_ : backup_)->Spoil(1, part);
    Copy& backup = *copies_.at(backup_);
    backup.MayDiffer();
    for (uint64_t item = 0; item < kItems; ++item) {
      for (uint32_t slice = 0; slice < kSlices; ++slice) {
        copies_.at(primary_)->Push(slice, item, ViewNumber(view_), now_);
        Collect();
        for (int i = 0; i < 10; ++i) Carry();
        const PartitionStatus status = backup.core().Status();
        if (status.copies_differ()) return status.fault();
        EXPECT_EQ(status.fault(), "");
      }
    }
    return "";
  }

  std::map<std::string, uint64_t> counts;

 private:
  uint64_t Pick(uint64_t below) { return random_() % below; }

  void Act() {
    now_ += absl::Milliseconds(1 + Pick(20));
    switch (Pick(32)) {
      case 0: return Cut();
      case 1: return Pick(8) == 0 ? KillPrimary() : TakeWhole();
      case 2: return Pick(8) == 0 ? KillBackup() : TakeWhole();
      case 3:
        if (backup_ == 0) GiveBackup();
        return;
      case 4:
      case 5: return Tell(static_cast<uint32_t>(1 + Pick(2)));
      case 6: return zombie_ == nullptr ? Tick() : BotherZombie();
      case 7:
        if (Pick(6) == 0 && !to_backup_.empty()) to_backup_.pop_front();  // lost, without a word
        return Tick();
      case 8:
      case 9:
      case 10:
      case 11:
      case 12:
      case 13: return Push();
      default: return Carry();
    }
  }
  void Calm() {
    now_ += absl::Milliseconds(20);
    TakeWhole();
    if (backup_ == 0) GiveBackup();
    for (const uint32_t shard : {1, 2}) Tell(shard);
    Tick();
    for (int i = 0; i < 10; ++i) Carry();
  }
  bool Quiet() {
    return backup_ != 0 && !learning_ && copies_.contains(backup_) && to_backup_.empty() &&
           to_primary_.empty() &&
           copies_.at(primary_)->core().log().applied() ==
               copies_.at(primary_)->core().log().ordered() &&
           copies_.at(primary_)->core().Status().view() == view_ &&
           copies_.at(primary_)->core().Status().backup_behind() == 0;
  }

  // ---- The coordinator ----
  OrdersReceived Orders(uint32_t shard) const {
    OrdersReceived orders;
    orders.generation = Generation(1);
    orders.view = ViewNumber(view_);
    orders.primary = ShardId(primary_);
    orders.backup = ShardId(backup_);
    orders.roster = {RosterNumber(1), {Transcript::Member(1)}};
    orders.policy.policy = copies_.at(shard)->core().config().policy;
    return orders;
  }
  void Tell(uint32_t shard) {
    if (!copies_.contains(shard)) return;
    if (shard != primary_ && shard != backup_) return;
    copies_.at(shard)->Step(Orders(shard), now_);
    Collect();
  }
  void TakeWhole() {
    const PartitionStatus status = copies_.at(primary_)->core().Status();
    if (learning_ && status.view() == view_ && status.backup_whole()) learning_ = false;
  }
  void GiveBackup() {
    if (copies_.at(primary_)->core().Status().view() != view_) return;
    ++view_;
    backup_ = 3 - primary_;
    learning_ = true;
    copies_[backup_] = std::make_unique<Copy>(backup_, FirstState::kNothing, &acked_);
    Lose();
  }
  void KillBackup() {
    if (backup_ == 0) return;
    ++counts[learning_ ? "learner died" : "backup died"];
    Count(copies_.at(backup_)->core());
    copies_.erase(backup_);
    ++view_;
    backup_ = 0;
    learning_ = false;
    Lose();
  }
  // Or it is only cut off from the coordinator, and goes on as if nothing was.
  void KillPrimary() {
    if (backup_ == 0 || learning_) return;
    ++counts["primary died"];
    Count(copies_.at(primary_)->core());
    const bool lives = Pick(2) == 0;
    zombie_ = lives ? std::move(copies_.at(primary_)) : nullptr;
    zombie_view_ = ViewNumber(view_);
    copies_.erase(primary_);
    ++view_;
    primary_ = std::exchange(backup_, 0);
    if (!lives) return Lose();
    to_zombie_.clear();
    to_promoted_ = std::exchange(to_backup_, {});
    to_primary_.clear();
  }

  // ---- The network ----
  void Collect() {
    for (const uint32_t shard : {1, 2}) {
      if (!copies_.contains(shard)) continue;
      Copy& copy = *copies_.at(shard);
      Move(copy.to_backup, shard == primary_ ? &to_backup_ : nullptr);
      Move(copy.to_primary, shard == backup_ ? &to_primary_ : &to_zombie_);
    }
  }
  static void Move(std::deque<Frame>& from, std::deque<Frame>* to) {
    if (to != nullptr) to->insert(to->end(), from.begin(), from.end());
    from.clear();
  }
  void Lose() {
    to_backup_.clear();
    to_primary_.clear();
    ++connection_;
  }
  void Cut() {
    ++counts["cuts"];
    Lose();
    copies_.at(primary_)->Step(BackupDown{"cut"}, now_);
    Collect();
  }
  void Carry() {
    std::deque<Frame>& from = Pick(2) == 0 ? to_backup_ : to_primary_;
    if (from.empty()) return;
    const uint32_t to = &from == &to_backup_ ? backup_ : primary_;
    const Frame frame = std::move(from.front());
    from.pop_front();
    if (!copies_.contains(to)) return;
    copies_.at(to)->Deliver(frame, ConnectionId(connection_), now_);
    Collect();
  }

  void Push() {
    copies_.at(primary_)->Push(static_cast<uint32_t>(Pick(kSlices)), Pick(kItems),
                               ViewNumber(view_), now_);
    Collect();
  }
  void Tick() {
    for (const auto& [shard, copy] : copies_) copy->Step(ShardTick(), now_);
    Collect();
  }
  // Workers and the copy that was its backup still reach it.
  void BotherZombie() {
    zombie_->Push(static_cast<uint32_t>(Pick(kSlices)), Pick(kItems), zombie_view_, now_);
    zombie_->Step(ShardTick(), now_);
    Move(zombie_->to_backup, &to_promoted_);
    for (int i = 0; i < 3 && !to_promoted_.empty(); ++i) {
      const Frame frame = std::move(to_promoted_.front());
      to_promoted_.pop_front();
      copies_.at(primary_)->Deliver(frame, ConnectionId(connection_), now_);
      Collect();
    }
    for (int i = 0; i < 3 && !to_zombie_.empty(); ++i) {
      const Frame frame = std::move(to_zombie_.front());
      to_zombie_.pop_front();
      zombie_->Deliver(frame, ConnectionId(), now_);
    }
    if (Pick(20) == 0) zombie_ = nullptr;
  }

  void Count(const Partition& core) {
    const PartitionCounters& c = core.counters();
    counts["promotions"] += c.promotions;
    counts["snapshots"] += c.snapshots;
    counts["wholes"] += c.wholes;
    counts["resumed"] += c.resumed;
    counts["stale answers"] += c.stale_answers;
    counts["learned"] += c.learned;
    counts["repeated"] += c.repeated;
    counts["repeated again"] += c.repeated_again;
    counts["early records"] += c.early_records;
    counts["fenced records"] += c.fenced_records;
  }

  std::mt19937 random_;
  std::set<std::pair<uint32_t, uint64_t>> acked_;  // slice, item
  std::map<uint32_t, std::unique_ptr<Copy>> copies_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t view_ = 1;
  uint32_t primary_ = 1, backup_ = 0;
  bool learning_ = false;
  uint64_t connection_ = 100;
  std::deque<Frame> to_backup_, to_primary_;
  std::unique_ptr<Copy> zombie_;
  ViewNumber zombie_view_;
  std::deque<Frame> to_promoted_, to_zombie_;
};

TEST(PartitionPairTest, WhatIsAckedSurvives) {
  std::map<std::string, uint64_t> counts;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Pair pair(seed);
    pair.Run();
    for (const auto& [what, times] : pair.counts) counts[what] += times;
    if (testing::Test::HasFailure()) return;
  }
  for (const char* what :
       {"primary died", "backup died", "learner died", "cuts", "promotions", "snapshots", "wholes",
        "resumed", "stale answers", "learned", "repeated", "early records", "fenced records"}) {
    EXPECT_GT(counts[what], 0u) << what;
  }
}

TEST(PartitionPairTest, CopiesThatDifferAreFound) {
  for (const bool primary : {true, false}) {
    for (const size_t part : {0, 1}) {
      Pair pair(7);
      EXPECT_THAT(pair.RunSpoilt(primary, part),
                  testing::HasSubstr(" differ: after the update of record "));
    }
  }
}

}  // namespace
}  // namespace starling
