// For tests: feeds a partition core and writes down what happens, an event a line, its actions
// indented.
#ifndef STARLING_SERVER_SHARD_CORE_TESTING_TRANSCRIPT_H_
#define STARLING_SERVER_SHARD_CORE_TESTING_TRANSCRIPT_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/shard/core/partition.h"

namespace starling {

// One line each.
std::string ToString(const PartitionEvent& event);
std::string ToString(const PartitionAction& action);

// A job of one partition: slices of `elements` each, batches of 8 samples in 4 micro-batches.
struct TranscriptOptions {
  ConsistencyPolicy policy;
  uint32_t slices = 1;
  uint64_t samples = 32;  // four steps an epoch
  uint64_t epochs = 2;
  uint32_t evaluate_every = 0;
  double rate_scale = 1;  // of each slice
  double decay = 0;
  double clip_norm = 0;      // of the whole gradient; all slices are clipped
  bool scales_loss = false;  // fp16
  uint32_t backup_workers = 0;
  uint32_t reporters = 1;
  uint32_t partition = 0;
  uint64_t open_items_max = limits::kLeasesPerWorkerMax;
  std::optional<PartitionConfig::Start> start = std::nullopt;
};

class Transcript {
 public:
  explicit Transcript(const TranscriptOptions& options) : partition_(Config(options)) {
    partition_.ObserveEffects([this](const Record& record) { records_.push_back(record); });
  }

  // Replicas 1 to n of roster 1, all entered at the first clock; what led there is not written
  // down.
  void Begin(uint32_t replicas) {
    Quietly([&] {
      std::vector<RosterMember> members;
      for (uint32_t r = 1; r <= replicas; ++r) members.push_back(Member(r));
      Orders(1, members, partition_.applied().cut_epochs());
      for (uint32_t r = 1; r <= replicas; ++r) Mark(r, frame_flags::kEnter);
    });
  }

  // ---- Events ----
  void Orders(uint64_t roster, std::vector<RosterMember> members, uint32_t epoch = 0,
              uint64_t generation = 1) {
    OrdersReceived orders = Base();
    orders.generation = Generation(generation);
    orders.roster = {RosterNumber(roster), std::move(members)};
    orders.epoch = epoch;
    Step(orders);
  }
  OrdersReceived Base() const {
    OrdersReceived orders;
    orders.generation = Generation(1);
    orders.view = ViewNumber(1);
    orders.primary = ShardId(1);
    orders.policy.policy = partition_.config().policy;
    orders.decider = ViewNumber(1);
    return orders;
  }
  // The payload of request n is buffer n.
  FrameHeader PushHeader(uint32_t replica, uint32_t slice, uint32_t epoch, uint64_t first,
                         uint32_t count) {
    FrameHeader h = Header(FrameType::kPush, replica);
    h.kind = PayloadKind::kDense;
    h.key.slice = SliceId(slice);
    h.key.work = {WorkPurpose::kTrain, epoch, first, count};
    h.elements = kElements;
    h.payload_bytes = kElements * sizeof(float);
    h.samples = static_cast<uint32_t>(partition_.config().SamplesIn(h.key.work));
    h.digest = kDigest;
    return h;
  }
  uint64_t Push(uint32_t replica, uint32_t slice, uint32_t epoch, uint64_t first, uint32_t count) {
    return Send(PushHeader(replica, slice, epoch, first, count));
  }
  uint64_t Close(uint32_t replica, Clock clock, uint32_t epoch, uint64_t first, uint32_t count) {
    FrameHeader h = Header(FrameType::kClose, replica);
    h.clock = clock;
    h.key.work = {WorkPurpose::kTrain, epoch, first, count};
    return Send(h);
  }
  uint64_t Mark(uint32_t replica, uint16_t flags, Clock clock = 0) {
    FrameHeader h = Header(FrameType::kClose, replica);
    h.flags = flags;
    h.clock = clock;
    return Send(h);
  }
  uint64_t Pull(uint32_t replica, uint32_t slice, Clock clock, uint64_t min_lsn = 0) {
    FrameHeader h = Header(FrameType::kPull, replica);
    h.key.slice = SliceId(slice);
    h.key.work.purpose = WorkPurpose::kTrain;
    h.clock = clock;
    h.min_lsn = Lsn(min_lsn);
    return Send(h);
  }
  uint64_t PullCut(uint32_t replica, uint32_t slice, uint32_t epoch) {
    FrameHeader h = Header(FrameType::kPull, replica);
    h.key.slice = SliceId(slice);
    h.key.work.purpose = WorkPurpose::kEvaluate;
    h.key.work.epoch = epoch;
    return Send(h);
  }
  uint64_t PullAsReader(uint32_t replica, uint32_t slice, uint16_t flags = 0) {
    FrameHeader h = Header(FrameType::kPull, replica);
    h.key.slice = SliceId(slice);
    h.key.work.purpose = WorkPurpose::kTrain;
    h.flags = frame_flags::kReader | flags;
    return Send(h);
  }
  void Verify(uint64_t buffer, uint64_t digest = kDigest, int64_t first_non_finite = -1) {
    Step(Verified{BufferId(buffer), digest, first_non_finite});
  }
  void Apply(uint64_t lsn) { Step(Applied{Lsn(lsn)}); }
  // The backup answers what went to it last: it has all up to here.
  void BackupHas(uint64_t lsn) {
    FrameHeader answer = to_backup_;
    answer.type = FrameType::kAck;
    answer.flags = 0;
    answer.base_lsn = Lsn(lsn);
    Step(BackupAnswered{answer, ""});
  }
  // The same, of all that there is, left out of the text.
  void Follow() {
    Quietly([&] { BackupHas(partition_.log().ordered().value); });
  }
  // A push with all that follows, left out of the text.
  void Contribute(uint32_t replica, uint32_t slice, uint32_t epoch, uint64_t first,
                  uint32_t count) {
    const std::string before = text_;
    const uint64_t lsn = partition_.log().ordered().value + 1;  // a cut may be ordered behind it
    Verify(Push(replica, slice, epoch, first, count));
    Apply(lsn);
    text_ = before;
  }
  void Quietly(const std::function<void()>& steps) {
    const std::string before = text_;
    steps();
    text_ = before;
  }

  FrameHeader Header(FrameType type, uint32_t replica) {
    FrameHeader h;
    h.type = type;
    h.key.run = partition_.config().run;
    h.partition = partition_.config().partition;
    h.view = view_;
    h.roster = roster_;
    h.policy = policy_;
    h.origin = {ReplicaId(replica), WorkerId(replica), Incarnation(incarnation_), 1};
    return h;
  }
  // By replica r on connection r, unless another is given; returns its request id.
  uint64_t Send(FrameHeader header, uint64_t connection = 0) {
    header.request_id = ++last_request_;
    const BufferId payload(header.payload_bytes != 0 ? last_request_ : 0);
    Step(FrameReceived{ConnectionId(connection != 0 ? connection : header.origin.replica.value),
                       header, payload});
    return last_request_;
  }
  void Step(const PartitionEvent& event) {
    absl::StrAppend(&text_, ToString(event), "\n");
    PartitionActions actions;
    partition_.Step(event, now_, actions);
    for (const PartitionAction& action : actions) {
      absl::StrAppend(&text_, "  ", ToString(action), "\n");
      if (const auto* ask = std::get_if<AskBackup>(&action)) to_backup_ = ask->header;
      if (const auto* record = std::get_if<Replicate>(&action)) to_backup_ = record->header;
    }
  }

  // ---- What is stamped on later frames ----
  void set_view(uint64_t view) { view_ = ViewNumber(view); }
  void set_roster(uint64_t roster) { roster_ = RosterNumber(roster); }
  void set_policy(uint32_t policy) { policy_ = PolicyNumber(policy); }
  void set_incarnation(uint64_t incarnation) { incarnation_ = incarnation; }
  void Advance(absl::Duration duration) { now_ += duration; }

  // What was written since the last call, after a line break.
  std::string Text() { return absl::StrCat("\n", std::exchange(text_, "")); }
  Partition& partition() { return partition_; }
  const std::vector<Record>& records() const { return records_; }  // that took effect

  static RosterMember Member(uint32_t replica, uint64_t incarnation = 1, Clock joined = 0) {
    return {ReplicaId(replica), WorkerId(replica), Incarnation(incarnation), joined};
  }

  static constexpr uint32_t kElements = 10;
  static constexpr uint64_t kDigest = 77;

  static PartitionConfig Config(const TranscriptOptions& options) {
    PartitionConfig config;
    config.run = {JobUid(7), 0};
    config.self = ShardId(1);
    for (uint32_t s = 0; s < options.slices; ++s)
      config.slices.push_back({SliceId(s), kElements, true, options.rate_scale, options.decay});
    const bool decides = options.clip_norm > 0 || options.scales_loss;
    for (auto& slice : config.slices) {
      slice.clipped = options.clip_norm > 0;
      slice.decided = decides;
    }
    config.partition = PartitionId(options.partition);
    config.clip_norm = options.clip_norm;
    config.scales_loss = options.scales_loss;
    config.backup_workers = options.backup_workers;
    for (uint32_t p = 0; p < options.reporters && decides; ++p)
      config.reporters.push_back(PartitionId(p));
    config.samples = options.samples;
    config.batch = 8;
    config.micro_batches = 4;
    config.steps = options.epochs * config.FullSteps();
    config.open_items_max = options.open_items_max;
    config.policy = options.policy;
    config.start = options.start;
    config.rate = [](int64_t step) { return 0.5f / static_cast<float>(1 + step); };
    config.evaluates_at = [every = options.evaluate_every](uint32_t epoch) {
      return every != 0 && (epoch + 1) % every == 0;
    };
    config.name_of_element = [](SliceId slice, uint32_t element) {
      return absl::StrCat("w", slice.value, "[", element, "]");
    };
    return config;
  }

 private:
  Partition partition_;
  std::vector<Record> records_;
  std::string text_;
  absl::Time now_ = absl::UnixEpoch();
  ViewNumber view_{1};
  RosterNumber roster_{1};
  PolicyNumber policy_;
  FrameHeader to_backup_;  // the last one
  uint64_t incarnation_ = 1;
  uint64_t last_request_ = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_TESTING_TRANSCRIPT_H_
