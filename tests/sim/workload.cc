#include "tests/sim/workload.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/data_plan/job_steps.h"

namespace starling::sim {
namespace {

void AddLinear(ModelSource& model, int64_t outputs) {
  ModelSource::Layer& layer = *model.add_layers();
  layer.set_op("linear");
  (*layer.mutable_attributes())["out_features"].set_i(outputs);
}

uint64_t SamplesOfMicroBatch(const Workload& w, uint64_t id, uint64_t of) {
  const uint64_t batch = w.spec.batch().global();
  const uint64_t micro = w.spec.batch().micro_batches();
  const uint64_t size = batch / micro;
  const uint64_t first = id / micro * batch + id % micro * size;
  return first >= of ? 0 : std::min(size, of - first);
}

uint64_t SamplesOfMicroBatch(const Workload& w, uint64_t id) {
  return SamplesOfMicroBatch(w, id, w.train_samples);
}

// In [0, 3], and 0 for an empty micro-batch.
float CountingGradient(const Workload& w, uint32_t slice, uint32_t element, const WorkRange& range,
                       uint64_t id) {
  const uint64_t samples = SamplesOfMicroBatch(w, id);
  if (samples == 0) return 0;
  return static_cast<float>(Mix(Mix(slice, element), Mix(range.epoch, id)) & 3);
}

void MicroBatch(const Workload& w, const std::vector<ValuesPtr>& values, uint32_t slice,
                const WorkRange& range, uint64_t id, Values* out) {
  const auto elements = static_cast<uint32_t>(out->size());
  if (w.gradient == GradientKind::kCounting) {
    for (uint32_t e = 0; e < elements; ++e) (*out)[e] = CountingGradient(w, slice, e, range, id);
    return;
  }
  const auto samples = static_cast<float>(SamplesOfMicroBatch(w, id));
  float all = 0;
  for (const ValuesPtr& v : values) all += v->front() + v->back();
  for (uint32_t e = 0; e < elements; ++e) {
    const float noise =
        static_cast<float>(Mix(Mix(slice, e), Mix(range.epoch, id)) >> 40) * 0x1p-24F - 0.5F;
    (*out)[e] = samples * ((*values[slice])[e] * 0.37F + all * 0.013F + noise) /
                static_cast<float>(w.spec.batch().global());
  }
}

void Sum(const Workload& w, const std::vector<ValuesPtr>& values, uint32_t slice,
         const WorkRange& range, uint64_t first, uint64_t count, Values* out) {
  if (count == 1) return MicroBatch(w, values, slice, range, first, out);
  Sum(w, values, slice, range, first, count / 2, out);
  Values right(out->size());
  Sum(w, values, slice, range, first + count / 2, count / 2, &right);
  for (size_t i = 0; i < right.size(); ++i) (*out)[i] += right[i];
}

void SetPolicy(Random& random, Workload& w) {
  Policy& policy = *w.spec.mutable_policy();
  switch (random.Below(5)) {
    case 0:
    case 1: policy.set_kind(Policy::BSP); break;
    case 2:
    case 3:
      policy.set_kind(Policy::SSP);
      policy.set_staleness(static_cast<uint32_t>(random.Below(4)));
      break;
    default: policy.set_kind(Policy::ASYNC);
  }
  w.gradient = policy.kind() == Policy::BSP && random.Chance(0.7) ? GradientKind::kDependent
                                                                  : GradientKind::kCounting;
}

void SetOptimizer(Workload& w) {
  Optimizer& optimizer = *w.spec.mutable_optimizer();
  if (w.gradient == GradientKind::kCounting) {
    optimizer.mutable_sgd();
    optimizer.mutable_learning_rate()->set_constant(1);
    return;
  }
  optimizer.mutable_adam()->set_beta1(0.9);
  optimizer.mutable_adam()->set_beta2(0.999);
  optimizer.mutable_adam()->set_epsilon(1e-8);
  optimizer.mutable_learning_rate()->mutable_step()->set_initial(0.01);
  optimizer.mutable_learning_rate()->mutable_step()->set_factor(0.5);
  optimizer.mutable_learning_rate()->mutable_step()->set_every_steps(40);
}

// Clips some jobs whose bits are compared. Draws from its own random numbers.
void SetClip(uint64_t seed, Workload& w) {
  Random random(Mix(seed, 900));
  if (w.spec.policy().kind() != Policy::BSP || w.gradient != GradientKind::kDependent) return;
  if (!random.Chance(0.6)) return;
  w.spec.mutable_clip()->set_scope(Clip::GLOBAL);
  w.spec.mutable_clip()->set_norm(random.Chance(0.5) ? 1 : 15);
}

// Limits the running time of some jobs. Draws from its own random numbers.
void SetWallTime(uint64_t seed, int number, Workload& w) {
  Random random(Mix(seed, 960 + number));
  if (!random.Chance(0.12)) return;
  // The least leaves no time for a step.
  const int64_t tenths = random.Chance(0.25) ? 1 : random.Between(2, 30);
  w.spec.mutable_stop()->set_wall_time_seconds(0.1 * static_cast<double>(tenths));
}

// Makes some jobs fp16. Draws from its own random numbers.
void SetPrecision(uint64_t seed, int number, Workload& w) {
  Random random(Mix(seed, 910 + number));
  if (!random.Chance(0.35)) return;
  w.spec.set_precision(PRECISION_FP16);
  if (random.Chance(0.1)) w.overflows_from = random.Below(40);
}

// Gives some jobs backup workers, also those that only come to BSP later. Draws from its own random
// numbers.
void SetBackupWorkers(uint64_t seed, int number, Workload& w) {
  Random random(Mix(seed, 915 + number));
  const uint32_t most = std::min(2u, w.spec.workers_max() - 1);
  if (most == 0 || !random.Chance(0.5)) return;
  w.spec.set_workers_backup(static_cast<uint32_t>(random.Between(1, most)));
}

}  // namespace

Workload MakeWorkload(uint64_t seed, int number) {
  Random random(Mix(seed, 100 + number));
  Workload w;
  w.queued = number > 0;
  w.spec.set_name(absl::StrCat("job-", number));
  w.spec.set_seed(seed);
  const int layers = static_cast<int>(random.Between(2, 7));
  for (int i = 0; i < layers; ++i) AddLinear(*w.spec.mutable_model_source(), random.Between(2, 6));
  AddLinear(*w.spec.mutable_model_source(), 2);  // the classes
  SetPolicy(random, w);
  SetOptimizer(w);
  SetClip(seed, w);
  SetPrecision(seed, number, w);
  const uint32_t micro = 4u << random.Below(3);
  const uint32_t batch = micro * static_cast<uint32_t>(random.Between(1, 3));
  w.spec.mutable_batch()->set_global(batch);
  w.spec.mutable_batch()->set_micro_batches(micro);
  w.spec.mutable_batch()->set_kernel_threads(1);
  // Draws from its own random numbers.
  const bool once = Random(Mix(seed, 930 + number)).Chance(0.25);
  w.spec.set_durability(once ? DURABILITY_NONE : DURABILITY_AUTO);
  const auto epochs = static_cast<uint32_t>(random.Between(2, 5));
  const uint64_t clocks = number > 0 ? 20 : 100;
  const uint64_t steps = (clocks + epochs - 1) / epochs;
  w.train_samples = steps * batch;
  // A short last batch: half of a batch, so that its rescaling is exact.
  if (batch % 2 == 0 && random.Chance(0.5)) w.train_samples -= batch / 2;
  w.spec.mutable_train()->mutable_csv()->set_path("/simulated/train");
  w.spec.mutable_stop()->set_epochs(epochs);
  SetWallTime(seed, number, w);
  w.spec.set_workers_min(static_cast<uint32_t>(random.Between(1, number > 0 ? 2 : 3)));
  w.spec.set_workers_max(static_cast<uint32_t>(random.Between(w.spec.workers_min(), 5)));
  SetBackupWorkers(seed, number, w);
  if (random.Chance(0.5)) {
    w.spec.mutable_test()->mutable_csv()->set_path("/simulated/test");
    w.spec.mutable_evaluate()->set_every_epochs(static_cast<uint32_t>(random.Between(1, 2)));
    w.test_samples = static_cast<uint64_t>(random.Between(1, 16 * batch));
  }
  if (w.gradient == GradientKind::kCounting) w.switches = static_cast<uint32_t>(random.Below(5));
  if (random.Chance(0.5)) w.partitions = static_cast<uint32_t>(random.Between(1, 3));
  if (random.Chance(0.04)) {
    w.poisoned = true;
    w.poison = {WorkPurpose::kTrain, static_cast<uint32_t>(random.Below(epochs)),
                random.Below(steps) * micro, micro};
  }
  return w;
}

ItemKey ItemOf(const Workload& workload, const WorkRange& range) {
  const uint64_t micro = workload.spec.batch().micro_batches();
  return {range.epoch, range.first / micro * micro};
}

uint64_t JobStep(const Workload& workload, const WorkRange& range) {
  return range.epoch * StepsInFullEpoch(workload.spec, workload.train_samples) +
         range.first / workload.spec.batch().micro_batches();
}

std::string RangeToString(const WorkRange& range) {
  return absl::StrCat(range.epoch, ":[", range.first, ",", range.first + range.count, ")");
}

uint64_t SamplesIn(const Workload& workload, const WorkRange& range) {
  uint64_t samples = 0;
  for (uint64_t id = range.first; id < range.first + range.count; ++id) {
    samples += SamplesOfMicroBatch(workload, id);
  }
  return samples;
}

Values Contribution(const Workload& w, const Layout& layout, const std::vector<ValuesPtr>& values,
                    SliceId slice, const WorkRange& range) {
  Values sum(layout.slices[slice.value].elements);
  Sum(w, values, slice.value, range, range.first, range.count, &sum);
  return sum;
}

Values ExpectedWith(const Workload& w, const Layout& layout, SliceId slice,
                    const std::vector<std::pair<WorkRange, int>>& times) {
  Values values = InitialValues(layout.slices[slice.value]);
  const auto batch = static_cast<float>(w.spec.batch().global());
  for (const auto& [range, count] : times) {
    const Values sum = Contribution(w, layout, {}, slice, range);
    const auto samples = static_cast<float>(SamplesIn(w, range));
    for (size_t e = 0; e < values.size(); ++e)
      values[e] -= static_cast<float>(count) * sum[e] * (batch / samples);
  }
  return values;
}

void AddStep(const Workload& w, const Layout& layout, SliceId slice, uint64_t step,
             Values* values) {
  const uint64_t full = StepsInFullEpoch(w.spec, w.train_samples);
  const uint32_t micro = w.spec.batch().micro_batches();
  const WorkRange item{WorkPurpose::kTrain, static_cast<uint32_t>(step / full), step % full * micro,
                       micro};
  const Values sum = Contribution(w, layout, {}, slice, item);
  const float scale =
      static_cast<float>(w.spec.batch().global()) / static_cast<float>(SamplesIn(w, item));
  for (size_t e = 0; e < values->size(); ++e) (*values)[e] -= sum[e] * scale;
}

bool Overflows(const Workload& w, const WorkRange& range, int log2, uint32_t slices,
               SliceId* slice) {
  const uint64_t step = JobStep(w, range);
  bool any = false;
  for (uint64_t id = range.first; id < range.first + range.count; ++id) {
    const uint64_t drawn = Mix(w.spec.seed(), Mix(range.epoch, id));
    const bool rare = drawn % 64 == 0 && log2 > static_cast<int>((drawn >> 8) % 16);
    if (!rare && step < w.overflows_from) continue;
    *slice = std::max(any ? *slice : SliceId(0), SliceId((drawn >> 16) % slices));
    any = true;
  }
  return any;
}

Values InitialValues(const Slice& slice) {
  Values values(slice.elements);
  for (uint32_t e = 0; e < slice.elements; ++e)
    values[e] = static_cast<float>(Mix(slice.id.value, e) & 7);
  return values;
}

uint64_t TestSamplesIn(const Workload& workload, const WorkRange& range) {
  uint64_t samples = 0;
  for (uint64_t id = range.first; id < range.first + range.count; ++id) {
    samples += SamplesOfMicroBatch(workload, id, workload.test_samples);
  }
  return samples;
}

uint64_t CorrectIn(const Workload& workload, const WorkRange& range) {
  const uint64_t samples = TestSamplesIn(workload, range);
  return samples == 0 ? 0 : Mix(range.epoch, range.first) % (samples + 1);
}

double ExpectedAccuracy(const Workload& workload, uint32_t epoch) {
  const uint32_t micro = workload.spec.batch().micro_batches();
  uint64_t correct = 0;
  WorkRange range{WorkPurpose::kEvaluate, epoch, 0, micro};
  for (; TestSamplesIn(workload, range) > 0; range.first += micro)
    correct += CorrectIn(workload, range);
  return static_cast<double>(correct) / static_cast<double>(workload.test_samples);
}

}  // namespace starling::sim
