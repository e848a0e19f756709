#include "server/coordinator/store/memory_store.h"

namespace starling::coordinator {

absl::Status MemoryStore::Apply(const StoreBatch& batch) {
  for (const auto& [key, value] : batch.puts) records_[key] = value;
  for (const std::string& key : batch.deletes) records_.erase(key);
  return absl::OkStatus();
}

}  // namespace starling::coordinator
