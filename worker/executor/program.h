// The graph compiled for one lane and one micro-batch size: kernels, a memory plan, and all
// pointers bound in advance. For the executor and worker/inference.
#ifndef STARLING_WORKER_EXECUTOR_PROGRAM_H_
#define STARLING_WORKER_EXECUTOR_PROGRAM_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/graph/backward.h"
#include "common/graph/graph.h"
#include "common/graph/memory_plan.h"
#include "common/placement/layout.h"
#include "kernels/device.h"
#include "proto/job.pb.h"

namespace starling {

struct ProgramOptions {
  int64_t samples = 1;  // in the micro-batch
  bool training = true;
  int kernel_threads = 1;
  int64_t global_batch = 1;
  Recompute recompute;              // activations that backward recomputes; training only
  DataType type = DataType::kFp32;  // of values except inputs, labels and losses
  bool tf32 = false;                // with kFp32: OperatorSpec::tf32
  bool tune = false;                // as OperatorSpec::tune
  bool host_reads_logits = false;   // they are plain
};

// Used by one thread at a time.
class Program {
 public:
  // `graph` and `device` outlive the program. `twin`, if not null, was created with the same
  // arguments; its memory plan is reused. kInvalidArgument: the device refuses an operator, the
  // graph does not support options.recompute, or no recomputation fits its budget.
  static absl::StatusOr<std::unique_ptr<Program>> Create(const ResolvedGraph& graph, Device* device,
                                                         const ProgramOptions& options,
                                                         const Program* twin = nullptr);

  // The size of Bind's arena; programs that never run concurrently may share it.
  size_t arena_bytes() const { return plan_.peak_bytes + kBlockAlignment + shared_bytes_; }
  // The plan's part of it: activations, their gradients, what forward saves, scratch.
  size_t activation_bytes() const { return plan_.peak_bytes; }
  // The other part, in training: gradients of shared parameters that must be added.
  static size_t SharedGradientBytes(const ResolvedGraph& graph);
  // How much of forward runs again in backward, by estimated cost: 0 to 1.
  double recomputed_share() const;

  // `parameters` and `gradients` (training only) are flat buffers in the order of `layout`.
  // `values`, if not null, is device memory that replaces the corresponding arguments of Forward
  // and Backward.
  void Bind(char* arena, const Layout& layout, const float* parameters, float* gradients,
            const StepValues* values = nullptr);

  // Copies a micro-batch in; `inputs` may be null if the graph does not read them.
  absl::Status Load(const void* inputs, const void* labels, Stream& stream);
  // As Load, from device memory.
  absl::Status LoadFromDevice(const void* inputs, const void* labels, Stream& stream);
  // Per micro-batch; 0 if the graph does not read inputs.
  size_t input_bytes() const { return LoadedBytes(kInputValue); }
  size_t label_bytes() const { return LoadedBytes(kLabelValue); }
  absl::Status Forward(int node, const RandomKey& random, Stream& stream);
  // The nodes that must run again before that step, in this order, each by ForwardAgain.
  const std::vector<int>& again(int step) const { return plan_.again[step]; }
  // `random` must be that of Forward for the same micro-batch, so that its random numbers repeat.
  absl::Status ForwardAgain(int node, const RandomKey& random, Stream& stream);
  // A step of backward_steps(). A parameter's gradient is complete after the step of its first user
  // in forward order, which is the last in backward's; those of several users are added in
  // backward's order. `loss_scale` multiplies the gradients of all values, and so those of
  // trainable parameters.
  absl::Status Backward(int step, double loss_scale, Stream& stream);

  // A line for each reason why operators do not use the device's faster path.
  std::vector<std::string> slower_operators() const;

  const std::vector<BackwardStep>& backward_steps() const { return backward_; }
  int64_t samples() const { return options_.samples; }
  // Valid between forward and backward.
  const float* losses() const { return losses_; }  // [samples]
  const void* logits() const { return logits_; }   // [samples, the logits' shape]
  ValueFormat logits_format() const { return value_formats_[graph_.logits]; }
  const void* labels() const { return labels_; }  // as loaded; null: nothing reads them
  // Valid right after the node's forward.
  const void* output(int node) const { return nodes_[node].output; }
  size_t output_bytes(int node) const { return kernels_[node]->output_bytes(); }
  DataType output_type(int node) const { return device_->TypeOf(kernels_[node]->output_format()); }

 private:
  struct BoundNode {
    std::vector<const void*> inputs;
    std::vector<const float*> parameters;
    void* output = nullptr;
    void* saved = nullptr;
    void* workspace = nullptr;
  };
  struct Addition {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
    ValueFormat format;
  };
  struct BoundStep {
    const void* grad_output = nullptr;
    std::vector<void*> grad_inputs;
    std::vector<float*> grad_parameters;
    void* workspace = nullptr;
    std::vector<Addition> additions;  // for values and parameters that several operators read
  };

  Program(const ResolvedGraph& graph, Device* device, const ProgramOptions& options)
      : graph_(graph), device_(device), options_(options) {}

  size_t LoadedBytes(int value) const {
    return plan_.values[value].bytes == 0 ? 0 : value_bytes_[value];
  }
  absl::Status CreateKernels();
  absl::Status Plan();
  absl::Status RunForward(int node, const BoundNode& bound, const RandomKey& random,
                          Stream& stream);
  // `values`, `saved`, `workspace`: from the plan.
  BoundNode BindNode(int node, char* arena, const Layout& layout, const float* parameters,
                     const std::vector<Block>& values, const std::vector<Block>& saved,
                     const std::vector<Block>& workspace) const;
  void BindStep(int step, char* arena);
  // `written`: the parameters whose gradients earlier steps write.
  void BindParameterGradients(int step, char* arena, const Layout& layout, float* gradients,
                              std::vector<bool>* written);

  const ResolvedGraph& graph_;
  Device* const device_;
  const ProgramOptions options_;
  std::vector<std::unique_ptr<OperatorKernel>> kernels_;  // by node
  std::vector<size_t> value_bytes_;
  std::vector<ValueFormat> value_formats_;
  std::vector<BackwardStep> backward_;
  MemoryPlan plan_;
  size_t shared_bytes_ = 0;  // after the plan's: gradients of shared parameters, to be added

  std::vector<BoundNode> nodes_;       // for forward
  std::vector<BoundNode> late_nodes_;  // for backward, and for forward when it runs again
  std::vector<BoundStep> steps_;
  void* input_ = nullptr;  // null: nothing reads it
  void* labels_ = nullptr;
  const StepValues* values_ = nullptr;
  const float* losses_ = nullptr;
  const void* logits_ = nullptr;
};

// The kernel's view of a node. Exposed for tests.
OperatorSpec KernelSpec(const ResolvedGraph& graph, int node, const ProgramOptions& options);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_PROGRAM_H_
