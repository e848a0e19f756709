// A shard's part of a checkpoint: it waits until the partitions that it leads have captured theirs,
// and has them written to one file. docs/decisions/0013-checkpoints.md, part 3.
#include <algorithm>
#include <string>
#include <utility>

#include "server/shard/core/shard.h"

namespace starling::shard {

// What is there of a checkpoint that the orders do not name is dropped.
void Shard::TakeCheckpoint(Job& job, const ShardJob& orders) {
  const uint64_t number = orders.checkpoint().number();
  if (job.checkpoint.has_value() && job.checkpoint->orders.number() == number) return;
  DropCheckpoint(job);
  if (number == 0) return;
  Checkpoint checkpoint;
  for (const PartitionOrders& partition : orders.partitions()) {
    if (!partition.backup()) checkpoint.partitions.insert(PartitionId(partition.partition()));
  }
  if (checkpoint.partitions.empty()) return;
  checkpoint.orders = orders.checkpoint();
  checkpoint.part.set_number(number);
  checkpoint.part.set_state(CheckpointPart::WAITING);
  checkpoint.part.set_step(orders.checkpoint().step());
  job.checkpoint = std::move(checkpoint);
  Do(action::BeginCheckpoint{JobUid(job.run.job_uid()), orders.checkpoint()});
  ReportCheckpoint(job);
}

// Not a partition that has come to this shard since: another shard has written it, or the
// coordinator drops the checkpoint.
bool Shard::WritesPart(const Job& job, PartitionId partition) {
  return job.checkpoint.has_value() && job.checkpoint->open() &&
         job.checkpoint->partitions.contains(partition);
}

// Null: it is over, or was never begun.
Shard::Job* Shard::FindJobOf(JobUid uid, uint64_t checkpoint) {
  const auto it = jobs_.find(uid);
  if (it == jobs_.end()) return nullptr;
  const std::optional<Checkpoint>& known = it->second.checkpoint;
  const bool open = known.has_value() && known->open() && known->orders.number() == checkpoint;
  return open ? &it->second : nullptr;
}

// A frozen partition knows nothing of skipped steps, and one partition alone of the loss scale: the
// others say zero.
void Shard::On(const event::Captured& event) {
  Job* const job = FindJobOf(event.key.first, event.number);
  if (job == nullptr || !IsCurrent(event.key, event.instance)) return;
  Checkpoint& checkpoint = *job->checkpoint;
  checkpoint.captured[event.key.second] = event.state;
  CheckpointPart& part = checkpoint.part;
  part.set_captured(static_cast<uint32_t>(checkpoint.captured.size()));
  CutState all;
  for (const auto& [partition, state] : checkpoint.captured) {
    all.skipped = std::max(all.skipped, state.skipped);
    all.copy = std::max(all.copy, state.copy);
    if (state.loss_scale != LossScale::State{0, 0}) all.loss_scale = state.loss_scale;
  }
  part.set_skipped(all.skipped);
  if (all.copy.has_value()) part.set_copy_epoch(*all.copy);
  part.set_loss_scale_log2(all.loss_scale.log2);
  part.set_loss_scale_clean(all.loss_scale.clean);
  if (checkpoint.captured.size() == checkpoint.partitions.size()) {
    part.set_state(CheckpointPart::WRITING);
    Do(action::WriteCheckpoint{event.key.first});
  }
  ReportCheckpoint(*job);
}

void Shard::On(const event::Missed& event) {
  Job* const job = FindJobOf(event.key.first, event.number);
  if (job == nullptr || !IsCurrent(event.key, event.instance)) return;
  EndCheckpoint(*job, CheckpointPart::MISSED, event.why);
}

void Shard::On(const event::CheckpointProgress& event) {
  Job* const job = FindJobOf(event.job, event.number);
  if (job == nullptr) return;
  job->checkpoint->part.set_bytes(event.bytes);
  ReportCheckpoint(*job);
}

void Shard::On(const event::CheckpointWritten& event) {
  Job* const job = FindJobOf(event.job, event.number);
  if (job == nullptr) return;
  if (!event.file.ok())
    return EndCheckpoint(*job, CheckpointPart::FAILED, event.file.status().message());
  *job->checkpoint->part.mutable_file() = *event.file;
  EndCheckpoint(*job, CheckpointPart::WRITTEN, "");
}

void Shard::ReportCheckpoint(const Job& job) {
  Do(action::ReportCheckpoint{job.run, job.checkpoint->part});
}

void Shard::EndCheckpoint(Job& job, CheckpointPart::State state, absl::string_view error) {
  job.checkpoint->part.set_state(state);
  job.checkpoint->part.set_error(std::string(error));
  Do(action::DropCheckpoint{JobUid(job.run.job_uid())});
  ReportCheckpoint(job);
}

void Shard::DropCheckpoint(Job& job) {
  if (!job.checkpoint.has_value()) return;
  if (job.checkpoint->open()) Do(action::DropCheckpoint{JobUid(job.run.job_uid())});
  job.checkpoint.reset();
  Do(action::ReportCheckpoint{job.run, CheckpointPart()});
}

}  // namespace starling::shard
