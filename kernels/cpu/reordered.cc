#include <algorithm>
#include <utility>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

// Keeps inner's own output in `saved` if its backward reads it.
class Reordered : public OperatorKernel {
 public:
  Reordered(const OperatorSpec& spec, bool plain_inputs, CpuKernelPtr inner,
            const dnnl::engine& engine)
      : OperatorKernel(*inner), spec_(spec), inner_(std::move(inner)) {
    ScratchPlan plan;
    plan.Take(workspace_bytes_);
    for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
      const MemoryDesc have = InputDesc(spec, i);
      const MemoryDesc want = plain_inputs ? PlainDesc(spec.input_shapes[i]) : have;
      inputs_.push_back(StageIn(have, want, engine, plan));
      gradients_.push_back(StageOut(want, have, engine, plan));
      input_bytes_[i] = have.get_size();
    }
    forward_in_place_ok_ = backward_in_place_ok_ = false;
    if (spec.plain_output && !output_format_.plain()) PlanOutput(engine, plan);
    workspace_bytes_ = plan.size();
  }

  absl::Status Forward(const ForwardArgs& args, Stream& stream) override {
    const CpuStream& cpu = static_cast<const CpuStream&>(stream);
    read_.assign(args.inputs.begin(), args.inputs.end());
    ForwardArgs inside = args;
    inside.inputs = read_;
    if (to_plain_) inside.output = Made(args.saved, args.workspace);
    absl::Status status = Guarded(spec_, [&] { Stage(args.workspace, cpu); });
    if (status.ok()) status = inner_->Forward(inside, stream);
    if (!status.ok() || !to_plain_) return status;
    return Guarded(spec_, [&] {
      to_plain_->Run(cpu, args.workspace, {inside.output, args.output});
    });
  }

  absl::Status Backward(const BackwardArgs& args, Stream& stream) override {
    const CpuStream& cpu = static_cast<const CpuStream&>(stream);
    read_.assign(args.inputs.begin(), args.inputs.end());
    written_.assign(args.grad_inputs.begin(), args.grad_inputs.end());
    BackwardArgs inside = args;
    inside.inputs = read_;
    inside.grad_inputs = absl::MakeConstSpan(written_);
    if (to_plain_) inside.output = keeps_output_ ? Made(args.saved, args.workspace) : nullptr;
    absl::Status status = Guarded(spec_, [&] {
      for (size_t i = 0; i < read_.size(); ++i) {
        if (!backward_reads_input_[i]) read_[i] = nullptr;
        if (written_[i] != nullptr) written_[i] = gradients_[i].Place(written_[i], args.workspace);
      }
      Stage(args.workspace, cpu);
      inside.grad_output = grad_output_.In(args.grad_output, cpu, args.workspace);
    });
    if (status.ok()) status = inner_->Backward(inside, stream);
    if (!status.ok()) return status;
    return Guarded(spec_, [&] {
      for (size_t i = 0; i < read_.size(); ++i) {
        void* const to = args.grad_inputs[i];
        if (to != nullptr) gradients_[i].Out(to, cpu, args.workspace);
      }
    });
  }

 private:
  void PlanOutput(const dnnl::engine& engine, ScratchPlan& plan) {
    const MemoryDesc made = *DescOf(spec_.output_shape, output_format_);
    const MemoryDesc plain = PlainDesc(spec_.output_shape);
    ScratchPlan saved;
    saved.Take(saved_bytes_);
    keeps_output_ = std::exchange(backward_reads_output_, false);
    made_ = (keeps_output_ ? saved : plan).Take(made.get_size());
    grad_output_ = StageIn(plain, made, engine, plan);
    to_plain_ = ReorderCall(made, plain, engine, plan);
    output_format_ = ValueFormat{};
    output_bytes_ = plain.get_size();
    saved_bytes_ = saved.size();
  }
  // Where inner's output is before it is made plain.
  void* Made(void* saved, void* workspace) const {
    return static_cast<char*>(keeps_output_ ? saved : workspace) + made_;
  }
  void Stage(void* workspace, const CpuStream& stream) {
    for (size_t i = 0; i < read_.size(); ++i) {
      if (read_[i] != nullptr) read_[i] = inputs_[i].In(read_[i], stream, workspace);
    }
  }

  const OperatorSpec spec_;
  const CpuKernelPtr inner_;
  std::vector<Staging> inputs_, gradients_;
  std::optional<DnnlCall> to_plain_;  // if inner's output is not plain, but must be
  Staging grad_output_;
  bool keeps_output_ = false;
  size_t made_ = 0;                // offset of inner's output in saved or workspace
  std::vector<const void*> read_;  // of the current call
  std::vector<void*> written_;
};

}  // namespace

CpuKernelPtr MakeReordered(const OperatorSpec& spec, bool plain_inputs, CpuKernelPtr inner,
                           const dnnl::engine& engine) {
  plain_inputs = plain_inputs && !std::ranges::all_of(spec.input_formats, [](ValueFormat format) {
                   return format.plain();
                 });
  if (!plain_inputs && (!spec.plain_output || inner->output_format().plain())) return inner;
  return std::make_unique<Reordered>(spec, plain_inputs, std::move(inner), engine);
}

}  // namespace starling
