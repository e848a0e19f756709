// What a backup takes from its primary (docs/protocol.md, section 12): a snapshot if it has
// nothing, then records, which it repeats. It decides nothing and answers no other peer.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {

namespace {

constexpr uint32_t Bit(TensorPart part) { return 1u << static_cast<uint32_t>(part); }

// The tensors of a slice in a copy with this state.
uint32_t TensorsOf(const PartitionConfig::SliceInfo& slice, const PartitionState& state) {
  uint32_t parts = Bit(TensorPart::kVersion0);
  if (slice.updated && state.bsp()) parts |= Bit(TensorPart::kVersion1);
  if (slice.slots > 0) parts |= Bit(TensorPart::kSlot0);
  if (slice.slots > 1) parts |= Bit(TensorPart::kSlot1);
  if (state.copy().has_value()) parts |= Bit(TensorPart::kCut);
  return parts;
}

}  // namespace

// Whether the frame belongs to this copy's view and to the newest round of asking. If not, refuses
// or drops it. That the sender is the view's primary, or a shard at all, is the word of its
// certificate: any shard may claim it.
bool Partition::TakesFrom(const FrameReceived& frame) {
  const FrameHeader& h = frame.header;
  const auto refuse = [&](Answer answer, const std::string& text) {
    RefuseReplicated(frame, answer, text);
    return false;
  };
  if (h.key.run != config_.run) return refuse(Answer::kStaleRun, "this is another run");
  const bool backs = view_.value != 0 && backup_ == config_.self && primary_ != config_.self;
  if ((h.view != view_ || !backs) && !DefenceMasked(Defence::kBackupView)) {
    ++counters_.fenced_records;
    return h.view > view_ ? refuse(Answer::kNotHosted, "no orders for this view yet: try again")
                          : refuse(Answer::kStaleView, StaleViewText(h));
  }
  if (!fault_.empty()) return refuse(Answer::kStopped, fault_);
  if (h.request_id < primary_round_) {  // overtaken: the primary waits for no answer to it
    if (frame.payload.value != 0) Do(Release{frame.payload});
    return false;
  }
  primary_round_ = h.request_id;
  return true;
}

void Partition::RefuseReplicated(const FrameReceived& frame, Answer answer,
                                 const std::string& text) {
  Refuse(frame, {Verdict::kRefuse, answer, text});
}

void Partition::AnswerPrimary(const FrameReceived& frame) {
  SendFrame send{frame.connection, AnswerTo(frame.header, FrameType::kAck, Answer::kCounted), ""};
  send.header.flags = has_copy_ ? 0 : frame_flags::kSnapshot;
  send.header.clock = has_copy_ ? 0 : static_cast<Clock>(learner_.next);
  send.header.base_lsn = ordered_.lsn();
  Do(std::move(send));
}

void Partition::OnAsked(const FrameReceived& frame) {
  if (TakesFrom(frame)) AnswerPrimary(frame);
}

void Partition::On(const RecordReceived& received) {
  const FrameReceived& frame = received.frame;
  if (!TakesFrom(frame)) return;
  const Lsn next(ordered_.lsn().value + 1);
  if (!has_copy_) {
    if (frame.header.request_id != learner_.round ||
        learner_.tail.size() >= limits::kRecordsInFlightMax) {
      return RefuseReplicated(frame, Answer::kOverBudget,
                              "there is no snapshot for this record: ask again");
    }
    ++counters_.early_records;
    if (frame.payload.value != 0) Do(KeepPayload{frame.payload});
    learner_.tail.emplace_back(received.record, frame.payload);
    return;
  }
  if (received.record.lsn > next) {
    return RefuseReplicated(frame, Answer::kStaleClock,
                            absl::StrCat("record ", received.record.lsn.value, "; expected ",
                                         next.value, ": ask again"));
  }
  if (received.record.lsn < next) {
    ++counters_.repeated_again;
    if (frame.payload.value != 0) Do(Release{frame.payload});
  } else if (!RepeatRecord(received.record, frame.payload) || !IsSame(received.digests)) {
    return RefuseReplicated({frame.connection, frame.header, BufferId()}, Answer::kStopped, fault_);
  }
  AnswerPrimary(frame);
}

// Compares this copy with what the primary says of its own. False: they differ, and nobody can say
// which one is right.
bool Partition::IsSame(const CopyDigests& primary) {
  const auto differ = [&](const std::string& what, uint64_t here, uint64_t there) {
    fault_ = absl::StrFormat(
        "the two copies of partition %d differ: %s, the digest is %016x here and %016x at the "
        "primary",
        config_.partition.value, what, here, there);
    differs_ = log_stopped_ = true;
    Do(ReportFault{fault_, Origin()});
    return false;
  };
  if (primary.log != ordered_.digest()) {
    return differ(absl::StrCat("of the log up to record ", ordered_.lsn().value), ordered_.digest(),
                  primary.log);
  }
  // An update before this copy's snapshot was not applied here.
  const auto check = std::find_if(checks_.begin(), checks_.end(),
                                  [&](const auto& c) { return c.first == primary.checked; });
  if (check == checks_.end() || check->second == primary.slice) return true;
  return differ(absl::StrCat("after the update of record ", primary.checked.value), check->second,
                primary.slice);
}

// False: the record does not fit, so one of the copies is damaged. Releases the payload then.
bool Partition::RepeatRecord(const Record& record, BufferId payload) {
  EncodeRecord(record, &encoded_);
  const uint64_t digest = LogDigest(ordered_.digest(), encoded_);
  if (const absl::Status fits = ordered_.Repeat(record, digest); !fits.ok()) {
    fault_ = absl::StrCat("partition ", config_.partition.value,
                          ": the primary's log does not fit this copy: ", fits.message());
    log_stopped_ = true;
    Do(ReportFault{fault_, Origin()});
    if (payload.value != 0) Do(Release{payload});
    return false;
  }
  ++counters_.repeated;
  if (record.kind == RecordKind::kApply) {
    begun_steps_ = std::max(begun_steps_, static_cast<uint64_t>(config_.JobStep(record.work)) + 1);
  }
  log_.Append({record, digest, payload, {}});
  log_.CommitUpTo(log_.ordered());
  Advance();
  return true;
}

// ---- A learner ----

void Partition::On(const SnapshotReceived& received) {
  const FrameReceived& frame = received.frame;
  const FrameHeader& h = frame.header;
  if (!TakesFrom(frame)) return;
  if (h.clock == 0) BeginLearning(h);
  if (has_copy_ || h.request_id != learner_.round || h.clock != static_cast<Clock>(learner_.next)) {
    return RefuseReplicated(
        frame, Answer::kStaleClock,
        absl::StrCat("frame ", h.clock, " of a snapshot; expected ", learner_.next, ": ask again"));
  }
  const bool taken =
      h.kind == PayloadKind::kRecord ? AddState(received) : ReadState(frame) && TakeTensor(frame);
  if (!taken) return;
  ++learner_.next;
  if (learner_.next == h.samples && !FinishLearning(frame)) return;
  AnswerPrimary(frame);
}

// Drops what this copy had, since the primary sends everything.
void Partition::BeginLearning(const FrameHeader& first) {
  for (const auto& [record, payload] : learner_.tail) {
    if (payload.value != 0) Do(Release{payload});
  }
  for (const PartitionLog::Entry& entry : log_.pending()) {
    if (entry.payload.value != 0) Do(Release{entry.payload});
  }
  learner_ = Learner();
  learner_.round = first.request_id;
  learner_.begun_steps = first.min_lsn.value;
  has_copy_ = false;
  checks_.clear();
  log_ = PartitionLog();
  applied_ = ordered_ = PartitionState(&config_);
}

bool Partition::AddState(const SnapshotReceived& received) {
  const uint64_t most = PartitionState::BytesMax(config_);
  if (learner_.state.size() + received.state.size() > most) {
    RefuseReplicated(received.frame, Answer::kOverBudget,
                     absl::StrCat("a state of more than ", most, " bytes"));
    return false;
  }
  learner_.state += received.state;
  return true;
}

bool Partition::ReadState(const FrameReceived& frame) {
  if (learner_.read.has_value()) return true;
  PartitionState state(&config_);
  if (const absl::Status read = state.Read(learner_.state); !read.ok()) {
    RefuseReplicated(frame, Answer::kBadDigest, std::string(read.message()));
    return false;
  }
  learner_.read = std::move(state);
  learner_.state.clear();
  for (const auto& [id, slice] : slices_)
    learner_.missing[id] = TensorsOf(slice.info, *learner_.read);
  Do(BeginTensors{learner_.read->bsp()});
  return true;
}

bool Partition::TakeTensor(const FrameReceived& frame) {
  const FrameHeader& h = frame.header;
  const SliceWork* slice = FindSlice(h.key.slice);
  const uint32_t part =
      h.key.work.epoch <= static_cast<uint32_t>(TensorPart::kCut) ? 1u << h.key.work.epoch : 0;
  if (slice == nullptr || h.elements != slice->info.elements ||
      (learner_.missing.at(h.key.slice) & part) == 0) {
    RefuseReplicated(frame, Answer::kBadFrame,
                     absl::StrCat("tensor ", h.key.work.epoch, " of slice ", h.key.slice.value,
                                  " with ", h.elements, " elements is not one that partition ",
                                  config_.partition.value, " lacks"));
    return false;
  }
  learner_.missing.at(h.key.slice) &= ~part;
  InstallTensor install{h.key.slice, static_cast<TensorPart>(h.key.work.epoch), frame.payload};
  const bool two = learner_.read->bsp() && slice->info.updated;
  const uint64_t newest = two ? learner_.read->slice(h.key.slice).updates % 2 : 0;
  install.newest = h.key.work.epoch == newest;
  Do(install);
  Do(Release{frame.payload});
  return true;
}

bool Partition::FinishLearning(const FrameReceived& frame) {
  if (!ReadState(frame)) return false;
  for (const auto& [slice, parts] : learner_.missing) {
    if (parts == 0) continue;
    // The payload of the last frame is released already.
    RefuseReplicated({frame.connection, frame.header, BufferId()}, Answer::kBadFrame,
                     absl::StrCat("the snapshot lacks tensors of slice ", slice.value));
    return false;
  }
  has_copy_ = true;
  ++counters_.learned;
  ordered_ = applied_ = *std::exchange(learner_.read, std::nullopt);
  log_ = PartitionLog(ordered_.lsn());
  begun_steps_ = std::max(begun_steps_, learner_.begun_steps);
  for (const auto& [record, payload] : std::exchange(learner_.tail, {})) {
    // If a record was lost, the primary asks again.
    if (!fault_.empty() || record.lsn.value != ordered_.lsn().value + 1) {
      if (payload.value != 0) Do(Release{payload});
      continue;
    }
    RepeatRecord(record, payload);
  }
  return true;
}

}  // namespace starling
