#include "server/shard/host/checkpoint_values.h"

#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace starling {

absl::Status CheckpointValues::Read(const Slice& slice, BlockPart part, float* out) {
  STARLING_ASSIGN_OR_RETURN(const CheckpointReader* const reader, Open());
  for (const Segment& segment : slice.segments) {
    STARLING_RETURN_IF_ERROR(
        reader->Read(model_.parameters(static_cast<int>(segment.param)).name(), segment.param_begin,
                     part, absl::MakeSpan(out + segment.slice_begin, segment.length)));
  }
  return absl::OkStatus();
}

absl::StatusOr<const CheckpointReader*> CheckpointValues::Open() {
  MutexLock lock(&mutex_);
  if (reader_ == nullptr) {
    STARLING_ASSIGN_OR_RETURN(reader_, CheckpointReader::Open(disk_, id_, manifest_digest_));
  }
  return reader_.get();
}

}  // namespace starling
