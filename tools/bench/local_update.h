// Does the shards' work in the process that computed the gradients: no server, no stream.
#ifndef STARLING_TOOLS_BENCH_LOCAL_UPDATE_H_
#define STARLING_TOOLS_BENCH_LOCAL_UPDATE_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/placement/layout.h"
#include "proto/job.pb.h"
#include "server/shard/apply/update.h"
#include "worker/executor/executor.h"

namespace starling {

// A training step without a server: the sink of its unit.
class LocalStep : public GradientSink {
 public:
  // `spec` must outlive this.
  explicit LocalStep(const JobSpec& spec) : spec_(spec) {}
  // Units until the next call belong to step `step`, with this learning rate. Call between units.
  void BeginStep(int64_t step, double rate) {
    step_ = step;
    rate_ = rate;
  }

 protected:
  // The scalars of this step for the slice's sum over `samples` samples.
  UpdateScalars ScalarsFor(const Slice& slice, uint32_t samples) const;

 private:
  const JobSpec& spec_;
  int64_t step_ = 0;
  double rate_ = 0;
};

// Updates a slice's values in place as soon as its gradient is summed, with the shards' kernels.
// Several lanes may call Ready at once, for different slices; all else is for one thread, between
// units.
class LocalUpdate : public LocalStep {
 public:
  // `spec`, `layout` and `parameters`, the flat buffer of layout.elements, must outlive this.
  // kInvalidArgument: the optimizer's settings are out of range.
  static absl::StatusOr<std::unique_ptr<LocalUpdate>> Create(const JobSpec& spec,
                                                             const Layout& layout,
                                                             float* parameters);

  float* Acquire(size_t range, SliceId slice) override;
  void Ready(size_t range, SliceId slice, uint32_t samples) override;

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  using Floats = std::unique_ptr<float[], Free>;  // 64-byte aligned
  struct SliceState {
    UpdateRule rule;
    Floats gradient, slot0, slot1;
  };

  LocalUpdate(const JobSpec& spec, const Layout& layout, float* parameters)
      : LocalStep(spec), layout_(layout), parameters_(parameters) {}
  static Floats Filled(uint32_t elements, float value);

  const Layout& layout_;
  float* const parameters_;
  std::vector<SliceState> slices_;
};

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_LOCAL_UPDATE_H_
