#include "worker/executor/staging.h"

#include <cstring>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/memory/memory.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace starling {

absl::Status PinnedPool::Allocate(Device* device, size_t bytes) {
  device_ = device;
  bytes_ = bytes;
  STARLING_ASSIGN_OR_RETURN(void* const memory, device->AllocateHost(bytes));
  memory_ = static_cast<char*>(memory);
  return absl::OkStatus();
}

char* PinnedPool::Take(size_t bytes) {
  char* const piece = memory_ + taken_;
  taken_ += PieceBytes(bytes);
  STARLING_CHECK(taken_ <= bytes_, "more pinned memory is taken than was planned");
  return piece;
}

absl::StatusOr<std::unique_ptr<InputStaging>> InputStaging::Create(Device* device, SpanRing* spans,
                                                                   char* pinned, size_t input_bytes,
                                                                   size_t label_bytes) {
  auto staging = absl::WrapUnique(new InputStaging(pinned, PinnedPool::PieceBytes(input_bytes)));
  STARLING_ASSIGN_OR_RETURN(staging->in_, CopyQueue::Create(device, spans));
  STARLING_RETURN_IF_ERROR(
      staging->memory_.Allocate(device, Bytes(input_bytes, label_bytes), staging->in_->stream()));
  STARLING_RETURN_IF_ERROR(staging->in_->Drain());
  STARLING_ASSIGN_OR_RETURN(staging->arrived_, device->CreateEvent());
  STARLING_ASSIGN_OR_RETURN(staging->taken_, device->CreateEvent());
  return staging;
}

absl::Status InputStaging::Stage(const Program& program, const MicroBatch& batch) {
  // The previous batch must have left pinned memory. Usually it did, a micro-batch ago.
  STARLING_RETURN_IF_ERROR(arrived_->Synchronize());
  absl::InlinedVector<CopyQueue::Block, 2> blocks;
  const auto stage = [&](size_t begin, const void* from, size_t bytes) {
    if (bytes == 0) return;
    if (!batch.pinned) from = std::memcpy(pinned_ + begin, from, bytes);
    blocks.push_back({memory_.as<char>() + begin, from, bytes});
  };
  stage(0, batch.inputs, program.input_bytes());
  stage(label_begin_, batch.labels, program.label_bytes());
  return in_->In(blocks, taken_.get(), *arrived_, "copy inputs", SliceId(0));
}

absl::Status InputStaging::Load(Program& program, Stream& lane) {
  STARLING_RETURN_IF_ERROR(lane.Wait(*arrived_));
  const char* const staged = memory_.as<char>();
  STARLING_RETURN_IF_ERROR(program.LoadFromDevice(staged, staged + label_begin_, lane));
  return lane.Record(*taken_);
}

}  // namespace starling
