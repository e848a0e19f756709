// Clients' calls about submitted jobs: cancel, read, delete. And the memory that shards may hold
// once all jobs are over.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(100);

JobRequest Named(const Workload& workload) {
  JobRequest request;
  request.set_name(workload.spec.name());
  return request;
}

}  // namespace

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
        if (!reply.has_value()) world_.After(kPeriod, &client_, [this, i] { Cancel(i); });
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
    return world_.After(kPeriod, &client_, [this, i] { Delete(i); });
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
        if (!gone) return world_.After(kPeriod, &client_, [this, i] { Delete(i); });
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
    return world_.After(kPeriod, &client_, [this] { Settle(); });
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
