// Mixed precision for any operator: values are stored in two bytes and computed in fp32.
#include <algorithm>
#include <utility>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"
#include "kernels/half.h"

namespace starling {
namespace {

// Runs `inner`, which computes in fp32: its inputs are widened into the workspace, and its results
// are rounded once on their way out. Values stored in fp32 are passed through.
class Stored : public OperatorKernel {
 public:
  Stored(const OperatorSpec& spec, CpuKernelPtr inner, bool plain_output);

  absl::Status Forward(const ForwardArgs& args, Stream& stream) override;
  absl::Status Backward(const BackwardArgs& args, Stream& stream) override;

 private:
  // An external buffer, and where its numbers lie in the workspace while inner uses them.
  struct Value {
    DataType type = DataType::kFp32;
    int64_t count = 0;
    size_t forward = 0;   // offset, unless it is stored in fp32
    size_t backward = 0;  // likewise, if backward reads it
    size_t gradient = 0;  // likewise
    bool wide() const { return type == DataType::kFp32; }
    size_t bytes() const { return static_cast<size_t>(count) * DataTypeBytes(type); }
    size_t wide_bytes() const { return static_cast<size_t>(count) * sizeof(float); }
  };

  void PlanForward();
  void PlanBackward();

  static float* At(void* workspace, size_t offset) {
    return reinterpret_cast<float*>(static_cast<char*>(workspace) + offset);
  }
  // `stored` itself if it is fp32 or null, else its numbers widened to `offset`.
  const void* In(const Value& value, const void* stored, void* workspace, size_t offset) const;
  // Where inner must write what belongs to `stored`.
  static void* Place(const Value& value, void* stored, void* workspace, size_t offset) {
    return value.wide() || stored == nullptr ? stored : At(workspace, offset);
  }
  // Brings the result there.
  void Out(const Value& value, void* stored, void* workspace, size_t offset) const;

  const int threads_;
  const bool training_;
  const CpuKernelPtr inner_;
  std::vector<Value> inputs_;
  Value output_;
  // For the current call; members, so that a call allocates nothing.
  std::vector<const void*> read_;
  std::vector<void*> written_;
};

Stored::Stored(const OperatorSpec& spec, CpuKernelPtr inner, bool plain_output)
    : OperatorKernel(*inner),
      threads_(spec.kernel_threads),
      training_(spec.training),
      inner_(std::move(inner)) {
  const size_t count = spec.input_shapes.size();
  for (size_t i = 0; i < count; ++i) {
    Value value;
    value.type = StoredType(InputFormat(spec, i));
    value.count = static_cast<int64_t>(input_bytes_[i] / sizeof(float));
    input_bytes_[i] = value.bytes();
    inputs_.push_back(value);
  }
  output_.type = plain_output ? DataType::kFp32 : spec.type;
  output_.count = static_cast<int64_t>(output_bytes_ / sizeof(float));
  output_format_ = StoredAs(output_format_, output_.type);
  output_bytes_ = output_.bytes();
  if (inputs_[0].type != output_.type) forward_in_place_ok_ = backward_in_place_ok_ = false;
  read_.resize(count);
  written_.resize(count);
  PlanForward();
  if (training_) PlanBackward();
}

// Inner's own workspace comes first. If inner can work in place, so can this kernel.
void Stored::PlanForward() {
  ScratchPlan plan;
  plan.Take(inner_->workspace_bytes());
  for (Value& input : inputs_) {
    if (!input.wide()) input.forward = plan.Take(input.wide_bytes());
  }
  const bool in_place = inner_->forward_in_place_ok() && !inputs_[0].wide();
  if (!output_.wide()) {
    output_.forward = in_place ? inputs_[0].forward : plan.Take(output_.wide_bytes());
  }
  workspace_bytes_ = plan.size();
}

void Stored::PlanBackward() {
  ScratchPlan plan;
  plan.Take(inner_->workspace_bytes());
  if (!output_.wide()) {
    if (backward_reads_output_) output_.backward = plan.Take(output_.wide_bytes());
    output_.gradient = plan.Take(output_.wide_bytes());
  }
  const bool in_place = inner_->backward_in_place_ok() && !output_.wide();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Value& input = inputs_[i];
    if (input.wide()) continue;
    if (backward_reads_input_[i]) input.backward = plan.Take(input.wide_bytes());
    input.gradient = i == 0 && in_place ? output_.gradient : plan.Take(input.wide_bytes());
  }
  workspace_bytes_ = std::max(workspace_bytes_, plan.size());
}

const void* Stored::In(const Value& value, const void* stored, void* workspace,
                       size_t offset) const {
  if (value.wide() || stored == nullptr) return stored;
  const uint16_t* const from = static_cast<const uint16_t*>(stored);
  float* const to = At(workspace, offset);
  ParallelRanges(threads_, value.count, value.count, [&](int64_t begin, int64_t end) {
    Widen(value.type, from + begin, to + begin, end - begin);
  });
  return to;
}

void Stored::Out(const Value& value, void* stored, void* workspace, size_t offset) const {
  if (value.wide() || stored == nullptr) return;
  const float* const from = At(workspace, offset);
  uint16_t* const to = static_cast<uint16_t*>(stored);
  ParallelRanges(threads_, value.count, value.count, [&](int64_t begin, int64_t end) {
    Narrow(value.type, from + begin, to + begin, end - begin);
  });
}

absl::Status Stored::Forward(const ForwardArgs& args, Stream& stream) {
  UseKernelThreads(threads_);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    read_[i] = In(inputs_[i], args.inputs[i], args.workspace, inputs_[i].forward);
  }
  ForwardArgs inside = args;
  inside.inputs = read_;
  inside.output = Place(output_, args.output, args.workspace, output_.forward);
  if (absl::Status status = inner_->Forward(inside, stream); !status.ok()) return status;
  Out(output_, args.output, args.workspace, output_.forward);
  return absl::OkStatus();
}

absl::Status Stored::Backward(const BackwardArgs& args, Stream& stream) {
  if (!training_) return inner_->Backward(args, stream);  // returns the error
  UseKernelThreads(threads_);
  void* const workspace = args.workspace;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Value& input = inputs_[i];
    const void* const stored = backward_reads_input_[i] ? args.inputs[i] : nullptr;
    read_[i] = In(input, stored, workspace, input.backward);
    written_[i] = Place(input, args.grad_inputs[i], workspace, input.gradient);
  }
  BackwardArgs inside = args;
  inside.inputs = read_;
  inside.grad_inputs = absl::MakeConstSpan(written_);
  const void* const output = backward_reads_output_ ? args.output : nullptr;
  inside.output = In(output_, output, workspace, output_.backward);
  inside.grad_output = In(output_, args.grad_output, workspace, output_.gradient);
  if (absl::Status status = inner_->Backward(inside, stream); !status.ok()) return status;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Out(inputs_[i], args.grad_inputs[i], workspace, inputs_[i].gradient);
  }
  return absl::OkStatus();
}

}  // namespace

CpuKernelPtr MakeStored(const OperatorSpec& spec, CpuKernelPtr inner, bool plain_output) {
  return std::make_unique<Stored>(spec, std::move(inner), plain_output);
}

}  // namespace starling
