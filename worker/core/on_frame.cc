// Answers from shards. Answers that no request waits for are dropped.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/core/core.h"

namespace starling::session {
namespace {

constexpr int kBadDigestsMax = 5;

}  // namespace

void Core::On(const event::Frame& e) {
  shard_heard_ = now_;
  const bool open = job_.has_value() && job_->requests.contains(e.header.request_id);
  if (!open) return Release(e.buffer);
  const uint64_t id = e.header.request_id;
  switch (e.header.type) {
    case FrameType::kAck: return OnAck(id, e.header);
    case FrameType::kValue: return OnValue(id, e);
    case FrameType::kError: return OnRefused(id, e);
    default: return Release(e.buffer);
  }
}

void Core::OnAck(uint64_t id, const FrameHeader& header) {
  JobState& job = *job_;
  const Request& request = job.requests.at(id);
  if (request.kind == RequestKind::kPull) return;
  const PartitionId partition = request.header.partition;
  job.seen[partition.value] = std::max(job.seen[partition.value], header.base_lsn);
  if (request.kind == RequestKind::kEnter) job.entered_at[partition] = header.clock;
  Answered(id);
}

// The request is over: its buffer is released, and whatever waited for it goes on.
void Core::Answered(uint64_t id) {
  JobState& job = *job_;
  const RequestKind kind = job.requests.at(id).kind;
  const UnitId unit_id = job.requests.at(id).unit;
  Drop(id);
  if (kind == RequestKind::kEnter || kind == RequestKind::kPark) --job.answers_left;
  const auto unit = job.units.find(unit_id);
  if (unit == job.units.end()) return;
  if (kind == RequestKind::kPush) --unit->second.pushes_open;
  if (kind == RequestKind::kClose) --unit->second.closes_open;
  MaybeDone(unit_id);
}

void Core::Drop(uint64_t id) {
  const auto it = job_->requests.find(id);
  Release(it->second.buffer);
  for (auto* copy : {&job_->live, &job_->snapshot}) {
    const uint32_t slice = it->second.header.key.slice.value;
    if (slice < copy->size() && (*copy)[slice].request == id) (*copy)[slice].request = 0;
  }
  job_->requests.erase(it);
}

void Core::DropRequests(absl::FunctionRef<bool(const Request&)> over) {
  for (auto it = job_->requests.begin(); it != job_->requests.end();) {
    const auto& [id, request] = *it++;
    if (over(request)) Drop(id);
  }
}

void Core::OnValue(uint64_t id, const event::Frame& e) {
  JobState& job = *job_;
  Request& request = job.requests.at(id);
  const FrameHeader& h = e.header;
  const SliceId slice = request.header.key.slice;
  const bool fits = request.kind == RequestKind::kPull && h.key.slice == slice &&
                    h.elements == job.slices[slice.value].elements &&
                    h.kind == PayloadKind::kDense && h.codec == Codec::kFp32 &&
                    h.payload_bytes == h.elements * sizeof(float);
  if (!fits) {
    Release(e.buffer);
    return Break(Fault::INTERNAL,
                 absl::StrCat("a shard answered the pull of slice ", slice.value, " of job ",
                              job.run.job.value, " with ", h.payload_bytes, " bytes for ",
                              h.elements, " elements of slice ", h.key.slice.value));
  }
  const bool snapshot = request.header.key.work.purpose == WorkPurpose::kEvaluate;
  Held& held = (snapshot ? job.snapshot : job.live)[slice.value];
  held.version = held.wanted;
  held.newest = std::max(held.newest, held.version);
  held.lsn = h.base_lsn;
  if (!snapshot) {
    Lsn& seen = job.seen[request.header.partition.value];
    seen = std::max(seen, h.base_lsn);
  }
  const Clock version = held.version;
  if (!snapshot) TakeLate(version, h);
  Drop(id);
  Do(action::InstallValue{slice, e.buffer, snapshot ? Params::kSnapshot : Params::kLive, version,
                          h.loss_scale_log2});
}

// The snapshot for this pull is gone: the epoch's evaluation is over, or another worker has the
// lease. False: the orders still contain the lease. New orders will drop it, and the pull is sent
// again until then.
bool Core::DropStaleEvaluation(uint64_t id) {
  JobState& job = *job_;
  const auto computing = job.units.find(job.computing);
  const bool wanted = computing != job.units.end() &&
                      computing->second.purpose == WorkPurpose::kEvaluate &&
                      job.requests.at(id).header.key.work.epoch == computing->second.item.epoch;
  if (!wanted) {
    Drop(id);
    return true;
  }
  const uint64_t lease = computing->second.lease.id();
  const bool ordered = std::any_of(orders_.leases().begin(), orders_.leases().end(),
                                   [&](const Lease& held) { return held.id() == lease; });
  if (ordered) return false;
  AbandonComputing();
  for (const Held& held : job.snapshot) {
    if (held.request != 0) Drop(held.request);
  }
  return true;
}

// docs/protocol.md, section 2, says what each refusal means.
void Core::OnRefused(uint64_t id, const event::Frame& e) {
  JobState& job = *job_;
  Request& request = job.requests.at(id);
  const Answer answer = e.header.answer;
  const bool fenced = answer == Answer::kStaleIncarnation;
  // If this worker leaves the job and a shard no longer has the run, its remaining work would not
  // count. If the job goes on, a shard that does not host it may do so soon.
  const bool ordered = orders_.has_run() && RunOf(orders_.run()) == job.run;
  const bool over =
      fenced || answer == Answer::kStaleRun || (answer == Answer::kNotHosted && !ordered);
  if (over && job.phase == JobPhase::kLeaving) return CloseJob();
  if (fenced) return Rejoin(e.text);
  if (answer == Answer::kStaleClock) {
    // The others are past this worker's step, so it enters again to learn where they are.
    if (!IsEvaluationPull(request)) return DropTraining();
    if (DropStaleEvaluation(id)) return;
  }
  if (job.warned.insert({e.shard, answer}).second) {
    Do(action::Warn{
        absl::StrCat("shard ", e.shard.value, " refuses ", FrameToString(e.header), ": ", e.text)});
  }
  switch (answer) {
    case Answer::kBadDigest:
      if (++request.bad_digests < kBadDigestsMax) return Transmit(request);
      return Break(
          Fault::DAMAGED,
          absl::StrCat("worker ", options_.name, ": ", request.bad_digests, " copies of ",
                       FrameToString(request.header), " arrived damaged at its shard (", e.text,
                       "): check this machine's memory and network, and restart the worker"));
    case Answer::kBadFrame:
      return Break(Fault::INTERNAL, absl::StrCat("worker ", options_.name, ": a shard refused ",
                                                 FrameToString(request.header), ": ", e.text));
    case Answer::kNonFinite: {
      const auto unit = job.units.find(request.unit);
      return BreakNonFinite(unit == job.units.end() ? nullptr : &unit->second,
                            request.header.key.work, e.text);
    }
    default: break;
  }
  // Stale view, not hosted (yet), over budget, stopped, an older or newer run: new orders or time
  // will resolve it.
  request.retry.Failed(now_, options_);
  request.again = request.retry.at;
}

}  // namespace starling::session
