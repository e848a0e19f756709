// The common part of all requests: form, fences, and waiting for orders that have not arrived yet.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "server/shard/core/partition.h"

namespace starling {
namespace {

std::string ProcessText(const Origin& origin) {
  return absl::StrCat("worker ", origin.worker.value, " incarnation ", origin.incarnation.value);
}

}  // namespace

void Partition::On(const FrameReceived& frame) { OnFrame(frame, now_ + kParkedFrameDeadline); }

void Partition::OnFrame(const FrameReceived& frame, absl::Time deadline) {
  if (frame.header.type == FrameType::kDecision) return OnReport(frame);
  if (frame.header.type == FrameType::kReplicate) return OnAsked(frame);
  Verdict verdict = CheckForm(frame.header);
  if (verdict.kind == Verdict::kPass) verdict = CheckFences(frame.header);
  if (verdict.kind == Verdict::kRefuse) return Refuse(frame, verdict);
  if (verdict.kind == Verdict::kPark) return Park(frame, deadline);
  if (!IsReaderPull(frame.header) && IsOvertaken(frame)) {
    if (frame.payload.value != 0) Do(Release{frame.payload});
    return;
  }
  if (IsOfEarlierPolicy(frame.header)) return OnEarlierPolicy(frame);
  switch (frame.header.type) {
    case FrameType::kPush: return OnPush(frame, deadline);
    case FrameType::kClose: return OnClose(frame);
    default: return OnPull(frame);
  }
}

// A worker that opens a new stream sends everything again there. Late frames from the old stream
// are dropped: an old PULL must not replace its retry, nor an old PARK undo an ENTER.
bool Partition::IsOvertaken(const FrameReceived& frame) {
  const Origin& origin = frame.header.origin;
  const auto [it, first] =
      streams_.try_emplace(origin.replica, origin.incarnation, frame.connection);
  auto& [incarnation, newest] = it->second;
  if (origin.incarnation == incarnation && frame.connection < newest) return true;
  incarnation = origin.incarnation;
  newest = frame.connection;
  return false;
}

Partition::Verdict Partition::CheckForm(const FrameHeader& h) const {
  const auto bad = [](std::string text) {
    return Verdict{Verdict::kRefuse, Answer::kBadFrame, std::move(text)};
  };
  if (h.type != FrameType::kPush && h.type != FrameType::kClose && h.type != FrameType::kPull) {
    return bad(
        absl::StrCat("frame type ", static_cast<int>(h.type), "; expected push, close or pull"));
  }
  if (h.partition != config_.partition) {
    return {Verdict::kRefuse, Answer::kNotHosted,
            absl::StrCat("partition ", h.partition.value, "; this is ", config_.partition.value)};
  }
  if (h.clock < 0 || h.clock > limits::kClockMax) {
    return bad(absl::StrCat("clock ", h.clock, "; expected 0 to ", limits::kClockMax));
  }
  if (h.type != FrameType::kPush && h.kind != PayloadKind::kNone) {
    return bad(absl::StrCat("payload kind ", static_cast<int>(h.kind), " with ", h.payload_bytes,
                            " bytes; a close or a pull has no payload"));
  }
  if (h.type == FrameType::kClose) return CheckClose(h);
  const uint16_t known = h.type == FrameType::kPush ? frame_flags::kSkipped
                                                    : frame_flags::kReader | frame_flags::kVersion;
  if ((h.flags & ~known) != 0)
    return bad(absl::StrCat("flags ", h.flags, " of a ", FrameTypeName(h.type)));
  const SliceWork* slice = FindSlice(h.key.slice);
  if (slice == nullptr) {
    return bad(absl::StrCat("slice ", h.key.slice.value, " is not in partition ",
                            config_.partition.value));
  }
  if (h.type == FrameType::kPull) return {};
  if (!slice->info.updated)
    return bad(absl::StrCat("slice ", h.key.slice.value, " is frozen: nothing to push"));
  if (h.kind != PayloadKind::kDense || h.codec != Codec::kFp32)
    return bad("expected a dense fp32 payload");
  if (h.elements != slice->info.elements || h.payload_bytes != h.elements * sizeof(float)) {
    return bad(absl::StrCat("slice ", h.key.slice.value, " has ", slice->info.elements,
                            " elements; got ", h.elements, " in ", h.payload_bytes, " bytes"));
  }
  if (!config_.scales_loss && ((h.flags & frame_flags::kSkipped) != 0 || h.loss_scale_log2 != 0))
    return bad("a scaled or skipped gradient; the job's precision is not fp16");
  return CheckWork(h);
}

Partition::Verdict Partition::CheckClose(const FrameHeader& h) const {
  switch (h.flags) {
    case 0: return CheckWork(h);
    case frame_flags::kEnter:
    case frame_flags::kSkip:
    case frame_flags::kPark: return {};
    default:
      return {Verdict::kRefuse, Answer::kBadFrame,
              absl::StrCat("a close with flags ", h.flags,
                           "; expected none, or one of enter, skip, park")};
  }
}

Partition::Verdict Partition::CheckWork(const FrameHeader& h) const {
  const auto bad = [](std::string text) {
    return Verdict{Verdict::kRefuse, Answer::kBadFrame, std::move(text)};
  };
  const WorkRange& work = h.key.work;
  if (work.purpose != WorkPurpose::kTrain) return bad("expected training work");
  if (!std::has_single_bit(work.count) || work.count > config_.micro_batches ||
      work.first % work.count != 0) {
    return bad(absl::StrCat("[", work.first, ", +", work.count, ") is not an aligned subtree of ",
                            config_.micro_batches, " micro-batches"));
  }
  if (config_.ItemOf(work) >= config_.StepsIn(work.epoch)) {
    return bad(absl::StrCat("epoch ", work.epoch, " has ", config_.StepsIn(work.epoch),
                            " steps; got step ", config_.ItemOf(work)));
  }
  // Under another policy the frame is not counted.
  const bool present = h.policy == applied_.policy().number;
  if (present && !applied_.bsp() && work.count != config_.micro_batches) {
    return bad(absl::StrCat("the unit of work is a whole step of ", config_.micro_batches,
                            " micro-batches; got ", work.count));
  }
  if (present && applied_.bsp() && h.type == FrameType::kClose &&
      h.clock != config_.JobStep(work)) {
    return bad(absl::StrCat("the clock of job step ", config_.JobStep(work),
                            " is that number; got ", h.clock));
  }
  if (h.type == FrameType::kPush && h.samples != config_.SamplesIn(work)) {
    return bad(absl::StrCat("the work has ", config_.SamplesIn(work), " samples; got ", h.samples));
  }
  return {};
}

std::string Partition::StaleViewText(const FrameHeader& h) const {
  return absl::StrCat("view ", h.view.value, "; partition ", config_.partition.value,
                      " is in view ", view_.value, " on shard ", primary_.value);
}

Partition::Verdict Partition::CheckFences(const FrameHeader& h) const {
  if (view_.value == 0) {
    return {Verdict::kRefuse, Answer::kNotHosted,
            absl::StrCat("partition ", config_.partition.value, " has no orders yet: try again")};
  }
  if (h.key.run != config_.run && !DefenceMasked(Defence::kRunFence)) {
    return {Verdict::kRefuse, Answer::kStaleRun,
            absl::StrCat("run ", h.key.run.job.value, ".", h.key.run.era, "; this is ",
                         config_.run.job.value, ".", config_.run.era)};
  }
  if (!DefenceMasked(Defence::kViewFence)) {
    if (h.view > view_) return {Verdict::kPark, Answer::kNone, ""};
    if (h.view < since_ || !IsPrimary())
      return {Verdict::kRefuse, Answer::kStaleView, StaleViewText(h)};
  }
  if (IsReaderPull(h) || ordered_.clocks().IsMember(h.origin) ||
      DefenceMasked(Defence::kIncarnationFence))
    return h.policy > applied_.policy().number && IsTrainingRequest(h)
               ? Verdict{Verdict::kPark, Answer::kNone, ""}
               : Verdict{};
  if (h.roster > ordered_.roster()) return {Verdict::kPark, Answer::kNone, ""};
  return {Verdict::kRefuse, Answer::kStaleIncarnation,
          absl::StrCat(ProcessText(h.origin), " is not in roster ", ordered_.roster().value,
                       ": register again")};
}

void Partition::Park(const FrameReceived& frame, absl::Time deadline) {
  if (!frame.may_wait) {
    return Refuse(frame, {Verdict::kRefuse, Answer::kOverBudget,
                          "the shard has no room for more frames that wait for orders: try again"});
  }
  ParkedUse& use = parked_use_[frame.connection];
  if (use.frames + 1 > limits::kParkedFramesPerConnectionMax ||
      use.bytes + frame.header.payload_bytes > limits::kParkedBytesPerConnectionMax) {
    return Refuse(frame, {Verdict::kRefuse, Answer::kOverBudget,
                          absl::StrCat(use.frames, " frames with ", use.bytes,
                                       " bytes are already waiting: try again")});
  }
  ++use.frames;
  use.bytes += frame.header.payload_bytes;
  if (!unparking_) ++counters_.parked;
  parked_.push_back({frame, deadline});
}

uint64_t Partition::parked_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [connection, use] : parked_use_) bytes += use.bytes;
  return bytes;
}

std::vector<std::pair<ConnectionId, FrameHeader>> Partition::ParkedFrames() const {
  std::vector<std::pair<ConnectionId, FrameHeader>> frames;
  for (const Parked& parked : parked_)
    frames.emplace_back(parked.frame.connection, parked.frame.header);
  return frames;
}

void Partition::Unpark() {
  std::deque<Parked> waiting = std::exchange(parked_, {});
  parked_use_.clear();
  unparking_ = true;
  for (const Parked& parked : waiting) OnFrame(parked.frame, parked.deadline);
  unparking_ = false;
}

void Partition::ExpireParked() {
  const auto expired = [&](const Parked& parked) {
    if (parked.deadline > now_) return false;
    ParkedUse& use = parked_use_[parked.frame.connection];
    --use.frames;
    use.bytes -= parked.frame.header.payload_bytes;
    Refuse(parked.frame,
           {Verdict::kRefuse, Answer::kNotHosted,
            absl::StrCat(
                "waited ", absl::FormatDuration(kParkedFrameDeadline), " for view ",
                parked.frame.header.view.value, ", roster ", parked.frame.header.roster.value,
                ", policy ", parked.frame.header.policy.value, ", epoch ",
                parked.frame.header.key.work.epoch, "; this shard is at ", view_.value, ", ",
                applied_.roster().value, ", ", applied_.policy().number.value, ", ", open_epoch_,
                policies_.empty() ? ""
                                  : absl::StrCat(", and policy ", policies_.front().number.value,
                                                 " begins at step ", policies_.front().step),
                ": try again")});
    return true;
  };
  std::erase_if(parked_, expired);
}

bool Partition::AddWaiter(Waiters& waiters, const Waiter& added, size_t limit) {
  for (const Waiter& waiter : waiters) {  // the network duplicated a request
    if (waiter.connection == added.connection &&
        waiter.request.request_id == added.request.request_id)
      return true;
  }
  if (waiters.size() >= limit) return false;
  waiters.push_back(added);
  return true;
}

void Partition::Forget(Waiters& waiters, ConnectionId connection) {
  const auto gone = [&](const Waiter& waiter) { return waiter.connection == connection; };
  waiters.erase(std::remove_if(waiters.begin(), waiters.end(), gone), waiters.end());
}

// Contributions that are already in the log go on without an answer. Requests that only wait are
// dropped: the peer sends them again on its next stream.
void Partition::On(const ConnectionDown& down) {
  const ConnectionId connection = down.connection;
  for (auto& [payload, in_flight] : in_flight_) Forget(in_flight.waiters, connection);
  for (auto& [id, slice] : slices_) Forget(slice.unsealed, connection);
  for (PartitionLog::Entry& entry : log_.pending()) Forget(entry.waiters, connection);
  for (auto& [slice, sum] : held_.sums()) Forget(sum.waiters, connection);
  absl::erase_if(reporters_, [&](const auto& r) { return r.second.connection == connection; });
  for (auto& [replica, queue] : closes_) {
    std::erase_if(queue, [&](const Waiter& waiter) { return waiter.connection == connection; });
  }
  ErasePulls([&](const WaitingPull& pull) { return pull.connection == connection; });
  std::erase_if(parked_, [&](const Parked& parked) {
    if (parked.frame.connection != connection) return false;
    if (parked.frame.payload.value != 0) Do(Release{parked.frame.payload});
    return true;
  });
  parked_use_.erase(connection);
}

}  // namespace starling
