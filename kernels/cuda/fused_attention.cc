// Attention as one cuDNN operation, forward and backward: scores stay on the chip, in float, and
// only each row's log-sum-exp is kept for backward. Strides describe the heads, so nothing is
// copied.
#include <algorithm>

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/kernel.h"

namespace starling::cuda {
namespace {

// The scores that deterministic backward may keep at once: the plan for that many samples is called
// until all are done.
constexpr int64_t kScoreBytesMax = 256 << 20;

class FusedAttentionKernel : public CudaKernel {
 public:
  FusedAttentionKernel(const OperatorSpec& spec, const OperatorGeometry& g, const FormatPlan& plan)
      : CudaKernel(spec, g, plan),
        samples_(spec.training ? SamplesAtOnce(g, kScoreBytesMax) : g.batch) {}

  absl::Status Prepare(const Libraries& libraries) {
    if (element() == Element::kFloat) {
      return absl::UnimplementedError("cuDNN's attention would round what is float");
    }
    const auto plan = [&](bool backward) {
      return libraries.cudnn->Plan(KeyOf(geometry_, samples_, element(), spec_.training, backward));
    };
    STARLING_ASSIGN_OR_RETURN(forward_, plan(/*backward=*/false));
    size_t scratch_bytes = forward_->workspace_bytes();
    Pieces work, saved;
    if (spec_.training) {
      STARLING_ASSIGN_OR_RETURN(backward_, plan(/*backward=*/true));
      scratch_bytes = std::max(scratch_bytes, backward_->workspace_bytes());
      const int64_t rows = samples_ * geometry_.heads * geometry_.rows;
      for (int64_t n = 0; n < geometry_.batch; n += samples_) {
        statistics_.push_back(saved.Take(static_cast<size_t>(rows) * sizeof(float)));
      }
      if (!geometry_.packed) unwanted_ = work.Take(Bytes(samples_ * Sample(1)));
      backward_reads_input_.assign(spec_.input_shapes.size(), true);
      backward_reads_output_ = true;
    }
    scratch_ = work.Take(scratch_bytes);
    workspace_bytes_ = work.size();
    saved_bytes_ = saved.size();
    return absl::OkStatus();
  }

 protected:
  absl::Status Run(const ForwardArgs& args, CudaStream& stream) override {
    for (int64_t n = 0; n < geometry_.batch; n += samples_) {
      AttentionValues at = InputsOf(args.inputs, n);
      at.output = PieceAt(args.output, Bytes(n * Sample(1)));
      if (spec_.training) at.statistics = StatisticsOf(args.saved, n);
      STARLING_RETURN_IF_ERROR(forward_->Run(at, PieceAt(args.workspace, scratch_), stream));
    }
    return absl::OkStatus();
  }

  // The gradients of query, key and value are computed together; unwanted ones go into the
  // workspace.
  absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) override {
    if (std::all_of(args.grad_inputs.begin(), args.grad_inputs.end(),
                    [](const void* gradient) { return gradient == nullptr; })) {
      return absl::OkStatus();
    }
    for (int64_t n = 0; n < geometry_.batch; n += samples_) {
      AttentionValues at = InputsOf(args.inputs, n);
      at.output = const_cast<char*>(PieceAt<char>(args.output, Bytes(n * Sample(1))));
      at.statistics = StatisticsOf(const_cast<void*>(args.saved), n);
      at.grad_output = PieceAt<char>(args.grad_output, Bytes(n * Sample(1)));
      at.grad_query = GradientOf(args, kQuery, n);
      at.grad_key = GradientOf(args, kKey, n);
      at.grad_value = GradientOf(args, kValue, n);
      STARLING_RETURN_IF_ERROR(backward_->Run(at, PieceAt(args.workspace, scratch_), stream));
    }
    return absl::OkStatus();
  }

 private:
  enum Which : int { kQuery = 0, kKey = 1, kValue = 2 };

  size_t Bytes(int64_t elements) const {
    return static_cast<size_t>(elements) * ElementBytes(element());
  }
  // Elements per sample, if a position holds that many parts.
  int64_t Sample(int64_t parts) const { return parts * geometry_.rows * geometry_.inputs; }
  // Where sample n's part starts in its input.
  size_t OffsetOf(Which which, int64_t n) const {
    return geometry_.packed ? Bytes(n * Sample(3) + which * geometry_.inputs)
                            : Bytes(n * Sample(1));
  }

  AttentionValues InputsOf(absl::Span<const void* const> inputs, int64_t n) const {
    const auto at = [&](Which which) -> const void* {
      return PieceAt<char>(inputs[geometry_.packed ? 0 : which], OffsetOf(which, n));
    };
    return {.query = at(kQuery), .key = at(kKey), .value = at(kValue)};
  }
  void* GradientOf(const BackwardArgs& args, Which which, int64_t n) const {
    void* const whole = args.grad_inputs[geometry_.packed ? 0 : which];
    if (whole == nullptr) return PieceAt(args.workspace, unwanted_);
    return PieceAt(whole, OffsetOf(which, n));
  }
  float* StatisticsOf(void* saved, int64_t n) const {
    return PieceAt<float>(saved, statistics_[static_cast<size_t>(n / samples_)]);
  }

  const int64_t samples_;  // per call; divides the micro-batch
  std::shared_ptr<const AttentionPlan> forward_, backward_;
  std::vector<size_t> statistics_;     // of each call, in what is saved
  size_t unwanted_ = 0, scratch_ = 0;  // in the workspace
};

}  // namespace

const MakeCudaKernel kMakeFusedAttention = MakeKernel<FusedAttentionKernel>;

}  // namespace starling::cuda
