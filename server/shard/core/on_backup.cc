// What a primary tells its backup, and what it may commit (docs/protocol.md, section 12). It asks
// the backup where it is, sends a snapshot if the backup has nothing, and then sends records in
// order.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

// A new view. Answers from the previous view's backup no longer count.
void Partition::BeginTalk() {
  if (talk_.stage == Talk::Stage::kCopying) Do(DropSnapshot{});
  Talk next;
  next.round = talk_.round;
  next.not_before = talk_.not_before;
  talk_ = next;
  if (backup_.value != 0) AskAgain(now_);
  Commit();
}

// Starts a new round: answers of the previous one are void.
void Partition::AskAgain(absl::Time at) {
  if (talk_.stage == Talk::Stage::kCopying) Do(DropSnapshot{});
  talk_.stage = Talk::Stage::kAsking;
  talk_.ask_at = std::max(at, talk_.not_before);
  ++talk_.round;
}

// The same round if no answer came: the answer to any of its questions will do.
void Partition::Ask() {
  talk_.ask_at = now_ + kAskBackupPeriod;
  Do(AskBackup{ToBackup()});
}

absl::Duration Partition::AskBackOff() {
  return std::min(kAskBackupSoon * (1 << std::min(talk_.refusals++, 5)), kAskBackupLate);
}

FrameHeader Partition::ToBackup() const {
  FrameHeader header;
  header.type = FrameType::kReplicate;
  header.key.run = config_.run;
  header.partition = config_.partition;
  header.view = view_;
  header.request_id = talk_.round;
  return header;
}

void Partition::TryTalk() {
  switch (talk_.stage) {
    case Talk::Stage::kNone: return;
    case Talk::Stage::kAsking:
      if (now_ >= talk_.ask_at) Ask();
      return;
    case Talk::Stage::kTaking:
      // The host's values are those of applied() only while nothing is being carried out.
      if (!log_.quiet() || log_stopped_) return;
      talk_.stage = Talk::Stage::kCopying;
      talk_.frames = talk_.frames_sent = talk_.frames_acked = 0;
      talk_.snapshot_at = talk_.acked = talk_.sent = log_.applied();
      talk_.heard = now_;
      ++counters_.snapshots;
      Do(TakeSnapshot{applied_.Write()});
      return;
    case Talk::Stage::kCopying:
    case Talk::Stage::kFollowing: {
      const bool waits = talk_.acked < talk_.sent || talk_.frames_acked < talk_.frames_sent;
      if (!waits) talk_.heard = now_;
      if (now_ >= talk_.heard + kBackupSilence) AskAgain(now_);
      return;
    }
  }
}

void Partition::On(const BackupAnswered& answer) {
  const FrameHeader& h = answer.header;
  if (talk_.stage == Talk::Stage::kNone || !IsPrimary() || h.key.run != config_.run) return;
  const bool refused = h.type != FrameType::kAck;
  const bool present = h.request_id == talk_.round && (refused || h.view == view_);
  if (!present && (refused || !DefenceMasked(Defence::kAckView))) {
    ++counters_.stale_answers;
    return;
  }
  talk_.heard = now_;
  if (refused) return AskAgain(now_ + AskBackOff());
  const bool has_copy = (h.flags & frame_flags::kSnapshot) == 0;
  switch (talk_.stage) {
    case Talk::Stage::kNone:
    case Talk::Stage::kTaking: return;
    case Talk::Stage::kAsking:
      ++talk_.round;  // answers to its other questions are void
      // Records that took effect are no longer here to be sent.
      if (has_copy && h.base_lsn >= log_.applied() && h.base_lsn <= log_.ordered()) {
        talk_.sent = h.base_lsn;
        ++counters_.resumed;
        Follow(h.base_lsn);
      } else {
        talk_.stage = Talk::Stage::kTaking;
      }
      return;
    case Talk::Stage::kCopying:
      if (has_copy) return Follow(h.base_lsn);
      talk_.frames_acked =
          std::max(talk_.frames_acked, std::min(static_cast<uint64_t>(h.clock), talk_.frames_sent));
      SendSnapshotFrames();
      return;
    case Talk::Stage::kFollowing:
      if (has_copy) Follow(h.base_lsn);
      return;
  }
}

void Partition::On(const BackupDown& down) {
  if (talk_.stage == Talk::Stage::kNone) return;
  if (down.retry_after > absl::ZeroDuration()) talk_.not_before = now_ + down.retry_after;
  AskAgain(now_ + AskBackOff());
}

void Partition::On(const SnapshotTaken& taken) {
  if (talk_.stage != Talk::Stage::kCopying || talk_.frames != 0) return;
  talk_.frames = taken.frames;
  SendSnapshotFrames();
  SendRecords();
  Commit();
}

// The backup is complete up to `has`.
void Partition::Follow(Lsn has) {
  if (talk_.stage == Talk::Stage::kCopying) Do(DropSnapshot{});
  talk_.stage = Talk::Stage::kFollowing;
  talk_.refusals = 0;
  talk_.frames_acked = talk_.frames_sent;
  talk_.acked = std::max(talk_.acked, std::min(has, log_.ordered()));
  talk_.sent = std::max(talk_.sent, talk_.acked);
  if (!talk_.whole && talk_.acked >= log_.committed()) {
    talk_.whole = true;
    ++counters_.wholes;
  }
  SendRecords();
  Commit();
}

void Partition::SendSnapshotFrames() {
  while (talk_.frames_sent < talk_.frames &&
         talk_.frames_sent - talk_.frames_acked < limits::kSnapshotFramesInFlightMax) {
    FrameHeader header = ToBackup();
    header.flags = frame_flags::kSnapshot;
    header.base_lsn = talk_.snapshot_at;
    header.min_lsn = Lsn(begun_steps_);
    header.clock = static_cast<Clock>(talk_.frames_sent++);
    header.samples = static_cast<uint32_t>(talk_.frames);
    Do(SendSnapshot{header});
  }
}

// Records follow the first frame of a snapshot, which makes a learner collect them.
void Partition::SendRecords() {
  const bool open = talk_.stage == Talk::Stage::kFollowing ||
                    (talk_.stage == Talk::Stage::kCopying && talk_.frames_sent > 0);
  if (!open || log_stopped_) return;
  while (talk_.sent < log_.ordered() &&
         talk_.sent.value - talk_.acked.value < limits::kRecordsInFlightMax) {
    ++talk_.sent.value;
    const PartitionLog::Entry& entry = *log_.Find(talk_.sent);
    FrameHeader header = ToBackup();
    header.base_lsn = talk_.sent;
    const auto [checked, slice] = checks_.empty() ? std::pair(Lsn(), uint64_t{0}) : checks_.back();
    Do(Replicate{header, entry.record, entry.payload, {entry.digest, checked, slice}});
  }
}

// Commits everything if there is no backup, what is under way or before the snapshot if the backup
// learns, and only what the backup has once it follows or was whole.
void Partition::Commit() {
  Lsn most = log_.ordered();
  if (talk_.whole || talk_.stage == Talk::Stage::kFollowing) {
    most = DefenceMasked(Defence::kCommitBeforeApply) ? talk_.sent : talk_.acked;
  } else if (talk_.stage == Talk::Stage::kCopying) {
    most = talk_.sent;
  }
  log_.CommitUpTo(most);
  Advance();
}

}  // namespace starling
