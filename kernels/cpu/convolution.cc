#include <algorithm>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;
using Conv = dnnl::convolution_forward;
using ConvData = dnnl::convolution_backward_data;
using ConvWeights = dnnl::convolution_backward_weights;

// What `make` creates with Winograd's algorithm, if that is wanted and oneDNN has it for this CPU,
// else with the direct one.
template <typename Make>
auto WithAlgorithm(bool winograd, Make make) {
  if (winograd) {
    try {
      return make(algorithm::convolution_winograd);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
  }
  return make(algorithm::convolution_direct);
}

// Every direction requests oneDNN's preferred layouts. Weights are reordered in each call (they are
// small compared to activations), activations only if neighbours disagree. In bf16 the same
// reorders convert both; sums are fp32, and so are the weights' gradients.
class Convolution : public CpuKernel {
 public:
  Convolution(const OperatorSpec& spec, const OperatorGeometry& geometry,
              const dnnl::engine& engine);

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override;
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override;

 private:
  // In the type used for multiplication.
  MemoryDesc AnyDesc(const memory::dims& dims) const {
    return MemoryDesc(dims, DnnlType(spec_.type), Tag::any);
  }
  void PlanForward(const dnnl::engine& engine);
  void PlanBackwardData(const dnnl::engine& engine, ScratchPlan& plan);
  void PlanBackwardWeights(const dnnl::engine& engine, ScratchPlan& plan);

  bool winograd_ = false;
  memory::dims src_, dst_, weights_;
  memory::dims strides_, dilates_, padding_;
  MemoryDesc plain_weights_;
  MemoryDesc bias_;  // empty: none
  Conv::primitive_desc forward_pd_;
  StagedCall forward_, data_, grad_;
};

Convolution::Convolution(const OperatorSpec& spec, const OperatorGeometry& geometry,
                         const dnnl::engine& engine)
    : CpuKernel(spec, geometry) {
  const Geometry2d& p = geometry_.plane;
  src_ = {p.batch, p.in_channels, p.in_height, p.in_width};
  dst_ = {p.batch, p.out_channels, p.out_height, p.out_width};
  if (p.bias) bias_ = PlainDesc({p.out_channels});
  weights_ = {p.out_channels, p.in_channels / p.groups, p.kernel_height, p.kernel_width};
  if (p.groups > 1) {
    weights_[0] /= p.groups;
    weights_.insert(weights_.begin(), p.groups);
  }
  strides_ = {p.stride_height, p.stride_width};
  dilates_ = {p.dilation_height - 1, p.dilation_width - 1};
  padding_ = {p.padding_height, p.padding_width};
  plain_weights_ = PlainDesc(weights_);
  winograd_ = FavoursWinograd(p);

  PlanForward(engine);
  if (!spec_.training) return;
  ScratchPlan plan;
  PlanBackwardData(engine, plan);
  PlanBackwardWeights(engine, plan);
  workspace_bytes_ = std::max(workspace_bytes_, plan.size());
  backward_reads_input_[0] = true;
}

void Convolution::PlanForward(const dnnl::engine& engine) {
  const prop_kind kind =
      spec_.training ? prop_kind::forward_training : prop_kind::forward_inference;
  const Conv::primitive_desc pd = WithAlgorithm(winograd_, [&](algorithm how) {
    const Conv::desc desc(kind, how, AnyDesc(src_), AnyDesc(weights_), bias_, AnyDesc(dst_),
                          strides_, dilates_, padding_, padding_);
    return Conv::primitive_desc(desc, DefaultAttr(), engine);
  });
  WantFast(spec_.type, pd);
  forward_pd_ = pd;
  const std::optional<ValueFormat> format = FormatOf(dst_, pd.dst_desc());
  if (format) SetOutput(*format, pd.dst_desc());

  ScratchPlan plan;
  forward_ = StagedCall(pd, plan,
                        {{DNNL_ARG_SRC, input_desc_, pd.src_desc()},
                         {DNNL_ARG_WEIGHTS, plain_weights_, pd.weights_desc()},
                         {DNNL_ARG_BIAS, bias_, bias_}},
                        {{DNNL_ARG_DST, output_desc_, pd.dst_desc()}});
  workspace_bytes_ = plan.size();
}

void Convolution::PlanBackwardData(const dnnl::engine& engine, ScratchPlan& plan) {
  const ConvData::primitive_desc pd = WithAlgorithm(winograd_, [&](algorithm how) {
    const ConvData::desc desc(how, AnyDesc(src_), AnyDesc(weights_), AnyDesc(dst_), strides_,
                              dilates_, padding_, padding_);
    return ConvData::primitive_desc(desc, DefaultAttr(), engine, forward_pd_);
  });
  WantFast(spec_.type, pd);
  data_ = StagedCall(pd, plan,
                     {{DNNL_ARG_DIFF_DST, output_desc_, pd.diff_dst_desc()},
                      {DNNL_ARG_WEIGHTS, plain_weights_, pd.weights_desc()}},
                     {{DNNL_ARG_DIFF_SRC, input_desc_, pd.diff_src_desc()}});
}

void Convolution::PlanBackwardWeights(const dnnl::engine& engine, ScratchPlan& plan) {
  const MemoryDesc gradient(weights_, memory::data_type::f32, Tag::any);
  const ConvWeights::primitive_desc pd = WithAlgorithm(winograd_, [&](algorithm how) {
    const ConvWeights::desc desc(how, AnyDesc(src_), gradient, bias_, AnyDesc(dst_), strides_,
                                 dilates_, padding_, padding_);
    return ConvWeights::primitive_desc(desc, DefaultAttr(), engine, forward_pd_);
  });
  WantFast(spec_.type, pd);
  const bool either = geometry_.plane.bias;
  grad_ = StagedCall(pd, plan,
                     {{DNNL_ARG_SRC, input_desc_, pd.src_desc()},
                      {DNNL_ARG_DIFF_DST, output_desc_, pd.diff_dst_desc()}},
                     {{DNNL_ARG_DIFF_WEIGHTS, plain_weights_, pd.diff_weights_desc(), either},
                      {DNNL_ARG_DIFF_BIAS, bias_, bias_, either}});
}

void Convolution::Run(const ForwardArgs& args, const CpuStream& stream) {
  const float* const bias = geometry_.plane.bias ? args.parameters[1] : nullptr;
  forward_.Run(stream, args.workspace, {args.inputs[0], args.parameters[0], bias}, {args.output});
}

void Convolution::RunBackward(const BackwardArgs& args, const CpuStream& stream) {
  if (args.grad_inputs[0] != nullptr) {
    data_.Run(stream, args.workspace, {args.grad_output, args.parameters[0]},
              {args.grad_inputs[0]});
  }
  float* const weights = args.grad_parameters[0];
  float* const bias = geometry_.plane.bias ? args.grad_parameters[1] : nullptr;
  if (weights == nullptr && bias == nullptr) return;
  grad_.Run(stream, args.workspace, {args.inputs[0], args.grad_output}, {weights, bias});
}

}  // namespace

bool FavoursWinograd(const Geometry2d& p) {
  constexpr int64_t kTile = 4, kTilesMin = 64, kChannelsMin = 32, kVector = 16;
  const auto ones = [](int64_t height, int64_t width) { return height == 1 && width == 1; };
  const int64_t tiles =
      p.batch * ((p.out_height + kTile - 1) / kTile) * ((p.out_width + kTile - 1) / kTile);
  return p.kernel_height == 3 && p.kernel_width == 3 && p.groups == 1 &&
         ones(p.stride_height, p.stride_width) && ones(p.dilation_height, p.dilation_width) &&
         std::min(p.in_channels, p.out_channels) >= kChannelsMin && p.in_channels % kVector == 0 &&
         p.out_channels % kVector == 0 && tiles >= kTilesMin;
}

const MakeCpuKernel kMakeConvolution = MakeKernel<Convolution>;

}  // namespace starling
