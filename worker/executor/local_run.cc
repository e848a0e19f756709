#include "worker/executor/local_run.h"

#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr size_t kElementBytes = 4;  // fp32, int32

}  // namespace

absl::StatusOr<std::unique_ptr<FixedBatches>> FixedBatches::Create(const Sizes& sizes,
                                                                   Device* device) {
  std::unique_ptr<FixedBatches> batches(new FixedBatches(sizes, device));
  const auto allocate = [&](int64_t elements) {
    return device->AllocateHost(kElementBytes * sizes.micro_batches * sizes.samples * elements);
  };
  STARLING_ASSIGN_OR_RETURN(batches->inputs_, allocate(sizes.input_elements));
  STARLING_ASSIGN_OR_RETURN(batches->labels_, allocate(sizes.label_elements));
  return batches;
}

FixedBatches::~FixedBatches() {
  if (inputs_ != nullptr) device_->FreeHost(inputs_);
  if (labels_ != nullptr) device_->FreeHost(labels_);
}

absl::StatusOr<MicroBatch> FixedBatches::Get(const WorkRange& range, uint64_t id) {
  const auto first =
      sizes_.samples * (static_cast<int64_t>(id - range.first) % sizes_.micro_batches);
  const auto behind = [first](void* begin, int64_t elements) {
    return static_cast<const char*>(begin) + kElementBytes * first * elements;
  };
  return MicroBatch{sizes_.samples, behind(inputs_, sizes_.input_elements),
                    behind(labels_, sizes_.label_elements), /*pinned=*/true};
}

}  // namespace starling
