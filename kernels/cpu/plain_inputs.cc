#include <algorithm>
#include <utility>

#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

// Runs `inner`, which takes plain inputs, after reorders of the inputs that are not plain.
class PlainInputs : public OperatorKernel {
 public:
  PlainInputs(const OperatorSpec& spec, CpuKernelPtr inner, const dnnl::engine& engine)
      : spec_(spec), inner_(std::move(inner)) {
    ScratchPlan plan;
    plan.Take(inner_->workspace_bytes());
    for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
      const MemoryDesc have = *DescOf(spec.input_shapes[i], spec.input_formats[i]);
      const MemoryDesc plain = PlainDesc(spec.input_shapes[i]);
      inputs_.push_back(StageIn(have, plain, engine, plan));
      gradients_.push_back(StageOut(plain, have, engine, plan));
      input_bytes_.push_back(have.get_size());
      backward_reads_input_.push_back(inner_->backward_reads_input(i));
    }
    output_format_ = inner_->output_format();
    output_bytes_ = inner_->output_bytes();
    saved_bytes_ = inner_->saved_bytes();
    workspace_bytes_ = plan.size();
    backward_reads_output_ = inner_->backward_reads_output();
  }

  absl::Status Forward(const ForwardArgs& args, Stream& stream) override {
    read_.assign(args.inputs.begin(), args.inputs.end());
    ForwardArgs inside = args;
    try {
      Stage(args.workspace, stream);
    } catch (const dnnl::error& error) {
      return DnnlError(spec_, error);
    }
    inside.inputs = read_;
    return inner_->Forward(inside, stream);
  }

  absl::Status Backward(const BackwardArgs& args, Stream& stream) override {
    read_.assign(args.inputs.begin(), args.inputs.end());
    written_.assign(args.grad_inputs.begin(), args.grad_inputs.end());
    BackwardArgs inside = args;
    try {
      for (size_t i = 0; i < read_.size(); ++i) {
        if (!backward_reads_input_[i]) read_[i] = nullptr;
        if (written_[i] != nullptr) written_[i] = gradients_[i].Place(written_[i], args.workspace);
      }
      Stage(args.workspace, stream);
      inside.inputs = read_;
      inside.grad_inputs = absl::MakeConstSpan(written_);
      if (absl::Status status = inner_->Backward(inside, stream); !status.ok()) return status;
      for (size_t i = 0; i < read_.size(); ++i) {
        if (args.grad_inputs[i] == nullptr) continue;
        gradients_[i].Out(args.grad_inputs[i], static_cast<const CpuStream&>(stream),
                          args.workspace);
      }
    } catch (const dnnl::error& error) {
      return DnnlError(spec_, error);
    }
    return absl::OkStatus();
  }

 private:
  void Stage(void* workspace, const Stream& stream) {
    UseKernelThreads(spec_.kernel_threads);
    for (size_t i = 0; i < read_.size(); ++i) {
      if (read_[i] == nullptr) continue;
      read_[i] = inputs_[i].In(read_[i], static_cast<const CpuStream&>(stream), workspace);
    }
  }

  const OperatorSpec spec_;
  const CpuKernelPtr inner_;
  std::vector<Staging> inputs_, gradients_;
  std::vector<const void*> read_;  // of the current call
  std::vector<void*> written_;
};

}  // namespace

bool AllPlain(const OperatorSpec& spec) {
  return std::all_of(spec.input_formats.begin(), spec.input_formats.end(),
                     [](ValueFormat format) { return format.plain(); });
}

bool AllPlainLayouts(const OperatorSpec& spec) {
  return std::all_of(spec.input_formats.begin(), spec.input_formats.end(),
                     [](ValueFormat format) { return LayoutOf(format).plain(); });
}

CpuKernelPtr MakePlainInputs(const OperatorSpec& spec, CpuKernelPtr inner,
                             const dnnl::engine& engine) {
  return std::make_unique<PlainInputs>(spec, std::move(inner), engine);
}

}  // namespace starling
