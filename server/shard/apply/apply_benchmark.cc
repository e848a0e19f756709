// GB/s of the kernels over a working set far larger than the caches, against a triad of the same
// size measured in the same run. DRAM bytes are counted as for one pass in place (momentum,
// nesterov and adagrad 20, Adam and LAMB 28 per element).
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "server/shard/apply/update.h"
#include "server/shard/apply/verify.h"

namespace starling {
namespace {

constexpr size_t kElements = 24 << 20;        // 96 MiB per stream
constexpr size_t kSliceElements = 256 << 10;  // one frame's

struct Memory {
  Memory()
      : value(kElements, 0.5f),
        slot0(kElements, 0.01f),
        slot1(kElements, 0.01f),
        gradient(kElements, 0.1f) {}
  std::vector<float> value, slot0, slot1, gradient;
};

Memory& SharedMemory() {
  static Memory* const memory = new Memory;
  return *memory;
}

PayloadPiece GradientBytes(size_t first) {
  return {reinterpret_cast<const uint8_t*>(SharedMemory().gradient.data() + first),
          kSliceElements * sizeof(float)};
}

void RunRule(benchmark::State& state, const UpdateRule& rule, int bytes_per_element) {
  Memory& m = SharedMemory();
  const auto set = static_cast<InstructionSet>(state.range(0));
  for (auto _ : state) {
    for (size_t first = 0; first < kElements; first += kSliceElements) {
      const PayloadPiece piece = GradientBytes(first);
      ApplyUpdate(rule, {.rate = 1e-6f, .scale = 1, .t = 10, .lag = 0}, Payload(&piece, 1),
                  {.in = m.value.data() + first,
                   .out = m.value.data() + first,
                   .slot0 = m.slot0.data() + first,
                   .slot1 = m.slot1.data() + first,
                   .elements = kSliceElements},
                  set);
    }
  }
  state.SetLabel(InstructionSetName(set));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kElements) * bytes_per_element);
}

void BM_Momentum(benchmark::State& state) {
  RunRule(state, {.kind = UpdateRule::kMomentum, .momentum = 0.9}, 20);
}
void BM_Adam(benchmark::State& state) {
  RunRule(state, {.kind = UpdateRule::kAdam, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}, 28);
}

void BM_Nesterov(benchmark::State& state) {
  RunRule(state, {.kind = UpdateRule::kNesterov, .momentum = 0.9}, 20);
}
void BM_Adagrad(benchmark::State& state) {
  RunRule(state, {.kind = UpdateRule::kAdagrad, .epsilon = 1e-10}, 20);
}
// Norms and step read the slice again, from the caches as far as it fits.
void BM_Lamb(benchmark::State& state) {
  RunRule(state,
          {.kind = UpdateRule::kLamb,
           .beta1 = 0.9,
           .beta2 = 0.999,
           .epsilon = 1e-6,
           .trust_ratio = true,
           .blocks = {kSliceElements / 2, kSliceElements / 2}},
          28);
}
void BM_MomentumClipped(benchmark::State& state) {
  RunRule(state,
          {.kind = UpdateRule::kMomentum,
           .momentum = 0.9,
           .clip_norm = 1,
           .blocks = {kSliceElements / 2, kSliceElements / 2}},
          20);
}

void BM_Triad(
    benchmark::State& state) {  // a = b + s * c: reads 3 streams (one for ownership), writes one
  Memory& m = SharedMemory();
  for (auto _ : state) {
    for (size_t i = 0; i < kElements; ++i) m.slot0[i] = m.value[i] + 0.5f * m.gradient[i];
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kElements) * 16);
}

void BM_Verify(benchmark::State& state) {
  for (auto _ : state) {
    for (size_t first = 0; first < kElements; first += kSliceElements) {
      const PayloadPiece piece = GradientBytes(first);
      benchmark::DoNotOptimize(VerifyPayload(Payload(&piece, 1)));
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kElements) * 4);
}

void ForUsableSets(benchmark::internal::Benchmark* b) {
  for (const InstructionSet set : UsableInstructionSets()) b->Arg(static_cast<int>(set));
  b->Unit(benchmark::kMillisecond);
}

BENCHMARK(BM_Triad)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Momentum)->Apply(ForUsableSets);
BENCHMARK(BM_Nesterov)->Apply(ForUsableSets);
BENCHMARK(BM_Adagrad)->Apply(ForUsableSets);
BENCHMARK(BM_Adam)->Apply(ForUsableSets);
BENCHMARK(BM_Lamb)->Apply(ForUsableSets);
BENCHMARK(BM_MomentumClipped)->Apply(ForUsableSets);
BENCHMARK(BM_Verify)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace starling
