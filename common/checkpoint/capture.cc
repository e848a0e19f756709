#include "common/checkpoint/capture.h"

#include <utility>

#include "common/base/check.h"

namespace starling {

void CheckpointCapture::Add(std::vector<CapturedBlock> blocks) {
  MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  for (CapturedBlock& block : blocks) {
    BlockName name = block.name;
    const bool added = blocks_.emplace(std::move(name), std::move(block)).second;
    STARLING_CHECK(added, "two blocks of a checkpoint have one name");
  }
}

void CheckpointCapture::GiveUp(const std::string& why) {
  std::map<BlockName, CapturedBlock> freed;  // behind the lock
  MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  status_ = absl::AbortedError(why);
  freed.swap(blocks_);
}

absl::Status CheckpointCapture::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

std::vector<BlockName> CheckpointCapture::Names() const {
  MutexLock lock(&mutex_);
  std::vector<BlockName> names;
  names.reserve(blocks_.size());
  for (const auto& [name, block] : blocks_) names.push_back(name);
  return names;
}

absl::StatusOr<CapturedBlock> CheckpointCapture::Borrow(const BlockName& name) const {
  MutexLock lock(&mutex_);
  if (!status_.ok()) return status_;
  const auto it = blocks_.find(name);
  STARLING_CHECK(it != blocks_.end(), "a block of a checkpoint is borrowed that is not there");
  return it->second;
}

void CheckpointCapture::Release(const BlockName& name) {
  CapturedBlock freed;  // behind the lock
  MutexLock lock(&mutex_);
  const auto it = blocks_.find(name);
  if (it == blocks_.end()) return;  // given up
  freed = std::move(it->second);
  blocks_.erase(it);
}

}  // namespace starling
