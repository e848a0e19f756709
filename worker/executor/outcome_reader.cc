#include "worker/executor/outcome_reader.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/half.h"

namespace starling {

absl::Status OutcomeReader::Allocate(Device* device, const JobMemory& memory, int64_t samples,
                                     PinnedPool* pinned, Stream& stream) {
  device_ = device;
  graph_ = &memory.graph();
  const size_t judged_bytes = memory.judged_bytes(samples);
  losses_ = reinterpret_cast<float*>(pinned->Take(LossBytes(samples)));
  correct_ = reinterpret_cast<uint32_t*>(pinned->Take(judged_bytes));
  return judged_.Allocate(device, judged_bytes, stream);
}

absl::StatusOr<Outcome> OutcomeReader::Read(const Program& program, Stream& stream) {
  const int64_t n = program.samples();
  const Judgement judgement = {n, JudgedLabels(*graph_), graph_->classes,
                               graph_->nodes.back().kind == OpKind::kBinaryCrossEntropy,
                               program.logits_format()};
  STARLING_RETURN_IF_ERROR(
      device_->CopyFromDevice(losses_, program.losses(), LossBytes(n), stream));
  if (judgement.labels > 0) {
    uint32_t* const judged = judged_.as<uint32_t>();
    STARLING_RETURN_IF_ERROR(
        device_->CountCorrect(judgement, program.logits(), program.labels(), judged, stream));
    STARLING_RETURN_IF_ERROR(
        device_->CopyFromDevice(correct_, judged, n * sizeof(uint32_t), stream));
  }
  STARLING_RETURN_IF_ERROR(stream.Synchronize());
  Outcome outcome;
  outcome.samples = n;
  for (int64_t i = 0; i < n; ++i) {
    outcome.loss_sum += losses_[i];
    if (judgement.labels > 0) outcome.correct += correct_[i];
  }
  return outcome;
}

absl::StatusOr<std::string> FirstNonFinite(const ResolvedGraph& graph, Device* device,
                                           const RandomKey& random, Program& program,
                                           Stream& stream) {
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node) {
    STARLING_RETURN_IF_ERROR(program.Forward(node, random, stream));
    std::vector<uint8_t> output(program.output_bytes(node));
    STARLING_RETURN_IF_ERROR(
        device->CopyFromDevice(output.data(), program.output(node), output.size(), stream));
    STARLING_RETURN_IF_ERROR(stream.Synchronize());
    if (AllFinite(program.output_type(node), output.data(), output.size())) continue;
    const ResolvedNode& resolved = graph.nodes[node];
    return absl::StrCat(resolved.name, " (", Rule(resolved.kind).name, ")");
  }
  return std::string();
}

}  // namespace starling
