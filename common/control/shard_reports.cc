#include "common/control/shard_reports.h"

#include <algorithm>

namespace starling {

void ShardReports::Changed(const Key& key, Entry& entry) {
  entry.sent_in = 0;
  if (entry.ticket != 0) return;
  entry.ticket = ++last_ticket_;
  pending_.emplace(entry.ticket, key);
}

ShardReports::Entry* ShardReports::FindLive(const Run& run) {
  const auto it = entries_.find({run.job_uid(), kRun});
  if (it == entries_.end()) return nullptr;
  const HeldJob& held = it->second.held;
  return held.over() || held.run().era() != run.era() ? nullptr : &it->second;
}

void ShardReports::Hold(const Run& run) {
  const Key key(run.job_uid(), kRun);
  const auto known = entries_.find(key);
  if (known != entries_.end() && known->second.held.run().era() < run.era()) Drop(run.job_uid());
  const auto [it, fresh] = entries_.try_emplace(key);
  if (!fresh) return;
  ++runs_;
  *it->second.held.mutable_run() = run;
  Changed(key, it->second);
}

void ShardReports::Update(const PartitionStatus& status, absl::Time at) {
  Entry* const run = FindLive(status.run());
  if (run == nullptr) return;
  const uint64_t job = status.run().job_uid();
  const Key key(job, status.partition());
  Entry& entry = entries_[key];
  if (entry.status.value_bytes() != status.value_bytes()) {
    HeldJob& held = run->held;
    held.set_value_bytes(held.value_bytes() - entry.status.value_bytes() + status.value_bytes());
    Changed({job, kRun}, *run);
  }
  if (entry.status.view() != status.view() || !status.backup_whole()) {
    entry.whole_sent_in = 0;
    entry.whole_taken = false;
  }
  if (entry.status.lsn() < status.lsn()) entry.moved = at;
  entry.status = status;
  Changed(key, entry);
}

void ShardReports::Checkpoint(const Run& run, const CheckpointPart& part) {
  Entry* const entry = FindLive(run);
  if (entry == nullptr) return;
  if (part.number() == 0) {
    entry->held.clear_checkpoint();
  } else {
    *entry->held.mutable_checkpoint() = part;
  }
  Changed({run.job_uid(), kRun}, *entry);
}

void ShardReports::End(const HeldJob& ended) {
  const Run& run = ended.run();
  const auto known = entries_.find({run.job_uid(), kRun});
  if (known != entries_.end() && known->second.held.run().era() > run.era()) return;
  Drop(run.job_uid());
  Hold(run);
  HeldJob& held = entries_.at({run.job_uid(), kRun}).held;
  held = ended;
  held.set_over(true);
}

void ShardReports::DropPartition(uint64_t job, uint32_t partition) {
  const auto it = entries_.find({job, partition});
  if (it == entries_.end()) return;
  if (const auto run = entries_.find({job, kRun}); run != entries_.end()) {
    HeldJob& held = run->second.held;
    held.set_value_bytes(held.value_bytes() - it->second.status.value_bytes());
    Changed(run->first, run->second);
  }
  pending_.erase(it->second.ticket);
  entries_.erase(it);
}

void ShardReports::Drop(uint64_t job) {
  auto it = entries_.lower_bound({job, kRun});
  while (it != entries_.end() && it->first.first == job) {
    if (it->first.second == kRun) --runs_;
    pending_.erase(it->second.ticket);
    it = entries_.erase(it);
  }
}

void ShardReports::TellAll() {
  whole_ = true;
  whole_sent_in_ = 0;
  for (auto& [key, entry] : entries_) Changed(key, entry);
}

void ShardReports::Clear() {
  entries_.clear();
  pending_.clear();
  runs_ = 0;
  TellAll();
}

void ShardReports::Fill(uint64_t sequence, ShardReport& report) {
  if (whole_ && whole_sent_in_ == 0) whole_sent_in_ = sequence;
  report.set_whole(whole_);
  more_ = false;
  size_t bytes = 0;
  for (const auto& [ticket, key] : pending_) {
    Entry& entry = entries_.at(key);
    if (bytes >= bytes_max_) {
      // The coordinator may take this report, but not an earlier one that had this entry.
      more_ = true;
      entry.sent_in = entry.whole_sent_in = 0;
      continue;
    }
    if (entry.sent_in == 0) entry.sent_in = sequence;
    if (key.second == kRun) {
      *report.add_held() = entry.held;
      bytes += entry.held.ByteSizeLong();
    } else {
      *report.add_partitions() = entry.status;
      if (entry.status.backup_whole() && entry.whole_sent_in == 0) entry.whole_sent_in = sequence;
      bytes += entry.status.ByteSizeLong();
    }
  }
  report.set_more(more_);
}

size_t ShardReports::OnlyHere(absl::Time since) const {
  size_t count = 0;
  for (const auto& [key, entry] : entries_) {
    const bool taken = entry.status.backup() || entry.whole_taken;
    count += key.second != kRun && (!taken || entry.moved < since);
  }
  return count;
}

size_t ShardReports::Ended() const {
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), [](const auto& e) {
    return e.first.second == kRun && e.second.held.over() && e.second.held.value_bytes() > 0;
  }));
}

bool ShardReports::Taken(uint64_t sequence) {
  if (whole_ && whole_sent_in_ != 0 && whole_sent_in_ <= sequence) whole_ = false;
  for (auto it = pending_.begin(); it != pending_.end();) {
    Entry& entry = entries_.at(it->second);
    entry.whole_taken |= entry.whole_sent_in != 0 && entry.whole_sent_in <= sequence;
    if (entry.sent_in == 0 || entry.sent_in > sequence) {
      ++it;
      continue;
    }
    entry.ticket = 0;
    entry.held.clear_copies();  // said once: a coordinator that starts drops learners
    it = pending_.erase(it);
  }
  return more_;
}

}  // namespace starling
