#include "server/shard/host/routes.h"

#include <utility>

namespace starling {

std::shared_ptr<HostedPartition> Routes::Find(const Key& key) const {
  MutexLock lock(&mutex_);
  for (const auto* routes : {&routes_, &shelved_}) {
    if (const auto it = routes->find(key); it != routes->end()) return it->second;
  }
  return nullptr;
}

void Routes::Set(const Key& key, std::shared_ptr<HostedPartition> partition) {
  MutexLock lock(&mutex_);
  routes_[key] = std::move(partition);
}

std::shared_ptr<HostedPartition> Routes::Remove(const Key& key) {
  MutexLock lock(&mutex_);
  for (auto* routes : {&routes_, &shelved_}) {
    if (auto node = routes->extract(key)) return std::move(node.mapped());
  }
  return nullptr;
}

Routes::Table Routes::Live() const {
  MutexLock lock(&mutex_);
  return routes_;
}

Routes::Table Routes::All() const {
  MutexLock lock(&mutex_);
  Table all = routes_;
  all.insert(shelved_.begin(), shelved_.end());
  return all;
}

void Routes::Shelve(JobUid job) {
  MutexLock lock(&mutex_);
  for (auto it = routes_.lower_bound({job, PartitionId(0)});
       it != routes_.end() && it->first.first == job;) {
    shelved_.insert(routes_.extract(it++));
  }
}

void Routes::SetNames(std::map<WorkerId, std::string> names) {
  MutexLock lock(&mutex_);
  names_ = std::move(names);
}

void Routes::SetLeaders(Leaders leaders) {
  MutexLock lock(&mutex_);
  leaders_ = std::move(leaders);
}

bool Routes::MayReplicate(const std::string& name, const RunId& run, PartitionId partition,
                          ViewNumber view) const {
  MutexLock lock(&mutex_);
  const auto it = leaders_.find({run.job, partition});
  return it == leaders_.end() || it->second.run != run || it->second.view != view ||
         it->second.name == name;
}

bool Routes::MaySpeakFor(const std::string& name, WorkerId worker) const {
  MutexLock lock(&mutex_);
  const auto it = names_.find(worker);
  return it == names_.end() || it->second == name;
}

}  // namespace starling
