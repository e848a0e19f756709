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
  memory::dims src_, dst_, weights_, bias_;
  memory::dims strides_, dilates_, padding_;
  MemoryDesc plain_weights_;
  Conv::primitive_desc forward_pd_;

  DnnlCall forward_;
  Staging forward_src_, forward_weights_, forward_dst_;
  DnnlCall data_;
  Staging data_dst_, data_weights_, data_src_;
  DnnlCall grad_;
  Staging grad_src_, grad_dst_, grad_weights_;
  // Scratch for the weight's or bias's gradient if only the other is requested.
  size_t unwanted_[2] = {};
};

Convolution::Convolution(const OperatorSpec& spec, const OperatorGeometry& geometry,
                         const dnnl::engine& engine)
    : CpuKernel(spec, geometry) {
  const Geometry2d& p = geometry_.plane;
  src_ = {p.batch, p.in_channels, p.in_height, p.in_width};
  dst_ = {p.batch, p.out_channels, p.out_height, p.out_width};
  bias_ = {p.out_channels};
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
    const Conv::desc desc =
        geometry_.plane.bias
            ? Conv::desc(kind, how, AnyDesc(src_), AnyDesc(weights_), PlainDesc(bias_),
                         AnyDesc(dst_), strides_, dilates_, padding_, padding_)
            : Conv::desc(kind, how, AnyDesc(src_), AnyDesc(weights_), AnyDesc(dst_), strides_,
                         dilates_, padding_, padding_);
    return Conv::primitive_desc(desc, DefaultAttr(), engine);
  });
  WantFast(spec_.type, pd);
  forward_pd_ = pd;
  const std::optional<ValueFormat> format = FormatOf(dst_, pd.dst_desc());
  if (format) SetOutput(*format, pd.dst_desc());

  ScratchPlan plan;
  forward_ = DnnlCall(Conv(pd), pd, engine, plan);
  forward_.Add(DNNL_ARG_SRC, pd.src_desc());
  forward_.Add(DNNL_ARG_WEIGHTS, pd.weights_desc());
  if (geometry_.plane.bias) forward_.Add(DNNL_ARG_BIAS, pd.bias_desc());
  forward_.Add(DNNL_ARG_DST, pd.dst_desc());
  forward_src_ = StageIn(input_desc_, pd.src_desc(), engine, plan);
  forward_weights_ = StageIn(plain_weights_, pd.weights_desc(), engine, plan);
  forward_dst_ = StageOut(pd.dst_desc(), output_desc_, engine, plan);
  workspace_bytes_ = plan.size();
}

void Convolution::PlanBackwardData(const dnnl::engine& engine, ScratchPlan& plan) {
  const ConvData::primitive_desc pd = WithAlgorithm(winograd_, [&](algorithm how) {
    const ConvData::desc desc(how, AnyDesc(src_), AnyDesc(weights_), AnyDesc(dst_), strides_,
                              dilates_, padding_, padding_);
    return ConvData::primitive_desc(desc, DefaultAttr(), engine, forward_pd_);
  });
  WantFast(spec_.type, pd);
  data_ = DnnlCall(ConvData(pd), pd, engine, plan);
  data_.Add(DNNL_ARG_DIFF_DST, pd.diff_dst_desc());
  data_.Add(DNNL_ARG_WEIGHTS, pd.weights_desc());
  data_.Add(DNNL_ARG_DIFF_SRC, pd.diff_src_desc());
  data_dst_ = StageIn(output_desc_, pd.diff_dst_desc(), engine, plan);
  data_weights_ = StageIn(plain_weights_, pd.weights_desc(), engine, plan);
  data_src_ = StageOut(pd.diff_src_desc(), input_desc_, engine, plan);
}

void Convolution::PlanBackwardWeights(const dnnl::engine& engine, ScratchPlan& plan) {
  const MemoryDesc gradient(weights_, memory::data_type::f32, Tag::any);
  const ConvWeights::primitive_desc pd = WithAlgorithm(winograd_, [&](algorithm how) {
    const ConvWeights::desc desc =
        geometry_.plane.bias
            ? ConvWeights::desc(how, AnyDesc(src_), gradient, PlainDesc(bias_), AnyDesc(dst_),
                                strides_, dilates_, padding_, padding_)
            : ConvWeights::desc(how, AnyDesc(src_), gradient, AnyDesc(dst_), strides_, dilates_,
                                padding_, padding_);
    return ConvWeights::primitive_desc(desc, DefaultAttr(), engine, forward_pd_);
  });
  WantFast(spec_.type, pd);
  grad_ = DnnlCall(ConvWeights(pd), pd, engine, plan);
  grad_.Add(DNNL_ARG_SRC, pd.src_desc());
  grad_.Add(DNNL_ARG_DIFF_DST, pd.diff_dst_desc());
  grad_.Add(DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc());
  if (geometry_.plane.bias) {
    grad_.Add(DNNL_ARG_DIFF_BIAS, pd.diff_bias_desc());
    unwanted_[0] = plan.Take(plain_weights_.get_size());
    unwanted_[1] = plan.Take(pd.diff_bias_desc().get_size());
  }
  grad_src_ = StageIn(input_desc_, pd.src_desc(), engine, plan);
  grad_dst_ = StageIn(output_desc_, pd.diff_dst_desc(), engine, plan);
  grad_weights_ = StageOut(pd.diff_weights_desc(), plain_weights_, engine, plan);
}

void Convolution::Run(const ForwardArgs& args, const CpuStream& stream) {
  void* workspace = args.workspace;
  forward_.Bind(DNNL_ARG_SRC, forward_src_.In(args.inputs[0], stream, workspace));
  forward_.Bind(DNNL_ARG_WEIGHTS, forward_weights_.In(args.parameters[0], stream, workspace));
  if (geometry_.plane.bias) forward_.Bind(DNNL_ARG_BIAS, args.parameters[1]);
  forward_.Bind(DNNL_ARG_DST, forward_dst_.Place(args.output, workspace));
  forward_.Run(stream, workspace);
  forward_dst_.Out(args.output, stream, workspace);
}

void Convolution::RunBackward(const BackwardArgs& args, const CpuStream& stream) {
  void* workspace = args.workspace;
  if (args.grad_inputs[0] != nullptr) {
    data_.Bind(DNNL_ARG_DIFF_DST, data_dst_.In(args.grad_output, stream, workspace));
    data_.Bind(DNNL_ARG_WEIGHTS, data_weights_.In(args.parameters[0], stream, workspace));
    data_.Bind(DNNL_ARG_DIFF_SRC, data_src_.Place(args.grad_inputs[0], workspace));
    data_.Run(stream, workspace);
    data_src_.Out(args.grad_inputs[0], stream, workspace);
  }
  const bool bias = geometry_.plane.bias;
  if (args.grad_parameters[0] == nullptr && (!bias || args.grad_parameters[1] == nullptr)) return;
  auto target = [&](int i) -> void* {
    void* wanted = args.grad_parameters[i];
    return wanted != nullptr ? wanted : static_cast<char*>(workspace) + unwanted_[i];
  };
  grad_.Bind(DNNL_ARG_SRC, grad_src_.In(args.inputs[0], stream, workspace));
  grad_.Bind(DNNL_ARG_DIFF_DST, grad_dst_.In(args.grad_output, stream, workspace));
  grad_.Bind(DNNL_ARG_DIFF_WEIGHTS, grad_weights_.Place(target(0), workspace));
  if (bias) grad_.Bind(DNNL_ARG_DIFF_BIAS, target(1));
  grad_.Run(stream, workspace);
  grad_weights_.Out(target(0), stream, workspace);
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

CpuKernelPtr MakeConvolution(const OperatorSpec& spec, const OperatorGeometry& geometry,
                             const dnnl::engine& engine) {
  return std::make_unique<Convolution>(spec, geometry, engine);
}

}  // namespace starling
