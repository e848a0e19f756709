// What the coordinator must not forget: a small ordered map of byte strings, changed in batches.
#ifndef STARLING_SERVER_COORDINATOR_STORE_STATE_STORE_H_
#define STARLING_SERVER_COORDINATOR_STORE_STATE_STORE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace starling::coordinator {

// One atomic change: all of it is stored, or nothing. Each key occurs at most once.
struct StoreBatch {
  std::map<std::string, std::string> puts;
  std::vector<std::string> deletes;  // an absent key is not an error
  bool empty() const { return puts.empty() && deletes.empty(); }
};

using StoreSnapshot = std::map<std::string, std::string>;

// Not thread-safe. Implementations: memory (tests, simulator), SQLite.
class StateStore {
 public:
  virtual ~StateStore() = default;

  // Atomic, and durable when it returns OK. After an error the state is unchanged.
  virtual absl::Status Apply(const StoreBatch& batch) = 0;

  // Returns everything that is stored.
  virtual absl::StatusOr<StoreSnapshot> Load() = 0;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_STORE_STATE_STORE_H_
