#include "tests/sim/shard_watch.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

// Never 0.
uint64_t HashOf(absl::Span<const float> values, uint64_t before) {
  return XXH3_64bits_withSeed(values.data(), values.size() * sizeof(float), before) | 1;
}

// Of all that a copy keeps of the slice.
uint64_t HashOf(const HostedSlice& slice) {
  uint64_t hash = HashOf(slice.newest, 1);
  for (const absl::Span<const float> part :
       {slice.before, slice.slots[0], slice.slots[1], slice.cut})
    hash = HashOf(part, hash);
  return hash;
}

// nullptr: the event is no frame of replication.
const FrameReceived* Replicated(const PartitionEvent& event) {
  if (const auto* record = std::get_if<RecordReceived>(&event)) return &record->frame;
  if (const auto* part = std::get_if<SnapshotReceived>(&event)) return &part->frame;
  const auto* const frame = std::get_if<FrameReceived>(&event);
  return frame != nullptr && frame->header.type == FrameType::kReplicate ? frame : nullptr;
}

uint64_t DigestOf(const Record& record) {
  std::string bytes;
  EncodeRecord(record, &bytes);
  return LogDigest(0, bytes);
}

}  // namespace

ShardWatch::Watched& ShardWatch::WatchedOf(const Partition& core) {
  Watched& watched = watched_[&core];
  if (watched.number > 0) return watched;
  watched.number = ++last_number_;
  watched.truth = cluster_->TruthOf(core.config().run);
  watched.learns = !core.has_copy();
  LogOf(core).copies.insert(&core);
  if (core.has_copy() && !core.config().start.has_value()) {
    watched.repeater =
        std::make_unique<Repeater>(&cluster_->world(), core.config(), *watched.truth);
  }
  return watched;
}

ShardWatch::LogTruth& ShardWatch::LogOf(const Partition& core) {
  return logs_[{core.config().run, core.config().partition}];
}

void ShardWatch::OnStep(const Partition& core, const PartitionEvent& event,
                        const PartitionActions& actions) {
  Watched& watched = WatchedOf(core);
  On(core, watched, event);
  const uint64_t wholes = core.counters().wholes;
  if (std::exchange(watched.wholes, wholes) < wholes &&
      cluster_->network().faults().shards_apart > absl::ZeroDuration())
    cluster_->world().Count("whole backups over slow links");
  if (std::exchange(watched.learns, !core.has_copy()) && core.has_copy()) CompareState(core);
  for (const PartitionAction& action : actions) On(core, watched, action);
  const FrameReceived* const replicated = Replicated(event);
  if (replicated == nullptr || replicated->header.view == watched.view) return;
  const bool refused = std::none_of(actions.begin(), actions.end(), [](const auto& action) {
    const auto* const answer = std::get_if<SendFrame>(&action);
    return answer != nullptr && answer->header.type == FrameType::kAck;
  });
  if (refused || replicated->header.view.value == core.Status().view()) return;
  cluster_->world().Violate(Promise::kG4, "a frame of replication of another view was taken");
}

void ShardWatch::OnCarriedOut(const Partition& core, const Record& record, Payload payload,
                              const HostedSlice& slice) {
  const Watched& watched = WatchedOf(core);
  if (watched.repeater != nullptr) watched.repeater->OnCarriedOut(record, payload, slice);
  cluster_->checkpoints().OnCarriedOut(core.config().run, record, slice);
  Compare(core, "copies: values compared", record.lsn, HashOf(slice),
          LogOf(core).positions[record.lsn].values);
}

void ShardWatch::OnEffect(const Partition& core, const Record& record) {
  const Watched& watched = WatchedOf(core);
  if (watched.repeater != nullptr) watched.repeater->OnEffect(core, record);
  Compare(core, "copies: records compared", record.lsn, core.applied().digest(),
          LogOf(core).positions[record.lsn].digest);
  CompareState(core);
}

// The digest alone says nothing of what came with a snapshot: it is in there, too.
void ShardWatch::CompareState(const Partition& core) {
  const std::string bytes = core.applied().Write();
  const Lsn at = core.applied().lsn();
  Compare(core, "copies: states compared", at, XXH3_64bits(bytes.data(), bytes.size()) | 1,
          LogOf(core).positions[at].state);
}

void ShardWatch::Compare(const Partition& core, const char* what, Lsn at, uint64_t has,
                         uint64_t& known) {
  if (known == 0) {
    known = has;
    return;
  }
  cluster_->world().Count(what);
  if (known == has) return;
  cluster_->world().Violate(
      Promise::kG4, absl::StrCat(what, ": partition ", core.config().partition.value, " on shard ",
                                 core.config().self.value, " differs at position ", at.value));
}

void ShardWatch::OnGone(const Partition& core, absl::Span<const HostedSlice> slices) {
  const auto watched = watched_.extract(&core);
  if (watched.empty()) return;
  LogTruth& log = LogOf(core);
  log.copies.erase(&core);
  if (core.has_copy() && core.log().quiet() && !slices.empty()) {
    uint64_t hash = 1;
    for (const HostedSlice& slice : slices) {
      hash = HashOf(slice.newest, hash);
      for (const absl::Span<const float> slot : slice.slots) hash = HashOf(slot, hash);
    }
    const Lsn at = core.applied().lsn();
    Compare(core, "copies: values compared at the end", at, hash, log.positions[at].ended);
  }
  Count(core.counters());
  cluster_->world().Count("records that took effect", core.applied().lsn().value);
  if (watched.mapped().repeater != nullptr) watched.mapped().repeater->OnGone(core, slices);
}

void ShardWatch::OnDied(const Partition& core) {
  if (watched_.erase(&core) == 0) return;
  LogOf(core).copies.erase(&core);
  Count(core.counters());
  cluster_->world().Count("records that took effect", core.applied().lsn().value);
}

// What is acked or read is not lost with one shard: where the durable view has a whole backup, that
// has it at this moment, and so has the primary, if it is another one by now.
void ShardWatch::CheckHeld(const Partition& core, Lsn lsn, const char* what) {
  const PartitionId partition = core.config().partition;
  for (const View& view : cluster_->coordinator().StoredViews(core.config().run.job.value)) {
    if (PartitionId(view.partition()) != partition) continue;
    for (const Partition* const copy : LogOf(core).copies) {
      const ShardId shard = copy->config().self;
      const bool backs = shard == ShardId(view.backup()) && !view.learning();
      if (copy == &core || (!backs && shard != ShardId(view.primary()))) continue;
      cluster_->world().Count(backs ? "positions that a backup must have"
                                    : "positions of a primary that was replaced");
      if (copy->has_copy() && copy->ordered().lsn() >= lsn) continue;
      cluster_->world().Violate(
          Promise::kG4,
          absl::StrCat(what, " of partition ", partition.value, " on shard ",
                       core.config().self.value, " at position ", lsn.value, ", and shard ",
                       shard.value, " has ", copy->ordered().lsn().value));
    }
  }
}

// Whichever copy is the first.
void ShardWatch::OnRecordApplied(const Partition& core, Watched& watched, const Record& record) {
  LogTruth& log = LogOf(core);
  if (std::exchange(log.positions[record.lsn].applied, true)) return;
  const auto push = log.pushes.find({record.lsn, DigestOf(record)});
  if (push == log.pushes.end()) return;  // of another log: a violation already
  watched.truth->OnApplied(core.config().partition, record, push->second);
  cluster_->world().Trace(record.lsn.value, record.work.first);
}

// What a record applies came to its primary as this push.
void ShardWatch::NotePush(LogTruth& log, const Partition& core, const Watched& watched,
                          const Record& record, BufferId payload) {
  if (!core.leads() || payload.value == 0) return;
  log.pushes[{record.lsn, DigestOf(record)}] = watched.pushes.at(payload);
}

// The worker writes to the memory that it shares, if the shard still has it. What is applied is
// what was checked.
void ShardWatch::OnVerified(Watched& watched, BufferId payload) {
  const auto shared = watched.shared.extract(payload);
  if (shared.empty()) return;
  const std::shared_ptr<std::vector<uint8_t>> memory = shared.mapped().lock();
  if (memory == nullptr) return;
  cluster_->world().Count("shared memory that changed after its check");
  for (uint8_t& byte : *memory) byte ^= 0x3F;
}

void ShardWatch::On(const Partition& core, Watched& watched, const PartitionEvent& event) {
  World& world = cluster_->world();
  const PartitionId partition = core.config().partition;
  if (const auto* orders = std::get_if<OrdersReceived>(&event)) {
    watched.view = std::max(watched.view, orders->view);
    if (!core.leads()) return;
    if (watched.since.value == 0) {
      watched.since = orders->view;
      if (watched.since.value > 1) world.Count("promotions");
    }
    LogTruth& log = LogOf(core);
    log.view = std::max(log.view, watched.view);
    if (watched.view < log.view) return;  // it was replaced, and does not know yet
    watched.truth->OnRoster(partition, orders->roster);
    watched.truth->OnPolicyOrdered(partition, orders->policy);
    if (orders->next_policy.has_value())
      watched.truth->OnPolicyOrdered(partition, *orders->next_policy);
    if (orders->training_end) watched.truth->OnTrainingEnd(partition, *orders->training_end);
  } else if (const auto* frame = std::get_if<FrameReceived>(&event)) {
    if (frame->payload.value == 0) return;
    watched.pushes[frame->payload] = frame->header;
    if (frame->header.type == FrameType::kPush)
      watched.shared[frame->payload] = cluster_->streams().TakeShared(frame->header);
  } else if (const auto* verified = std::get_if<Verified>(&event)) {
    OnVerified(watched, verified->payload);
  } else if (const auto* record = std::get_if<RecordReceived>(&event)) {
    const FrameReceived& carrier = record->frame;
    if (carrier.payload.value != 0) watched.pushes[carrier.payload] = carrier.header;
  } else if (const auto* measured = std::get_if<Measured>(&event)) {
    watched.truth->OnNorm(watched.measured.at(measured->payload),
                          watched.pushes.at(measured->payload).key.work, measured->norm2);
    watched.measured.erase(measured->payload);
  } else if (const auto* applied = std::get_if<Applied>(&event)) {
    const auto applying = watched.applying.extract(applied->lsn);
    if (applying.empty() || applied->first_non_finite >= 0) return;
    OnRecordApplied(core, watched, applying.mapped());
  }
}

void ShardWatch::On(const Partition& core, Watched& watched, const PartitionAction& action) {
  World& world = cluster_->world();
  const PartitionId partition = core.config().partition;
  if (const auto* verify = std::get_if<Verify>(&action)) {
    if (watched.view < LogOf(core).view) return;
    watched.truth->OnAccepted(partition, watched.pushes.at(verify->payload), core.config().run,
                              watched.since, watched.view);
  } else if (const auto* measure = std::get_if<Measure>(&action)) {
    watched.measured[measure->payload] = measure->slice;
  } else if (const auto* apply = std::get_if<ApplyNow>(&action)) {
    watched.applying[apply->record.lsn] = apply->record;
    NotePush(LogOf(core), core, watched, apply->record, apply->payload);
  } else if (const auto* policy = std::get_if<SwitchPolicy>(&action)) {
    watched.truth->OnPolicySwitched(partition, policy->number);
  } else if (const auto* value = std::get_if<SendValue>(&action)) {
    const FrameHeader& h = value->header;
    CheckHeld(core, h.base_lsn, "a value");
    values_[KeyOf(h)] = watched.truth->OnValueAnswered(partition, h.key.slice, value->version,
                                                       h.base_lsn, &core.applied());
  } else if (const auto* send = std::get_if<SendFrame>(&action)) {
    if (send->header.type == FrameType::kAck && core.leads())
      CheckHeld(core, send->header.base_lsn, "an ack");
  } else if (const auto* release = std::get_if<Release>(&action)) {
    watched.pushes.erase(release->buffer);
    watched.shared.erase(release->buffer);
  } else if (std::holds_alternative<CopyForCut>(action)) {
    world.Count("copies for evaluation");
  } else if (std::holds_alternative<MergeSums>(action)) {
    world.Count("merged subtrees");
  } else if (std::holds_alternative<ReportFault>(action)) {
    world.Count("partitions that stopped themselves");
  } else if (const auto* replicate = std::get_if<Replicate>(&action)) {
    NotePush(LogOf(core), core, watched, replicate->record, replicate->payload);
  }
}

ShardWatch::PullKey ShardWatch::KeyOf(const FrameHeader& value) {
  return {value.key.run, value.partition, value.origin.incarnation, value.request_id,
          value.key.slice};
}

ValueTruth ShardWatch::OnValueSent(const Process&, const FrameHeader& header,
                                   absl::Span<const uint8_t> bytes) {
  JobTruth* const truth = cluster_->TruthOf(header.key.run);
  const auto* const floats = reinterpret_cast<const float*>(bytes.data());
  const Values values(floats, floats + bytes.size() / sizeof(float));
  if (header.key.work.purpose == WorkPurpose::kEvaluate)
    truth->OnCut(header.key.slice, header.key.work.epoch, values);
  // A host answers without a core for a partition that has ended.
  const auto answered = values_.extract(KeyOf(header));
  ValueTruth value = answered.empty() ? truth->OnValueAnswered(header.partition, header.key.slice,
                                                               0, header.base_lsn)
                                      : answered.mapped();
  value.run = header.key.run;
  const bool exact =
      (header.flags & frame_flags::kReader) != 0 && (header.flags & frame_flags::kVersion) != 0;
  if (exact) truth->OnVersionRead(header.key.slice, static_cast<uint64_t>(header.clock), values);
  return value;
}

void ShardWatch::Count(const PartitionCounters& c) {
  World& world = cluster_->world();
  world.Count("dedup hits", c.already_counted);
  world.Count("joined retries", c.joined);
  world.Count("blocked pulls", c.blocked_pulls);
  world.Count("superseded pulls", c.superseded_pulls);
  world.Count("frames that waited for orders", c.parked);
  world.Count("fenced requests", c.fenced);
  world.Count("refused requests", c.refused);
  world.Count("replaced subtrees", c.replaced_sums);
  world.Count("duplicate subtrees", c.duplicate_sums);
  world.Count("sealed steps", c.sealed);
  world.Count("cuts", c.cuts);
  world.Count("requests of an earlier policy", c.earlier_policy);
  world.Count("held sums", c.held_sums);
  world.Count("decisions", c.decisions);
  world.Count("repeated reports", c.repeated_reports);
  world.Count("duplicate reports", c.duplicate_reports);
  world.Count("stale decisions", c.stale_decisions);
  world.Count("snapshots", c.snapshots);
  world.Count("snapshots that came whole", c.learned);
  world.Count("whole backups", c.wholes);
  world.Count("resumed backups", c.resumed);
  world.Count("stale answers of backups", c.stale_answers);
  world.Count("repeated records", c.repeated);
  world.Count("early records", c.early_records);
  world.Count("fenced records", c.fenced_records);
  world.Count("captures", c.captures);
  world.Count("missed captures", c.missed_captures);
  world.Count("steps that waited for a late worker", c.late_steps);
}

std::string ShardWatch::ToString() const {
  std::map<uint64_t, std::string> texts;
  for (const auto& [core, watched] : watched_) {
    const PartitionStatus status = core->Status();
    texts[watched.number] = absl::StrCat(
        " [job ", core->config().run.job.value, " partition ", core->config().partition.value,
        " epoch ", status.epoch(), " cut ", status.cut_epochs(), " covered ",
        status.covered_floor(), core->leads() ? " leads view " : " backs view ", status.view(),
        " lsn ", status.lsn(), " behind ", status.backup_behind(),
        status.backup_whole() ? " whole" : "", " roster ", status.roster(), " policy ",
        status.policy(), " begun ", status.begun_steps(), " clocks ", status.clock_min(), "-",
        status.clock_max(), "]");
  }
  std::string all = "partitions:";
  for (const auto& [number, text] : texts) absl::StrAppend(&all, text);
  return all;
}

}  // namespace starling::sim
