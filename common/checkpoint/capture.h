// What a shard's partitions hold for one checkpoint, from the step at which each captured it until
// it is written.
#ifndef STARLING_COMMON_CHECKPOINT_CAPTURE_H_
#define STARLING_COMMON_CHECKPOINT_CAPTURE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/names.h"
#include "common/sync/mutex.h"

namespace starling {

struct CapturedBlock {
  BlockName name;
  absl::Span<const float> values;   // 1 to limits::kSliceElementsMax
  std::shared_ptr<const void> pin;  // `values` are not written while it is held
};

// Thread-safe. No call blocks for longer than the release of a pin takes.
class CheckpointCapture {
 public:
  // Partitions add their blocks. No two have one name.
  void Add(std::vector<CapturedBlock> blocks);

  // Frees all but a block in use, whose borrower holds its pin; later calls change nothing. `why`
  // is for people: "an update found no memory".
  void GiveUp(const std::string& why);
  absl::Status status() const;  // kAborted, with `why`, once it was given up

  std::vector<BlockName> Names() const;  // ascending: of all that are not released
  // kAborted: given up. The block was added and is not released.
  absl::StatusOr<CapturedBlock> Borrow(const BlockName& name) const;
  void Release(const BlockName& name);  // written: its pin is let go

 private:
  mutable Mutex mutex_;
  std::map<BlockName, CapturedBlock> blocks_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_CAPTURE_H_
