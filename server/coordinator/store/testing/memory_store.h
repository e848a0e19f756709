// A StateStore that lives as long as the process: for tests without a disk.
#ifndef STARLING_SERVER_COORDINATOR_STORE_TESTING_MEMORY_STORE_H_
#define STARLING_SERVER_COORDINATOR_STORE_TESTING_MEMORY_STORE_H_

#include "server/coordinator/store/state_store.h"

namespace starling::coordinator {

class MemoryStore : public StateStore {
 public:
  absl::Status Apply(const StoreBatch& batch) override {
    for (const auto& [key, value] : batch.puts) records_[key] = value;
    for (const std::string& key : batch.deletes) records_.erase(key);
    return absl::OkStatus();
  }
  absl::StatusOr<StoreSnapshot> Load() override { return records_; }

 private:
  StoreSnapshot records_;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_STORE_TESTING_MEMORY_STORE_H_
