// Tables whose rows are gathered (gather_rows, embedding) or added (position_embedding).
#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class GatherRows : public CpuKernel {
 public:
  GatherRows(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry) {
    backward_reads_input_ = {true};
  }

 protected:
  absl::Status Check(const ForwardArgs& args) const override {
    if (geometry_.op == OperatorGeometry::Op::kGatherRows) return absl::OkStatus();
    const int32_t* indices = static_cast<const int32_t*>(args.inputs[0]);
    for (int64_t r = 0; r < geometry_.rows; ++r) {
      if (InRange(indices[r])) continue;
      const int64_t sample = geometry_.rows / geometry_.batch;
      return absl::OutOfRangeError(
          absl::StrCat("operator '", spec_.name, "' (", spec_.op, "): position ", r % sample,
                       " of sample ", r / sample, " in its micro-batch holds ", indices[r],
                       ", expected 0 to ", geometry_.inputs - 1,
                       " (the table's rows): use data of this vocabulary, or a larger table"));
    }
    return absl::OkStatus();
  }

  void Run(const ForwardArgs& args, const CpuStream&) override {
    const int32_t* indices = static_cast<const int32_t*>(args.inputs[0]);
    const int64_t width = geometry_.outputs;
    float* to = static_cast<float*>(args.output);
    for (int64_t n = 0; n < geometry_.rows; ++n, to += width) {
      if (InRange(indices[n])) {
        std::copy_n(args.parameters[0] + indices[n] * width, width, to);
      } else {
        std::fill_n(to, width, kNan);
      }
    }
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    float* rows = args.grad_parameters[0];
    if (rows == nullptr) return;
    const int32_t* indices = static_cast<const int32_t*>(args.inputs[0]);
    const int64_t width = geometry_.outputs;
    const float* from = static_cast<const float*>(args.grad_output);
    std::fill_n(rows, geometry_.inputs * width, 0.0f);
    for (int64_t n = 0; n < geometry_.rows; ++n, from += width) {
      if (InRange(indices[n])) AddFloats(rows + indices[n] * width, from, width);
    }
  }

 private:
  bool InRange(int32_t index) const { return index >= 0 && index < geometry_.inputs; }
};

class PositionEmbedding : public CpuKernel {
 public:
  PositionEmbedding(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry), sample_(geometry.rows * geometry.outputs) {
    forward_in_place_ok_ = backward_in_place_ok_ = true;
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    if (args.output != args.inputs[0]) std::memcpy(args.output, args.inputs[0], output_bytes_);
    float* to = static_cast<float*>(args.output);
    for (int64_t n = 0; n < geometry_.batch; ++n, to += sample_) {
      AddFloats(to, args.parameters[0], sample_);
    }
  }

  // Sample by sample; rows that no position uses get a zero gradient.
  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    const float* from = static_cast<const float*>(args.grad_output);
    if (float* const rows = args.grad_parameters[0]; rows != nullptr) {
      std::fill_n(rows, geometry_.inputs * geometry_.outputs, 0.0f);
      for (int64_t n = 0; n < geometry_.batch; ++n) AddFloats(rows, from + n * sample_, sample_);
    }
    void* const to = args.grad_inputs[0];
    if (to != nullptr && to != args.grad_output) std::memcpy(to, args.grad_output, output_bytes_);
  }

 private:
  const int64_t sample_;  // elements of one sample
};

}  // namespace

const MakeCpuKernel kMakeGatherRows = MakeKernel<GatherRows>;
const MakeCpuKernel kMakePositionEmbedding = MakeKernel<PositionEmbedding>;

}  // namespace starling
