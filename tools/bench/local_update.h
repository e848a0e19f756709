// What shards do with gradients, in the process that computed them: no server, no stream.
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

// A step of training without a server: the sink of its unit.
class LocalStep : public GradientSink {
 public:
  // `spec` outlives this.
  explicit LocalStep(const JobSpec& spec) : spec_(spec) {}
  // What the units until the next call are: step `step`, with this learning rate. Between units.
  void BeginStep(int64_t step, double rate) {
    step_ = step;
    rate_ = rate;
  }

 protected:
  // Of this step, for the slice's sum over so many samples.
  UpdateScalars ScalarsFor(const Slice& slice, uint32_t samples) const;

 private:
  const JobSpec& spec_;
  int64_t step_ = 0;
  double rate_ = 0;
};

// Updates a slice's values in place as soon as its gradient is summed, with the shards' kernels.
// Ready may be called by several lanes at once, for different slices; the rest by one thread,
// between units.
class LocalUpdate : public LocalStep {
 public:
  // `spec` and `layout` outlive this, and so do `parameters`, the flat buffer of layout.elements.
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
