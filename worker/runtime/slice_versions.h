// Which version of each slice lies in a parameter buffer, and the gate that computing waits at.
#ifndef STARLING_WORKER_RUNTIME_SLICE_VERSIONS_H_
#define STARLING_WORKER_RUNTIME_SLICE_VERSIONS_H_

#include <vector>

#include "common/protocol/ids.h"
#include "common/protocol/types.h"
#include "common/sync/mutex.h"

namespace starling {

// Thread-safe.
class SliceVersions {
 public:
  explicit SliceVersions(size_t slices) : versions_(slices, kNone) {}

  // The slice's bytes in the buffer are complete and have this version.
  void Set(SliceId slice, Clock version);

  // What the buffer holds is void: no slice has a version.
  void Forget();

  // Blocks until the slice has `version`. False: cancelled. Says so when it takes long.
  bool Wait(SliceId slice, Clock version);

  // Between Cancel and Resume nothing blocks and Wait answers false.
  void Cancel();
  void Resume();

 private:
  static constexpr Clock kNone = -1;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Clock> versions_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace starling

#endif  // STARLING_WORKER_RUNTIME_SLICE_VERSIONS_H_
