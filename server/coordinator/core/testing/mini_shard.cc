// The shards of a MiniCluster: what they report, and how they do what they are told.
#include <algorithm>
#include <utility>
#include <variant>

#include "common/data_plan/job_steps.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/mini_cluster.h"

namespace starling::coordinator {

uint64_t MiniCluster::Covered(uint64_t uid) const {
  uint64_t items = 0;
  const auto epochs = covered.find(uid);
  if (epochs == covered.end()) return 0;
  for (const auto& [epoch, counts] : epochs->second) items += counts.size();
  return items;
}

uint64_t MiniCluster::Begun(const JobDescription& job) const {
  const auto epochs = covered.find(job.run().job_uid());
  if (epochs == covered.end() || epochs->second.empty()) return 0;
  const auto& [epoch, items] = *epochs->second.rbegin();
  const uint64_t full = StepsInFullEpoch(job.spec(), job.train_samples());
  return items.empty() ? epoch * full : epoch * full + items.rbegin()->first + 1;
}

// What a job that goes on from a checkpoint has from there.
void MiniCluster::CoverBefore(const JobDescription& job) {
  const uint64_t full = StepsInFullEpoch(job.spec(), job.train_samples());
  for (uint64_t step = 0; step < job.restore().step(); ++step)
    covered[job.run().job_uid()][static_cast<uint32_t>(step / full)][step % full] = 1;
}

void MiniCluster::TakeOrders(MiniShard& shard, const ShardOrders& orders) {
  if (orders.rejoin()) return;
  if (orders.generation() > shard.generation) shard.reports.TellAll();
  shard.generation = orders.generation();
  if (shard.checkpoint_looks && orders.checkpoint_nonce() != 0)
    shard.checkpoint_nonce = shard.checkpoint_error.empty() ? root_nonce : 0;
  shard.drain = orders.drain();
  shard.reports.Taken(orders.sequence_taken());
  if (orders.unchanged() || orders.version() <= shard.orders_seen) return;
  shard.orders_seen = orders.version();
  const ShardOrderBook::Changes changes = shard.orders.Take(orders);
  for (const Run& run : changes.dropped) {
    const uint64_t uid = run.job_uid();
    const auto description = shard.descriptions.find(uid);
    if (description != shard.descriptions.end() && description->second.run().era() > run.era())
      continue;
    shard.reports.Drop(uid);
    shard.descriptions.erase(uid);
    shard.over.erase(uid);
  }
  for (const ShardJob& job : changes.jobs) {
    const uint64_t uid = job.run().job_uid();
    if (job.run().era() > std::exchange(eras_[uid], std::max(eras_[uid], job.run().era())))
      covered[uid].clear();  // it begins with other values
    if (job.has_job()) shard.descriptions[uid] = job.job();
    if (job.has_job() && covered[uid].empty()) CoverBefore(job.job());
    shard.described += job.has_job();
    shard.reports.Hold(job.run());
    if (!job.over()) {
      shard.hosted[uid].clear();
      for (const PartitionOrders& partition : job.partitions())
        shard.hosted[uid].insert(partition.partition());
      EXPECT_TRUE(shard.descriptions.contains(uid))
          << "orders without a description that was never seen";
      continue;
    }
    shard.descriptions.erase(uid);
    MiniShard::Ended& over = shard.over[uid];
    over.run = job.run();
    over.partitions.merge(std::exchange(shard.hosted[uid], {}));
    std::set<uint32_t> kept;
    for (const PartitionOrders& partition : job.partitions()) kept.insert(partition.partition());
    std::erase_if(over.partitions, [&](uint32_t partition) { return !kept.contains(partition); });
    std::erase_if(over.copies, [&](const auto& copy) { return !kept.contains(copy.first); });
    for (const EndedCopyOrders& copy : job.copies()) {
      EXPECT_GT(copy.slices_size(), 0);
      EXPECT_EQ(copy.view().backup(), shard.identity.id());
      over.partitions.erase(copy.view().partition());
      over.copies[copy.view().partition()] = copy;
    }
    ReportEnd(shard, uid);
    ++shard.ended;
  }
}

void MiniCluster::ReportEnd(MiniShard& shard, uint64_t uid) {
  MiniShard::Ended& over = shard.over[uid];
  HeldJob ended;
  *ended.mutable_run() = over.run;
  for (const auto& [partition, orders] : over.copies) {
    if (!shard.copies) break;
    EndedCopy& copy = *ended.add_copies();
    copy.set_partition(partition);
    copy.set_view(orders.view().number());
    copy.set_fault(shard.refuses_ended);
  }
  over.made = static_cast<size_t>(ended.copies_size());
  ended.set_value_bytes(100 * (over.partitions.size() + over.made));
  ended.set_partitions(static_cast<uint32_t>(over.partitions.size() + over.copies.size()));
  shard.reports.End(ended);
}

PartitionStatus MiniCluster::StatusOf(MiniShard& shard, const ShardJob& orders,
                                      const PartitionOrders& partition) {
  const uint64_t uid = orders.run().job_uid();
  const JobDescription& job = shard.descriptions.at(uid);
  PartitionStatus status;
  *status.mutable_run() = orders.run();
  status.set_partition(partition.partition());
  status.set_view(partition.view().number());
  status.set_fault(shard.refuses.empty() && partition.backup() ? shard.refuses_backups
                                                               : shard.refuses);
  status.set_copies_differ(partition.backup() && shard.differs);
  status.set_diverged(!partition.backup() && shard.diverges);
  if (status.fault().empty() && !partition.backup() && !shard.no_memory.empty()) {
    status.set_fault(shard.no_memory);
    status.set_no_memory(true);
  }
  if (!status.fault().empty() || partition.backup()) return status;
  if (shard.undecided.contains(orders.decider().primary_address()))
    status.set_undecided("no stream to it");
  const bool cut = shard.cut.contains(partition.view().backup_address());
  status.set_backup_whole(partition.view().backup() != 0 && shard.copies && !cut);
  status.set_backup_frames(cut ? shard.frames : 0);
  status.set_backup_behind(cut ? 7 : 0);
  status.set_epoch(orders.epoch());
  status.set_value_bytes(100);
  *status.mutable_times() = shard.times;
  // A member's departure takes effect when the backup has it.
  status.set_roster(orders.roster().number() - (cut && orders.roster().members_size() == 0));
  status.set_begun_steps(Begun(job));
  status.set_recent_lag(recent_lag);
  status.set_bsp_bytes_more(bsp_bytes_more);
  uint64_t& policy = policies_[uid];
  EXPECT_TRUE(orders.policy().in_force()) << "a shard may not have heard of it before";
  const PolicyRecord& newest = orders.has_next_policy() ? orders.next_policy() : orders.policy();
  if (Covered(uid) >= newest.step() && !shard.lags) policy = newest.number();
  status.set_policy(policy);
  bool& bsp = shard.bsp[uid];
  if (!shard.deaf) bsp = orders.policy().policy().kind() == Policy::BSP;
  if (bsp) status.set_sealed_steps(Covered(uid) + shard.sealed_ahead);
  const uint64_t steps = StepsInEpoch(job.spec(), job.train_samples(), orders.epoch());
  const auto& epochs = covered[uid];
  const auto items = epochs.find(orders.epoch());
  const uint64_t done = items == epochs.end() ? 0 : items->second.size();
  status.set_cut_epochs(done == steps ? orders.epoch() + 1 : orders.epoch());
  status.set_applied_min(steps);
  status.set_applied_max(steps);
  if (items == epochs.end()) return status;
  for (const auto& [item, count] : items->second) {
    const int last = status.covered_ranges_size() - 1;
    if (last > 0 && status.covered_ranges(last) == item) {
      status.set_covered_ranges(last, item + 1);
    } else {
      status.add_covered_ranges(item);
      status.add_covered_ranges(item + 1);
    }
  }
  return status;
}

// What the shard has of a checkpoint, one round further.
void MiniCluster::ReportCheckpoint(MiniShard& shard, const ShardJob& orders, ShardReport& report) {
  const uint64_t uid = orders.run().job_uid();
  const ShardCheckpoint& wanted = orders.checkpoint();
  if (!orders.has_checkpoint()) {
    shard.parts.erase(uid);
    return;
  }
  const auto id = ParseCheckpointId(wanted.id());
  ASSERT_TRUE(id && id->number == wanted.number());
  CheckpointPart& part = shard.parts[uid];
  if (part.number() != wanted.number()) {
    part.Clear();
    part.set_number(wanted.number());
    part.set_state(CheckpointPart::WAITING);
    const bool late = Begun(shard.descriptions.at(uid)) > wanted.step();
    if (late || shard.checkpoint_misses) {
      part.set_state(CheckpointPart::MISSED);
      part.set_error("partition 0 has begun the step");
    }
  }
  if (part.state() == CheckpointPart::WAITING && Covered(uid) >= wanted.step() &&
      !shard.checkpoint_waits) {
    for (const PartitionOrders& partition : orders.partitions())
      part.set_captured(part.captured() + (partition.backup() ? 0 : 1));
    part.set_state(CheckpointPart::WRITING);
    part.set_step(wanted.step());
    part.set_skipped(shard.checkpoint_skipped);
    if (shard.checkpoint_copy) part.set_copy_epoch(*shard.checkpoint_copy);
  } else if (part.state() == CheckpointPart::WRITING) {
    part.set_bytes(std::min(shard.checkpoint_bytes, part.bytes() + shard.checkpoint_pace));
    if (part.bytes() == shard.checkpoint_bytes) part.set_state(CheckpointPart::WRITTEN);
    part.mutable_file()->set_name(ShardFileName(ShardId(shard.identity.id())));
    part.mutable_file()->set_bytes(shard.checkpoint_bytes);
    part.mutable_file()->set_xxh3("0123456789abcdef");
  }
  if (!shard.checkpoint_fails.empty()) {
    part.set_state(CheckpointPart::FAILED);
    part.set_error(shard.checkpoint_fails);
  }
  HeldJob& held = *report.add_held();
  *held.mutable_run() = orders.run();
  *held.mutable_checkpoint() = part;
}

void MiniCluster::Report(MiniShard& shard) {
  const auto take = [&](CallId call) {
    const auto reply = TakeAnswer(call);
    if (!reply) return;
    if (call == shard.call) shard.call = CallId();
    if (const auto* orders = std::get_if<ShardOrders>(&*reply)) TakeOrders(shard, *orders);
  };
  take(shard.call);
  shard.times.set_pushes(shard.times.pushes() + shard.pace.pushes());
  shard.times.set_applies(shard.times.applies() + shard.pace.applies());
  shard.times.set_apply(shard.times.apply() + shard.pace.apply());
  shard.times.set_queue(shard.times.queue() + shard.pace.queue());
  for (const auto& [uid, job] : shard.orders.jobs()) {
    if (job.over()) continue;
    for (const PartitionOrders& partition : job.partitions()) {
      shard.reports.Update(StatusOf(shard, job, partition));
    }
  }
  for (const auto& [uid, over] : shard.over) {
    if (shard.copies && over.made < over.copies.size()) ReportEnd(shard, uid);
  }
  ShardReport report;
  report.set_shard(shard.identity.id());
  report.set_incarnation(shard.identity.incarnation());
  report.set_sequence(++shard.sequence);
  report.set_generation(shard.generation);
  report.set_orders_seen(shard.orders_seen);
  report.set_memory_room(shard.memory_room.value_or(memory_room));
  report.set_draining(shard.draining);
  report.set_copies_ended(shard.copies_ended);
  report.set_drained(shard.drained);
  for (const std::string& address : shard.unreached) report.add_unreached(address);
  report.set_checkpoint_nonce(shard.checkpoint_nonce);
  report.set_checkpoint_error(shard.checkpoint_error);
  shard.reports.Fill(shard.sequence, report);
  for (const auto& [uid, job] : shard.orders.jobs()) {
    if (!job.over()) ReportCheckpoint(shard, job, report);
  }
  report_bytes = report.ByteSizeLong();
  const CallId held = std::exchange(shard.call, NewCall());
  Step(event::ShardReport{shard.call, report});
  if (held != CallId()) take(held);
  take(shard.call);
}

}  // namespace starling::coordinator
