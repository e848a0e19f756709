// How a job ends, as its client hears of it: its final values, and whether it may end so.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace starling::sim {

// Reads the job's final values, as clients do.
void Cluster::OnEnd(size_t i, const JobReply& reply) {
  const JobTruth* const truth = TruthOf({JobUid(jobs_[i].uid), reply.status().era()});
  if (truth == nullptr) return Finish(i, reply, {});
  const absl::StatusOr<ReadPoint> point = ValuesAtTheEnd(reply);
  const auto again = [this, i] { world_.After(kPollPeriod, &client_, [this, i] { Poll(i); }); };
  if (absl::IsUnavailable(point.status())) return again();  // some final reports are missing
  if (!point.ok()) {
    // They were lost with a shard, or never existed.
    const bool failed = reply.status().state() != SUCCEEDED;
    const bool may_be =
        absl::IsDataLoss(point.status())
            ? shard_lost_ || (failed && (shard_exhausted_ || RefusesDamage(reply.status())))
            : failed;
    if (!may_be) {
      world_.Violate(Promise::kG1, absl::StrCat("values of ", reply.status().name(), " are gone: ",
                                                std::string(point.status().message())));
    }
    jobs_[i].values_lost = true;
    return Finish(i, reply, {std::vector<ValuesPtr>(truth->layout().slices.size()), {}});
  }
  reader_->Read(reply, truth->layout(), *point,
                [this, i, reply, again](const absl::StatusOr<ReadValues>& values) {
                  if (values.ok()) {
                    world_.Count("jobs that were read at their end");
                    return Finish(i, reply, *values);
                  }
                  if (absl::IsDeadlineExceeded(values.status())) {
                    world_.Violate(Promise::kAnswer,
                                   absl::StrCat(reply.status().name(), ": ",
                                                std::string(values.status().message())));
                  }
                  world_.Count(absl::IsAborted(values.status()) ? "reads that were refused"
                                                                : "reads that broke off");
                  again();
                });
}

void Cluster::Finish(size_t i, const JobReply& reply, const ReadValues& values) {
  ClientJob& job = jobs_[i];
  const JobStatus& status = reply.status();
  job.over = true;
  job.end = reply;
  job.values = values;
  if (job.to_delete) Delete(i);
  if (shape_.in_turn && i + 1 < jobs_.size()) {
    world_.Count("jobs submitted after another");
    world_.After(absl::ZeroDuration(), &client_, [this, i] { Submit(i + 1); });
  }
  if (status.state() != SUCCEEDED && !MayEndEarly(job, status)) {
    world_.Violate(Promise::kG8,
                   absl::StrCat(status.name(), " ended as ", JobState_Name(status.state()), ": ",
                                status.reason()));
  }
  rollbacks_.OnEnd(status);
  JobTruth* const truth = TruthOf({JobUid(job.uid), status.era()});
  if (truth == nullptr) return;
  if (status.state() != SUCCEEDED) return truth->OnFailed(values, reply);
  const bool all = std::all_of(values.slices.begin(), values.slices.end(),
                               [](const ValuesPtr& slice) { return slice != nullptr; });
  if (all) truth->OnSucceeded(values, reply);
}

// Whether the job ended since it found the bit that differs in its checkpoint.
bool Cluster::RefusesDamage(const JobStatus& status) const {
  return shape_.from != nullptr && shape_.from->damaged &&
         absl::StrContains(status.reason(), ": expected the digest ");
}

// Whether a job that did not succeed may have ended for the reason that it gives.
bool Cluster::MayEndEarly(const ClientJob& job, const JobStatus& status) {
  const bool failed = status.state() == FAILED;
  const auto says = [&](const char* text) {
    return failed && absl::StrContains(status.reason(), text);
  };
  const bool served = job.served();
  // A job that no worker has served may fail if no free worker has memory for it. A job that was
  // served never fails for want of memory on a worker.
  const bool no_memory = says(kNoMemory) && !served;
  if (no_memory) world_.Count("jobs that found no memory");
  // A job that was served fails for workers' faults only once all workers have had one.
  const bool faulty = says(kWorkerFault) && says("worker worker-") &&
                      (!served || job.faulty_workers().size() == workers_.size());
  if (faulty) world_.Count("jobs that no worker can serve");
  const bool cancelled = status.state() == CANCELLED && job.cancel_after.has_value();
  if (cancelled) world_.Count("jobs that were cancelled");
  const bool exhausted = shard_exhausted_ && says("no memory for ");
  if (exhausted) world_.Count("jobs whose shard had no memory");
  const bool too_short = says("wallTime was over before any of") && status.step() == 0 &&
                         job.workload.spec.stop().wall_time_seconds() > 0 &&
                         (job.truth() == nullptr || !job.truth()->AnyStepDone());
  if (too_short) world_.Count("jobs that wallTime ended before their first step");
  const bool lost = shard_lost_ && says("lost partition");
  if (lost) world_.Count("jobs that failed with their shard");
  const bool worn = failed && rollbacks_.EndedWithoutFirstValues(status);
  if (worn) world_.Count("jobs that could not read first values");
  const bool damaged = failed && RefusesDamage(status);
  if (damaged) world_.Count("jobs that refused a damaged checkpoint");
  if (says("is not whole")) world_.Violate(Promise::kG4, status.reason());
  return no_memory || damaged || faulty || cancelled || exhausted || too_short || lost || worn ||
         (job.workload.poisoned && says("not finite")) ||
         (job.workload.overflows_from != std::numeric_limits<uint64_t>::max() && says("fp16"));
}

}  // namespace starling::sim
