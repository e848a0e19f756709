#include <algorithm>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

using dnnl::normalization_flags;
using dnnl::prop_kind;
using Norm = dnnl::batch_normalization_forward;
using NormBackward = dnnl::batch_normalization_backward;

enum Parameter { kWeight = 0, kBias = 1, kMean = 2, kVariance = 3 };

// Keeps its input's format. `saved` holds the micro-batch's mean, then its biased variance.
class BatchNorm : public CpuKernel {
 public:
  BatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry,
            const dnnl::engine& engine);

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override;
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override;

 private:
  void PlanBackward(const Norm::primitive_desc& forward, normalization_flags flags,
                    const dnnl::engine& engine);
  // One array of saved, or of its piece of the workspace.
  template <typename T>
  T* Channels(T* base, int index) const {
    return base + index * geometry_.inputs;
  }

  const MemoryDesc channels_;
  DnnlCall forward_, backward_;
  size_t unwanted_ = 0;  // two arrays: the weight's and the bias's gradient, when not asked for
  size_t unwanted_input_ = 0;
};

BatchNorm::BatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry,
                     const dnnl::engine& engine)
    : CpuKernel(spec, geometry), channels_(PlainDesc({geometry.inputs})) {
  normalization_flags flags = normalization_flags::use_scale | normalization_flags::use_shift;
  if (!spec_.training) flags |= normalization_flags::use_global_stats;
  const Norm::primitive_desc pd(
      Norm::desc(spec_.training ? prop_kind::forward_training : prop_kind::forward_inference,
                 input_desc_, static_cast<float>(geometry_.epsilon), flags),
      DefaultAttr(), engine);
  ScratchPlan plan;
  KeepInputFormat();
  forward_ = DnnlCall(Norm(pd), pd, engine, plan);
  for (int argument : {DNNL_ARG_SRC, DNNL_ARG_DST}) forward_.Add(argument, input_desc_);
  for (int argument : {DNNL_ARG_SCALE, DNNL_ARG_SHIFT, DNNL_ARG_MEAN, DNNL_ARG_VARIANCE}) {
    forward_.Add(argument, channels_);
  }
  workspace_bytes_ = plan.size();
  if (spec_.training) PlanBackward(pd, flags, engine);
}

void BatchNorm::PlanBackward(const Norm::primitive_desc& forward, normalization_flags flags,
                             const dnnl::engine& engine) {
  const NormBackward::primitive_desc pd(
      NormBackward::desc(prop_kind::backward, input_desc_, input_desc_,
                         static_cast<float>(geometry_.epsilon), flags),
      DefaultAttr(), engine, forward);
  ScratchPlan plan;
  backward_ = DnnlCall(NormBackward(pd), pd, engine, plan);
  for (int argument : {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC}) {
    backward_.Add(argument, input_desc_);
  }
  for (int argument : {DNNL_ARG_SCALE, DNNL_ARG_SHIFT, DNNL_ARG_MEAN, DNNL_ARG_VARIANCE,
                       DNNL_ARG_DIFF_SCALE, DNNL_ARG_DIFF_SHIFT}) {
    backward_.Add(argument, channels_);
  }
  unwanted_ = plan.Take(2 * channels_.get_size());
  unwanted_input_ = plan.Take(input_desc_.get_size());
  workspace_bytes_ = std::max(workspace_bytes_, plan.size());
  saved_bytes_ = 2 * channels_.get_size();
  backward_reads_input_[0] = true;
}

void BatchNorm::Run(const ForwardArgs& args, const CpuStream& stream) {
  forward_.Bind(DNNL_ARG_SRC, args.inputs[0]);
  forward_.Bind(DNNL_ARG_DST, args.output);
  forward_.Bind(DNNL_ARG_SCALE, args.parameters[kWeight]);
  forward_.Bind(DNNL_ARG_SHIFT, args.parameters[kBias]);
  const float* saved = static_cast<const float*>(args.saved);
  const bool training = spec_.training;
  forward_.Bind(DNNL_ARG_MEAN, training ? Channels(saved, 0) : args.parameters[kMean]);
  forward_.Bind(DNNL_ARG_VARIANCE, training ? Channels(saved, 1) : args.parameters[kVariance]);
  forward_.Run(stream, args.workspace);
}

void BatchNorm::RunBackward(const BackwardArgs& args, const CpuStream& stream) {
  char* workspace = static_cast<char*>(args.workspace);
  const float* saved = static_cast<const float*>(args.saved);
  auto target = [&](int parameter) {
    float* wanted = args.grad_parameters[parameter];
    return wanted != nullptr
               ? wanted
               : Channels(reinterpret_cast<float*>(workspace + unwanted_), parameter);
  };
  void* grad_input = args.grad_inputs[0];
  backward_.Bind(DNNL_ARG_SRC, args.inputs[0]);
  backward_.Bind(DNNL_ARG_DIFF_DST, args.grad_output);
  backward_.Bind(DNNL_ARG_DIFF_SRC, grad_input ? grad_input : workspace + unwanted_input_);
  backward_.Bind(DNNL_ARG_SCALE, args.parameters[kWeight]);
  backward_.Bind(DNNL_ARG_SHIFT, args.parameters[kBias]);
  backward_.Bind(DNNL_ARG_MEAN, Channels(saved, 0));
  backward_.Bind(DNNL_ARG_VARIANCE, Channels(saved, 1));
  backward_.Bind(DNNL_ARG_DIFF_SCALE, target(kWeight));
  backward_.Bind(DNNL_ARG_DIFF_SHIFT, target(kBias));
  backward_.Run(stream, args.workspace);

  const float share = static_cast<float>(static_cast<double>(geometry_.batch) /
                                         static_cast<double>(args.global_batch));
  for (int statistic : {0, 1}) {
    float* contribution = args.grad_parameters[kMean + statistic];
    if (contribution == nullptr) continue;
    for (int64_t c = 0; c < geometry_.inputs; ++c) {
      contribution[c] = Channels(saved, statistic)[c] * share;
    }
  }
}

}  // namespace

CpuKernelPtr MakeBatchNorm(const OperatorSpec& spec, const OperatorGeometry& geometry,
                           const dnnl::engine& engine) {
  return std::make_unique<BatchNorm>(spec, geometry, engine);
}

}  // namespace starling
