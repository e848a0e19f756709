// The nets on which training is measured, on the CPU by tools/bench.sh compute and on a GPU by the
// bundle's check, and how much arithmetic they are.
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

// lenet (batch 128), resnet18 on 32 x 32 (batch 64), gpt: 6 layers of width 384, context 256
// (batch 8). tools/bench/torch_peer.py has the same ones.
std::vector<std::string> ComputeNetNames();
// And what a CPU would take minutes for: resnet50 on 224 x 224 (batch 256), gpt2 of 124M
// parameters, 1,024 tokens (batch 16).
std::vector<std::string> AllComputeNetNames();

// kNotFound: there is none of that name.
absl::StatusOr<ComputeNet> MakeComputeNet(absl::string_view name);

// Floating-point operations of one sample's training step, an addition and a multiplication being
// two: convolutions, linear layers and attention (of causal attention what is not masked), forward
// and for both gradients; nothing where nobody wants the gradient. What else there is, is memory.
double StepFlops(const ResolvedGraph& graph);

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_COMPUTE_NETS_H_
