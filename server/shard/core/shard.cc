#include "server/shard/core/shard.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/shard/core/orders.h"

namespace starling::shard {
void Shard::Step(const Event& event, std::vector<Action>& actions) {
  actions_ = &actions;
  std::visit([this](const auto& e) { On(e); }, event);
  actions_ = nullptr;
}

void Shard::On(const event::Orders& event) {
  const ShardOrderBook::Changes changes = book_.Take(event.orders);
  Learn();
  for (const Run& run : changes.dropped) TakeDrop(run);
  for (const ShardJob& orders : changes.jobs) {
    if (!TakeEra(orders.run())) continue;
    Do(action::HoldRun{orders.run()});
    orders.over() ? EndJob(orders) : TakeJob(orders, Generation(event.orders.generation()));
  }
}

// A later era begins with other values: nothing of an earlier one counts any more. False: the
// orders are of an earlier era.
bool Shard::TakeEra(const Run& run) {
  const auto it = jobs_.find(JobUid(run.job_uid()));
  if (it == jobs_.end()) return true;
  const uint32_t known = it->second.run.era();
  if (run.era() > known) DropJob(it->second.run);
  return run.era() >= known;
}

// What is dropped may come back in a later era before the coordinator hears that it was.
void Shard::TakeDrop(const Run& run) {
  const auto it = jobs_.find(JobUid(run.job_uid()));
  if (it == jobs_.end() || it->second.run.era() <= run.era()) DropJob(run);
}

void Shard::Learn() {
  action::Learn learn;
  for (const auto& [uid, job] : book_.jobs()) {
    if (job.has_decider()) learn.deciders[JobUid(uid)] = job.decider().primary_address();
    for (const Member& member : job.roster().members())
      learn.names[WorkerId(member.worker())] = member.name();
    for (const PartitionOrders& partition : job.partitions()) {
      if (!partition.backup() || partition.primary_name().empty()) continue;
      learn.leaders[{JobUid(uid), PartitionId(partition.partition())}] = {
          IdOf(job.run()), ViewNumber(partition.view().number()), partition.primary_name()};
    }
  }
  Do(std::move(learn));
}

void Shard::TakeJob(const ShardJob& orders, Generation generation) {
  const JobUid uid(orders.run().job_uid());
  auto it = jobs_.find(uid);
  if (it == jobs_.end()) {
    if (!orders.has_job()) return;  // the description came before, and the job was refused
    it = jobs_.try_emplace(uid).first;
    it->second.run = orders.run();
    Do(action::Plan{orders});
  }
  Job& job = it->second;
  if (job.stage == Stage::kRunning) return TakePartitions(job, orders, generation);
  if (job.stage != Stage::kPlanning) return;
  job.orders = orders;
  job.generation = generation;
}

void Shard::On(const event::Planned& event) {
  const auto it = jobs_.find(event.run.job);
  if (it == jobs_.end() || IdOf(it->second.run) != event.run ||
      it->second.stage != Stage::kPlanning)
    return;
  const ShardJob orders = std::move(it->second.orders);
  if (!event.status.ok()) {
    for (const PartitionOrders& partition : orders.partitions())
      Refuse(orders, partition, event.status);
    jobs_.erase(it);
    return;
  }
  it->second.stage = Stage::kRunning;
  TakePartitions(it->second, orders, it->second.generation);
}

void Shard::TakePartitions(Job& job, const ShardJob& orders, Generation generation) {
  const JobUid uid(job.run.job_uid());
  TakeCheckpoint(job, orders);
  std::set<PartitionId> wanted;
  for (const PartitionOrders& partition : orders.partitions()) {
    wanted.insert(PartitionId(partition.partition()));
    TakePartition(job, orders, partition, generation);
  }
  for (auto it = job.partitions.begin(); it != job.partitions.end();) {
    const PartitionKey key(uid, it->first);
    it = wanted.contains(key.second) ? std::next(it) : job.partitions.erase(it);
    if (wanted.contains(key.second)) continue;
    DropInstance(job, key);
    Do(action::ReportNothingOfPartition{key});
  }
}

void Shard::TakePartition(Job& job, const ShardJob& orders, const PartitionOrders& partition,
                          Generation generation) {
  const PartitionKey key(JobUid(job.run.job_uid()), PartitionId(partition.partition()));
  absl::StatusOr<OrdersReceived> received = ToPartitionOrders(orders, partition, generation.value);
  if (!received.ok()) return Refuse(orders, partition, received.status());
  if (!WritesPart(job, key.second)) received->checkpoint.reset();
  const uint64_t view = partition.view().number();
  const auto known = job.partitions.find(key.second);
  const bool has = known != job.partitions.end();
  if (has && (known->second.view == view || !partition.backup())) {
    known->second.view = view;
    known->second.backup = partition.backup();
    return Do(action::Order{key, *std::move(received)});
  }
  if (has) DropInstance(job, key);
  // First values are those of the first view. Later ones have been trained, by another shard.
  if (!partition.backup() && view > 1) {
    return Refuse(orders, partition,
                  absl::FailedPreconditionError(
                      absl::StrCat("view ", view, " has this shard as the primary of partition ",
                                   key.second.value, ", of which it has no copy")));
  }
  const InstanceId instance(++last_instance_.value);
  job.partitions[key.second] = {instance, view, partition.backup()};
  Do(action::Create{IdOf(job.run), key, instance, *std::move(received), partition.backup()});
}

void Shard::DropInstance(Job& job, const PartitionKey& key) {
  Do(action::Drop{key});
  if (WritesPart(job, key.second))
    EndCheckpoint(job, CheckpointPart::FAILED, "another shard leads one of its partitions now");
}

void Shard::Refuse(const ShardJob& orders, const PartitionOrders& partition,
                   const absl::Status& why) {
  action::Report report;
  report.at_once = true;
  *report.status.mutable_run() = orders.run();
  report.status.set_partition(partition.partition());
  report.status.set_view(partition.view().number());
  report.status.set_fault(std::string(why.message()));
  Do(std::move(report));
}

void Shard::On(const event::News& event) {
  if (IsCurrent(event.key, event.instance)) Do(action::Report{event.status, event.at_once});
}

// Orders to end a job may be repeated.
void Shard::EndJob(const ShardJob& orders) {
  const JobUid uid(orders.run().job_uid());
  Job& job = jobs_[uid];
  if (job.stage == Stage::kEnded) {
    KeepOnly(job, orders);
    TakeCopies(job, orders);
    return ReportEnd(job);
  }
  job.orders = orders;
  if (job.stage == Stage::kEnding) return;
  DropCheckpoint(job);
  job.run = orders.run();
  job.stage = Stage::kEnding;
  KeepOnly(job, orders);
  job.not_ended = job.partitions.size();
  Do(action::Forget{IdOf(job.run)});
  if (job.partitions.empty()) return FinishEnd(job);
  std::optional<uint64_t> keep;
  if (orders.has_keep_version()) keep = orders.keep_version();
  for (const auto& [partition, instance] : job.partitions)
    Do(action::End{{uid, partition}, instance.id, keep});
}

void Shard::On(const event::Ended& event) {
  if (!IsCurrent(event.key, event.instance)) return;
  Job& job = jobs_.at(event.key.first);
  job.partitions.at(event.key.second).ended_bytes = event.value_bytes;
  job.value_bytes += event.value_bytes;
  if (--job.not_ended == 0) FinishEnd(job);
}

void Shard::FinishEnd(Job& job) {
  job.stage = Stage::kEnded;
  Do(action::Shelve{JobUid(job.run.job_uid())});
  const ShardJob orders = std::exchange(job.orders, {});
  KeepOnly(job, orders);
  TakeCopies(job, orders);
  ReportEnd(job);
  Do(action::ReturnMemory{});
}

// Another copy may have taken the place of one that is here, or is being made here. A shard that is
// to keep nothing is ordered to drop the job.
void Shard::KeepOnly(Job& job, const ShardJob& orders) {
  if (orders.partitions().empty()) return;
  std::set<PartitionId> kept;
  for (const PartitionOrders& partition : orders.partitions())
    kept.insert(PartitionId(partition.partition()));
  std::erase_if(job.copies, [&](const auto& copy) { return !kept.contains(copy.first); });
  bool dropped = false;
  for (auto it = job.partitions.begin(); it != job.partitions.end();) {
    const PartitionId partition = (it++)->first;
    if (kept.contains(partition)) continue;
    Discard(job, partition);
    dropped = true;
  }
  if (dropped) Do(action::ReturnMemory{});
}

void Shard::ReportEnd(const Job& job) {
  action::ReportEnd report;
  *report.ended.mutable_run() = job.run;
  report.ended.set_value_bytes(job.value_bytes);
  report.ended.set_partitions(static_cast<uint32_t>(job.partitions.size()));
  for (const auto& [partition, copy] : job.copies) {
    if (copy.copying) continue;
    EndedCopy& said = *report.ended.add_copies();
    said.set_partition(partition.value);
    said.set_view(copy.view);
    said.set_fault(copy.fault);
    said.set_no_memory(copy.no_memory);
  }
  Do(std::move(report));
}

// Each order to copy a partition is followed once: the next one comes in another view.
void Shard::TakeCopies(Job& job, const ShardJob& orders) {
  for (const EndedCopyOrders& copy : orders.copies()) {
    const PartitionId partition(copy.view().partition());
    const uint64_t view = copy.view().number();
    const auto known = job.copies.find(partition);
    if (known != job.copies.end() && known->second.view >= view) continue;
    Discard(job, partition);
    const InstanceId instance(++last_instance_.value);
    job.partitions[partition] = {instance, view, /*backup=*/true};
    job.copies[partition] = {view};
    action::CopyEnded action{.run = IdOf(job.run),
                             .key = {JobUid(job.run.job_uid()), partition},
                             .instance = instance,
                             .address = copy.view().primary_address(),
                             .view = ViewNumber(view)};
    if (copy.has_version()) action.version = copy.version();
    for (const EndedCopyOrders::Slice& slice : copy.slices())
      action.values.push_back({SliceId(slice.id()), slice.elements()});
    to_copy_.push_back(std::move(action));
  }
  CopyMore();
}

void Shard::CopyMore() {
  while (!to_copy_.empty() && copying_.size() < kEndedCopiesAtOnce) {
    action::CopyEnded next = std::move(to_copy_.front());
    to_copy_.pop_front();
    copying_.insert(next.instance);
    Do(std::move(next));
  }
}

void Shard::Discard(Job& job, PartitionId partition) {
  const auto known = job.partitions.find(partition);
  if (known == job.partitions.end()) return;
  const PartitionKey key(JobUid(job.run.job_uid()), partition);
  // What has not begun is not there.
  if (std::erase_if(to_copy_, [&](const auto& copy) { return copy.key == key; }) == 0)
    Do(action::Drop{key});
  copying_.erase(known->second.id);
  job.value_bytes -= known->second.ended_bytes;
  job.partitions.erase(known);
}

void Shard::On(const event::EndedCopied& event) {
  copying_.erase(event.instance);
  if (IsCurrent(event.key, event.instance)) {
    Job& job = jobs_.at(event.key.first);
    Copy& copy = job.copies.at(event.key.second);
    copy.copying = false;
    copy.fault = event.fault;
    copy.no_memory = event.no_memory;
    if (copy.fault.empty()) {
      job.partitions.at(event.key.second).ended_bytes = event.value_bytes;
      job.value_bytes += event.value_bytes;
    } else {
      Discard(job, event.key.second);
      Do(action::ReturnMemory{});
    }
    const bool more = std::any_of(job.copies.begin(), job.copies.end(),
                                  [](const auto& entry) { return entry.second.copying; });
    if (!more) {
      Do(action::Shelve{event.key.first});
      ReportEnd(job);
    }
  }
  CopyMore();
}

// With all that is here of its job.
void Shard::DropJob(Run run) {
  const JobUid uid(run.job_uid());
  if (const auto it = jobs_.find(uid); it != jobs_.end()) {
    DropCheckpoint(it->second);
    while (!it->second.partitions.empty())
      Discard(it->second, it->second.partitions.begin()->first);
    run = it->second.run;
    jobs_.erase(it);
  }
  Do(action::Forget{IdOf(run)});
  Do(action::ReportNothingOfJob{uid});
  Do(action::ReturnMemory{});
  CopyMore();
}

void Shard::On(const event::GivenUp&) {
  book_.Clear();
  for (auto& [uid, job] : jobs_) {
    DropCheckpoint(job);
    while (!job.partitions.empty()) Discard(job, job.partitions.begin()->first);
    Do(action::Forget{IdOf(job.run)});
  }
  jobs_.clear();
  to_copy_.clear();
  copying_.clear();
}

bool Shard::IsCurrent(const PartitionKey& key, InstanceId instance) const {
  const auto job = jobs_.find(key.first);
  if (job == jobs_.end()) return false;
  const auto partition = job->second.partitions.find(key.second);
  return partition != job->second.partitions.end() && partition->second.id == instance;
}

}  // namespace starling::shard
