// The nets on which training is measured, on the CPU by tools/bench.sh compute and on a GPU by the
// bundle's check, and their amount of arithmetic.
#ifndef STARLING_TOOLS_BENCH_COMPUTE_NETS_H_
#define STARLING_TOOLS_BENCH_COMPUTE_NETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/graph/graph.h"
#include "proto/job.pb.h"

namespace starling {

struct ComputeNet {
  std::string name;
  JobSpec spec;              // model, optimizer, batch (micro_batches unset) and seed
  double rate = 0;           // the learning rate, constant
  int64_t inputs_below = 0;  // tokens are below this; 0: the input is floats
};

// lenet (batch 128), resnet18 on 32 x 32 (batch 64), gpt: 6 layers of width 384, context 256 (batch
// 8). tools/bench/torch_peer.py has the same nets.
std::vector<std::string> ComputeNetNames();
// Also those that would take a CPU minutes: resnet50 on 224 x 224 (batch 256), gpt2 with 124M
// parameters and 1,024 tokens (batch 16).
std::vector<std::string> AllComputeNetNames();

// kNotFound: no net has this name.
absl::StatusOr<ComputeNet> MakeComputeNet(absl::string_view name);

// Floating-point operations of one sample's training step, where an addition and a multiplication
// are two: convolutions, linear layers and attention (causal attention without the masked part),
// forward and for both gradients; none for a gradient that is not needed. Everything else is bound
// by memory.
double StepFlops(const ResolvedGraph& graph);

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_COMPUTE_NETS_H_
