// Answers from shards. What nobody waits for any more is let go.
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

// The request is over: its bytes are free, and what waited for it may go on.
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
  Drop(id);
  Do(action::InstallValue{slice, e.buffer, snapshot ? Params::kSnapshot : Params::kLive, version,
                          h.loss_scale_log2});
}

// The copy that the pull was for is gone: its epoch's evaluation is over, or the lease went to
// somebody else. While the orders still have the lease, true is what they will say next: the pull
// is sent again until then.
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

// What each refusal means is in docs/protocol.md, section 2.
void Core::OnRefused(uint64_t id, const event::Frame& e) {
  JobState& job = *job_;
  Request& request = job.requests.at(id);
  const Answer answer = e.header.answer;
  const bool fenced = answer == Answer::kStaleIncarnation;
  // To a worker that leaves, a shard that has the run no more gives no more values: what it still
  // computes would not count. Where the job goes on, a shard that does not host it may do so soon.
  const bool ordered = orders_.has_run() && RunOf(orders_.run()) == job.run;
  const bool over =
      fenced || answer == Answer::kStaleRun || (answer == Answer::kNotHosted && !ordered);
  if (over && job.phase == JobPhase::kLeaving) return CloseJob();
  if (fenced) return Rejoin(e.text);
  if (answer == Answer::kStaleClock) {
    // The others are beyond this worker's step: it enters again, to learn where they are.
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
      const Unit* blamed = unit == job.units.end() ? nullptr : &unit->second;
      return Break(Fault::NON_FINITE, absl::StrCat(Blame(blamed), ": ", e.text));
    }
    default: break;
  }
  // Stale view, not hosted (yet), over budget, an older or newer run: orders or time will tell.
  request.retry.Failed(now_, options_);
  request.again = request.retry.at;
}

}  // namespace starling::session
