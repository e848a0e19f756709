// Clients' calls: submit, poll, change the policy, cancel, read, delete, list. And the memory that
// shards may hold once all jobs are over.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

JobRequest Named(const Workload& workload) {
  JobRequest request;
  request.set_name(workload.spec.name());
  return request;
}

}  // namespace

// No call here is invalid: a call can only come too early, or to the wrong coordinator.
void Cluster::OnRefusedCall(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsNotFound(status)) return;
  world_.Violate(absl::IsNotFound(status) ? Promise::kG5 : Promise::kG8,
                 std::string(status.message()));
}

void Cluster::Submit(size_t i) {
  ClientJob& job = jobs_[i];
  SubmitRequest request;
  if (shape_.from == nullptr) {
    *request.mutable_spec() = job.workload.spec;
  } else {
    request.set_from(shape_.from->checkpoint);
  }
  request.set_nonce(job.nonce);
  CallWith<SubmitReply>(
      &client_,
      [this, request](CoordinatorNode::Answer answer) {
        coordinator_.ServeSubmit(request, std::move(answer));
      },
      [this, i](absl::StatusOr<SubmitReply> reply) {
        if (jobs_[i].uid != 0) return;
        if (!reply.ok()) {
          return world_.After(kPollPeriod, &client_, [this, i] { Submit(i); });
        }
        jobs_[i].uid = reply->uid();
        control_.OnSubmitted(reply->uid(), jobs_[i].workload.spec.name());
        PlanSwitches(i);
        Poll(i);
        if (jobs_[i].cancel_after)
          world_.After(*jobs_[i].cancel_after, &client_, [this, i] { Cancel(i); });
        if (jobs_[i].read_every) ReadNow(i);
        if (jobs_[i].checkpoint_every) PlanToAsk(i);
      });
}

// At any time, also before the job runs, and sometimes two at once.
void Cluster::PlanSwitches(size_t i) {
  Random& random = world_.random();
  absl::Duration at;
  for (uint32_t k = 0; k < jobs_[i].workload.switches; ++k) {
    if (!random.Chance(0.3)) at += random.Between(absl::Milliseconds(1), absl::Milliseconds(700));
    Policy policy;
    policy.set_kind(static_cast<Policy::Kind>(random.Between(1, 3)));
    if (policy.kind() == Policy::SSP) policy.set_staleness(static_cast<uint32_t>(random.Below(4)));
    world_.After(at, &client_,
                 [this, i, policy, nonce = random.Next()] { SetPolicy(i, policy, nonce); });
  }
}

void Cluster::SetPolicy(size_t i, const Policy& policy, uint64_t nonce) {
  SetPolicyRequest request;
  request.set_name(jobs_[i].workload.spec.name());
  *request.mutable_policy() = policy;
  request.set_nonce(nonce);
  if (jobs_[i].over) return;
  ++jobs_[i].calls;
  Call<SetPolicyReply>(
      &client_, 0,
      [request](coordinator::CallId call) {
        return coordinator::event::SetPolicy{call, request};
      },
      [this, i, policy, nonce](std::optional<SetPolicyReply> reply) {
        --jobs_[i].calls;
        if (jobs_[i].over) return;
        if (reply.has_value()) {
          const int waiting = static_cast<int>(
              std::count_if(reply->status().policies().begin(), reply->status().policies().end(),
                            [](const PolicyRecord& p) { return !p.in_force(); }));
          if (waiting > 1) world_.Count("policies that waited for another");
          return;
        }
        world_.After(kPollPeriod, &client_,
                     [this, i, policy, nonce] { SetPolicy(i, policy, nonce); });
      });
}

void Cluster::Poll(size_t i) {
  JobRequest request;
  request.set_name(jobs_[i].workload.spec.name());
  Call<JobReply>(
      &client_, 0,
      [request](coordinator::CallId call) {
        return coordinator::event::GetJob{call, request};
      },
      [this, i](std::optional<JobReply> reply) {
        const bool over = reply.has_value() && reply->status().state() != PENDING &&
                          reply->status().state() != RUNNING;
        if (over) return OnEnd(i, *reply);
        if (reply.has_value() && i > 0 && reply->status().state() == PENDING)
          world_.Count("polls of a queued job");
        if (reply.has_value() && reply->status().checkpoint().has_last())
          checkpoints_.OnListed(reply->status().checkpoint().last());
        if (reply.has_value()) NoteSetAside(reply->status());
        if (reply.has_value()) jobs_[i].status = reply->status();
        world_.After(kPollPeriod, &client_, [this, i] { Poll(i); });
      });
}

void Cluster::NoteSetAside(const JobStatus& status) {
  if (status.state() != RUNNING) return;
  const std::string& why = status.reason();
  if (absl::StrContains(why, kNoMemory)) world_.Count("polls: no memory on a worker");
  if (absl::StrContains(why, kWorkerFault)) world_.Count("polls: a worker's fault");
  if (absl::StrContains(why, "its computation has made no progress"))
    world_.Count("polls: a worker hangs");
  if (absl::StrContains(why, "has had no stream to shard"))
    world_.Count("polls: a worker that does not reach a shard");
  if (absl::StrContains(why, "is quarantined")) world_.Count("polls: a worker is quarantined");
}

// Draws from its own random numbers.
void Cluster::PlanCalls(size_t i) {
  Random random(Mix(seed_, 930 + i));
  ClientJob& job = jobs_[i];
  if (random.Chance(0.12))
    job.cancel_after = random.Between(absl::ZeroDuration(), absl::Seconds(2));
  if (random.Chance(0.4))
    job.read_every = random.Between(absl::Milliseconds(20), absl::Milliseconds(400));
  job.to_delete = shape_.in_turn || random.Chance(0.5);
}

void Cluster::Cancel(size_t i) {
  if (jobs_[i].over) return;
  ++jobs_[i].calls;
  Call<Empty>(
      &client_, 0,
      [request = Named(jobs_[i].workload)](coordinator::CallId call) {
        return coordinator::event::CancelJob{call, request};
      },
      [this, i](std::optional<Empty> reply) {
        --jobs_[i].calls;
        if (!reply.has_value()) world_.After(kPollPeriod, &client_, [this, i] { Cancel(i); });
      });
}

// Reads the newest values, those of the last cut, or those of an exact step.
void Cluster::ReadNow(size_t i) {
  ClientJob& job = jobs_[i];
  if (job.over) return;
  world_.After(*job.read_every, &client_, [this, i] { ReadNow(i); });
  if (job.truth() == nullptr) return;
  ++job.calls;
  CallForStatus<JobReply>(
      &client_, 0,
      [request = Named(job.workload)](coordinator::CallId call) {
        return coordinator::event::GetJob{call, request};
      },
      [this, i](absl::StatusOr<JobReply> reply) {
        --jobs_[i].calls;
        if (!reply.ok() || reply->views().empty()) return;
        const JobStatus& status = reply->status();
        ReadPoint point;
        const uint64_t how = world_.random().Below(3);
        if (how == 1 && !status.epochs_done().empty()) {
          point.epoch = status.epochs_done().rbegin()->epoch();
        } else if (how == 2 && status.has_sealed_steps()) {
          for (const View& view : reply->views())
            point.versions[view.partition()] = status.sealed_steps();
        }
        reader_->Read(*reply, jobs_[i].truth()->layout(), point,
                      [this](const absl::StatusOr<ReadValues>& values) {
                        if (values.ok()) return world_.Count("reads of a job that runs");
                        if (absl::IsDeadlineExceeded(values.status())) {
                          return world_.Violate(Promise::kAnswer,
                                                std::string(values.status().message()));
                        }
                        world_.Count(absl::IsAborted(values.status()) ? "reads that were refused"
                                                                      : "reads that broke off");
                      });
      });
}

void Cluster::Delete(size_t i) {
  if (jobs_[i].calls > 0) {
    return world_.After(kPollPeriod, &client_, [this, i] { Delete(i); });
  }
  network_.Call<coordinator::CallReply>(
      &client_, &coordinator_,
      [this, request = Named(jobs_[i].workload)](CoordinatorNode::Answer answer) {
        coordinator_.Serve(
            [request](coordinator::CallId call) {
              return coordinator::event::DeleteJob{call, request};
            },
            0, std::move(answer));
      },
      [this, i](std::optional<coordinator::CallReply> reply) {
        const absl::Status* const refused =
            reply.has_value() ? std::get_if<absl::Status>(&*reply) : nullptr;
        // Not found: an earlier call deleted it, and its reply was lost.
        const bool gone = reply.has_value() && (refused == nullptr || absl::IsNotFound(*refused));
        if (!gone) return world_.After(kPollPeriod, &client_, [this, i] { Delete(i); });
        jobs_[i].deleted = true;
        control_.OnDeleted(jobs_[i].uid);
        world_.Count("jobs that were deleted");
        if (!jobs_[i].end.views().empty() && jobs_[i].truth() != nullptr) ReadDeleted(i, 4);
      });
}

// Reads while shards learn of the deletion: they must answer, either way.
void Cluster::ReadDeleted(size_t i, int times) {
  if (times == 0) return;
  const absl::Duration wait = world_.random().Between(absl::ZeroDuration(), absl::Milliseconds(20));
  world_.After(wait, &client_, [this, i, times] {
    reader_->Read(jobs_[i].end, jobs_[i].truth()->layout(), {},
                  [this](const absl::StatusOr<ReadValues>& values) {
                    if (absl::IsDeadlineExceeded(values.status())) {
                      world_.Violate(Promise::kAnswer, std::string(values.status().message()));
                    }
                  });
    ReadDeleted(i, times - 1);
  });
}

void Cluster::ListJobs() {
  Call<ListJobsReply>(
      &client_, 0, [](coordinator::CallId call) { return coordinator::event::ListJobs{call}; },
      [this](std::optional<ListJobsReply> reply) {
        if (!reply.has_value()) {
          return world_.After(kPollPeriod, &client_, [this] { ListJobs(); });
        }
        std::vector<std::pair<uint64_t, std::string>> listed;
        for (const JobStatus& status : reply->jobs())
          listed.push_back({status.uid(), status.name()});
        control_.OnListed(listed, Generation(coordinator_.generation()));
        listed_ = true;
        Settle();
      });
}

// Shards keep what the durable views of jobs that are over name, and nothing of deleted jobs. A
// learner's copy is kept if it was complete.
std::string Cluster::WhyNotSettled() const {
  const std::set<uint64_t> living = LivingShards();
  uint64_t least = 0, most = 0;
  for (const ClientJob& job : jobs_) {
    if (job.deleted || job.truth() == nullptr) continue;
    const Layout& layout = job.truth()->layout();
    for (const View& view : coordinator_.StoredViews(job.uid)) {
      uint64_t bytes = 0;
      for (const SliceId slice : layout.partitions[view.partition()])
        bytes += layout.slices[slice.value].elements * sizeof(float);
      const bool leads = living.contains(view.primary_incarnation());
      const bool backs = view.backup() != 0 && living.contains(view.backup_incarnation());
      most += bytes * (static_cast<int>(leads) + static_cast<int>(backs));
      if (job.values_lost) continue;  // some may never have been made
      least += bytes * (static_cast<int>(leads) + static_cast<int>(backs && !view.learning()));
    }
  }
  uint64_t allocated = 0;
  for (const auto& shard : shards_) allocated += shard->allocated();
  if (least <= allocated && allocated <= most) return "";
  return absl::StrCat("shards have ", allocated, " bytes, and should have ", least, " to ", most);
}

void Cluster::Settle() {
  if (!WhyNotSettled().empty()) {
    return world_.After(kPollPeriod, &client_, [this] { Settle(); });
  }
  for (ClientJob& job : jobs_) {
    if (!job.deleted || job.end.views().empty() || job.truth() == nullptr || shard_crashed_)
      continue;
    ++last_reads_;
    reader_->Read(
        job.end, job.truth()->layout(), {}, [this, &job](const absl::StatusOr<ReadValues>& values) {
          if (values.ok()) {
            world_.Violate(Promise::kMemory,
                           absl::StrCat(job.workload.spec.name(), " is deleted, and was read"));
          } else if (absl::IsDeadlineExceeded(values.status())) {
            world_.Violate(Promise::kAnswer, std::string(values.status().message()));
          }
          settled_ = --last_reads_ == 0;
        });
  }
  settled_ = settled_ || last_reads_ == 0;
}

}  // namespace starling::sim
