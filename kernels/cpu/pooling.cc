#include <algorithm>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

using dnnl::memory;
using dnnl::prop_kind;
using Pool = dnnl::pooling_v2_forward;
using PoolBackward = dnnl::pooling_v2_backward;

// Keeps its input's format and type. Maximum: `saved` is oneDNN's workspace, the positions of the
// maxima.
class Pooling : public CpuKernel {
 public:
  Pooling(const OperatorSpec& spec, const OperatorGeometry& geometry, const dnnl::engine& engine);

 protected:
  void Run(const ForwardArgs& args, const CpuStream& stream) override;
  void RunBackward(const BackwardArgs& args, const CpuStream& stream) override;

 private:
  bool saves() const { return spec_.training && geometry_.op == OperatorGeometry::Op::kMaxPool2d; }

  StagedCall forward_, backward_;
};

Pooling::Pooling(const OperatorSpec& spec, const OperatorGeometry& geometry,
                 const dnnl::engine& engine)
    : CpuKernel(spec, geometry) {
  const Geometry2d& p = geometry_.plane;
  const memory::dims dst = {p.batch, p.out_channels, p.out_height, p.out_width};
  const memory::dims strides = {p.stride_height, p.stride_width};
  const memory::dims kernel = {p.kernel_height, p.kernel_width};
  const memory::dims dilation = {0, 0};
  const memory::dims padding = {p.padding_height, p.padding_width};
  // oneDNN wants the padding after the last window, which may differ from the one before the first.
  const memory::dims after = {
      (p.out_height - 1) * p.stride_height + p.kernel_height - p.in_height - p.padding_height,
      (p.out_width - 1) * p.stride_width + p.kernel_width - p.in_width - p.padding_width};
  const dnnl::algorithm algorithm = geometry_.op == OperatorGeometry::Op::kMaxPool2d
                                        ? dnnl::algorithm::pooling_max
                                        : dnnl::algorithm::pooling_avg_include_padding;
  const DataType type = StoredType(input_format_);
  const MemoryDesc any(dst, DnnlType(type), Tag::any);
  const Pool::primitive_desc pd(
      Pool::desc(spec_.training ? prop_kind::forward_training : prop_kind::forward_inference,
                 algorithm, input_desc_, any, strides, kernel, dilation, padding, after),
      DefaultAttr(), engine);
  WantFast(type, pd);
  const std::optional<ValueFormat> format = FormatOf(dst, pd.dst_desc());
  if (format) SetOutput(*format, pd.dst_desc());

  const MemoryDesc maxima = saves() ? pd.workspace_desc() : MemoryDesc();
  saved_bytes_ = maxima.get_size();
  ScratchPlan plan;
  forward_ = StagedCall(
      pd, plan, {{DNNL_ARG_SRC, input_desc_, input_desc_}},
      {{DNNL_ARG_DST, output_desc_, pd.dst_desc()}, {DNNL_ARG_WORKSPACE, maxima, maxima}});
  workspace_bytes_ = plan.size();
  if (!spec_.training) return;

  const PoolBackward::primitive_desc back_pd(
      PoolBackward::desc(algorithm, input_desc_, pd.dst_desc(), strides, kernel, dilation, padding,
                         after),
      DefaultAttr(), engine, pd);
  WantFast(type, back_pd);
  ScratchPlan back_plan;
  backward_ = StagedCall(back_pd, back_plan,
                         {{DNNL_ARG_DIFF_DST, output_desc_, back_pd.diff_dst_desc()},
                          {DNNL_ARG_WORKSPACE, maxima, maxima}},
                         {{DNNL_ARG_DIFF_SRC, input_desc_, back_pd.diff_src_desc()}});
  workspace_bytes_ = std::max(workspace_bytes_, back_plan.size());
}

void Pooling::Run(const ForwardArgs& args, const CpuStream& stream) {
  forward_.Run(stream, args.workspace, {args.inputs[0]}, {args.output, args.saved});
}

void Pooling::RunBackward(const BackwardArgs& args, const CpuStream& stream) {
  if (args.grad_inputs[0] == nullptr) return;
  backward_.Run(stream, args.workspace, {args.grad_output, args.saved}, {args.grad_inputs[0]});
}

}  // namespace

const MakeCpuKernel kMakePooling = MakeKernel<Pooling>;

}  // namespace starling
