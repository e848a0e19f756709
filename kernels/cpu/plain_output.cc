#include <algorithm>
#include <utility>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

// Runs `inner` between two reorders. Keeps its own output in `saved` if its backward reads it.
class PlainOutput : public OperatorKernel {
 public:
  PlainOutput(const OperatorSpec& spec, CpuKernelPtr inner, const dnnl::engine& engine)
      : spec_(spec), inner_(std::move(inner)) {
    const MemoryDesc inside = *DescOf(spec.output_shape, inner_->output_format());
    const MemoryDesc plain = PlainDesc(spec.output_shape);
    ScratchPlan saved;
    saved.Take(inner_->saved_bytes());
    ScratchPlan plan;
    plan.Take(inner_->workspace_bytes());
    keeps_output_ = inner_->backward_reads_output();
    output_ = (keeps_output_ ? saved : plan).Take(inside.get_size());
    grad_ = StageIn(plain, inside, engine, plan);
    const dnnl::reorder::primitive_desc pd(engine, inside, engine, plain, DefaultAttr());
    to_plain_ = DnnlCall(dnnl::reorder(pd), pd, engine, plan);
    to_plain_.Add(DNNL_ARG_FROM, inside);
    to_plain_.Add(DNNL_ARG_TO, plain);

    output_bytes_ = plain.get_size();
    saved_bytes_ = saved.size();
    workspace_bytes_ = plan.size();
    for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
      input_bytes_.push_back(inner_->input_bytes(i));
      backward_reads_input_.push_back(inner_->backward_reads_input(i));
    }
  }

  absl::Status Forward(const ForwardArgs& args, Stream& stream) override {
    ForwardArgs inside = args;
    inside.output = static_cast<char*>(keeps_output_ ? args.saved : args.workspace) + output_;
    if (absl::Status status = inner_->Forward(inside, stream); !status.ok()) return status;
    try {
      to_plain_.Bind(DNNL_ARG_FROM, inside.output);
      to_plain_.Bind(DNNL_ARG_TO, args.output);
      to_plain_.Run(static_cast<const CpuStream&>(stream), args.workspace);
    } catch (const dnnl::error& error) {
      return DnnlError(spec_, error);
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const BackwardArgs& args, Stream& stream) override {
    BackwardArgs inside = args;
    inside.output = keeps_output_ ? static_cast<const char*>(args.saved) + output_ : nullptr;
    try {
      UseKernelThreads(spec_.kernel_threads);
      inside.grad_output =
          grad_.In(args.grad_output, static_cast<const CpuStream&>(stream), args.workspace);
    } catch (const dnnl::error& error) {
      return DnnlError(spec_, error);
    }
    return inner_->Backward(inside, stream);
  }

 private:
  const OperatorSpec spec_;
  const CpuKernelPtr inner_;
  bool keeps_output_ = false;
  size_t output_ = 0;  // offset of inner's output in saved or workspace
  DnnlCall to_plain_;
  Staging grad_;
};

}  // namespace

CpuKernelPtr MakePlainOutput(const OperatorSpec& spec, CpuKernelPtr inner,
                             const dnnl::engine& engine) {
  return std::make_unique<PlainOutput>(spec, std::move(inner), engine);
}

}  // namespace starling
