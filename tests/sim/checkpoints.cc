// Checkpoints of a seed's jobs: by their rule, and as clients ask for them; and the faults of their
// disk.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

constexpr absl::Duration kAskAgainAfter = absl::Milliseconds(100);
// After faults healed: those that had happened are over then.
constexpr absl::Duration kCheckpointsAgainAfter = absl::Seconds(15);

template <typename T>
const T& OneOf(Random& random, const std::vector<T>& from) {
  return from[random.Below(from.size())];
}

}  // namespace

std::shared_ptr<CheckpointDisk> Cluster::MountDisk(Process* process, bool shard) {
  if (!shape_.checkpoints) return nullptr;
  return disk_.Mount(process, shard, [this, process] { KillAtDisk(process); });
}

// Draws from its own random numbers.
void Cluster::PlanCheckpoints(size_t i) {
  Random random(Mix(seed_, 1200 + i));
  ClientJob& job = jobs_[i];
  job.workload.checkpoints = true;
  if (random.Chance(0.8)) {
    Checkpoint& rule = *job.workload.spec.mutable_checkpoint();
    if (random.Chance(0.7)) {
      rule.set_every_steps(static_cast<uint64_t>(random.Between(3, 30)));
    } else {
      rule.set_every_seconds(0.5 * static_cast<double>(random.Between(2, 6)));
    }
    rule.set_keep(static_cast<uint32_t>(random.Between(1, 3)));
  }
  // Longer evaluations: more are not over where a checkpoint is taken.
  if (shape_.from == nullptr && random.Chance(0.5)) job.workload.test_samples *= 8;
  if (random.Chance(0.5))
    job.checkpoint_every = random.Between(absl::Milliseconds(200), absl::Seconds(3));
  if (loses_copies_) {
    Checkpoint& rule = *job.workload.spec.mutable_checkpoint();
    rule.clear_every_seconds();
    rule.set_every_steps(static_cast<uint64_t>(random.Between(3, 12)));
    rule.set_keep(static_cast<uint32_t>(random.Between(1, 3)));
  }
  if (random.Chance(0.3))
    job.workload.spec.set_restarts_max(static_cast<uint32_t>(random.Between(0, 2)));
}

void Cluster::PlanToAsk(size_t i) {
  world_.After(*jobs_[i].checkpoint_every, &client_, [this, i] {
    if (jobs_[i].over) return;
    AskForCheckpoint(i, world_.random().Next() | 1);
    PlanToAsk(i);
  });
}

// Again and again with one nonce, since the answer comes once it is there. Some are deleted later.
void Cluster::AskForCheckpoint(size_t i, uint64_t nonce) {
  if (jobs_[i].over) return;
  CreateCheckpointRequest request;
  request.set_name(jobs_[i].workload.spec.name());
  request.set_nonce(nonce);
  ++jobs_[i].calls;
  CallForStatus<CreateCheckpointReply>(
      &client_, 0,
      [request](coordinator::CallId call) {
        return coordinator::event::CreateCheckpoint{call, request};
      },
      [this, i, nonce](absl::StatusOr<CreateCheckpointReply> reply) {
        --jobs_[i].calls;
        const bool again = absl::IsUnavailable(reply.status()) ||
                           absl::StrContains(reply.status().message(), "the same call was made");
        if (again) {
          return world_.After(kAskAgainAfter, &client_,
                              [this, i, nonce] { AskForCheckpoint(i, nonce); });
        }
        world_.Count(reply.ok() ? "checkpoints that were asked for"
                                : "checkpoints that were asked for, in vain");
        if (!reply.ok()) return OnNoCheckpoint(i, reply.status());
        checkpoints_.OnListed(reply->checkpoint());
        if (!world_.random().Chance(0.5)) return;
        world_.After(world_.random().Between(absl::ZeroDuration(), absl::Seconds(1)), &client_,
                     [this, id = reply->checkpoint().id()] { DeleteCheckpoint(id); });
      });
}

// Once nothing fails any more, a job that trains has one, or is about to end.
void Cluster::OnNoCheckpoint(size_t i, const absl::Status& status) {
  if (world_.now() < losses_until_ + kCheckpointsAgainAfter || jobs_[i].over) return;
  world_.Count("checkpoints refused after faults healed");
  for (const char* why :
       {"ends before a checkpoint could be taken", "is over", "a job that trains"}) {
    if (absl::StrContains(status.message(), why)) return;
  }
  world_.Violate(Promise::kG8, absl::StrCat("no checkpoint: ", std::string(status.message())));
}

// Its answer may get lost; then it is deleted, or stays.
void Cluster::DeleteCheckpoint(const std::string& id) {
  DeleteCheckpointRequest request;
  request.set_id(id);
  network_.Call<coordinator::CallReply>(
      &client_, &coordinator_,
      [this, request](CoordinatorNode::Answer answer) {
        if (coordinator_.alive) checkpoints_.OnAskedToDelete(request.id());
        coordinator_.Serve(
            [request](coordinator::CallId call) {
              return coordinator::event::DeleteCheckpoint{call, request};
            },
            0,
            [this, id = request.id(), answer = std::move(answer)](coordinator::CallReply reply) {
              const absl::Status* const refused = std::get_if<absl::Status>(&reply);
              if (refused != nullptr && absl::IsFailedPrecondition(*refused))
                checkpoints_.OnRefusedToDelete(id);
              answer(std::move(reply));
            });
      },
      [this, id](std::optional<coordinator::CallReply> reply) {
        if (reply.has_value() && std::holds_alternative<Empty>(*reply)) checkpoints_.OnDeleted(id);
      });
}

// ---- Faults ----

void Cluster::PlanDiskFaults() {
  Random random(Mix(seed_, 1210));
  DiskFaults& faults = disk_.faults();
  faults.no_space = OneOf(random, std::vector<double>{0, 0, 0.01, 0.05});
  faults.io_error = OneOf(random, std::vector<double>{0, 0, 0.005, 0.02});
  faults.file_damage = OneOf(random, std::vector<double>{0, 0, 0.3});
  faults.manifest_damage = OneOf(random, std::vector<double>{0, 0, 0.7});
  faults.slow = OneOf(random, std::vector<double>{0, 0.01, 0.05});
  NextDiskFault(0);
}

// Each draws from its own random numbers, so that others stay as they are if it is left out.
void Cluster::NextDiskFault(uint64_t number) {
  Random random(Mix(seed_, 40000 + number));
  const absl::Duration after = random.Between(absl::Milliseconds(50), absl::Seconds(2));
  world_.After(after, nullptr, [this, number, random]() mutable {
    if (world_.now() >= heal_at_) return;
    const uint64_t drawn = random.Below(4);
    if (drawn < 2) {
      const bool shard = random.Chance(0.5);
      const char* const who = shard ? "a shard" : "coordinator";
      if (world_.Happens("crash at an operation of the disk", who, number))
        disk_.KillAt(static_cast<int>(random.Below(12)), shard);
    } else if (drawn == 2) {
      if (world_.Happens("crash of the disk's machine", "disk", number)) {
        // Often the coordinator's, too.
        if (coordinator_.alive && random.Chance(0.5)) {
          world_.Count("fault: coordinator crash with the disk");
          coordinator_.Crash();
          StartCoordinatorAgain(random);
        }
        disk_.Restart(random);
        checkpoints_.OnRestarted();
      }
    } else {
      const auto& shard = OneOf(random, shards_);
      if (world_.Happens("checkpoint folder that is not mounted", shard->name, number)) {
        disk_.Unmount(shard.get(),
                      world_.now() + random.Between(absl::Milliseconds(50), kUnmountedMost));
      }
    }
    NextDiskFault(number + 1);
  });
}

// Called in the middle of what the process does. A shard goes on if some partition is nowhere else.
void Cluster::KillAtDisk(Process* process) {
  for (const auto& shard : shards_) {
    if (shard.get() != process) continue;
    if (!may_crash_shard_ || !AllWhole()) return;
    shard_crashed_ = true;
    world_.Count("fault: shard crash at the disk");
    shard->Crash();
    return world_.After(world_.random().Between(absl::Milliseconds(5), absl::Seconds(4)), nullptr,
                        [shard = shard.get()] {
                          if (!shard->alive) shard->Start();
                        });
  }
  if (!coordinator_.Runs(process)) return;  // a zombie
  world_.Count("fault: coordinator crash at the disk");
  coordinator_.Crash();
  StartCoordinatorAgain(world_.random());
}

}  // namespace starling::sim
