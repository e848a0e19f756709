#include "worker/executor/testing/harness.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "gtest/gtest.h"

namespace starling {

namespace {

// More than any test records. Clearing the default's several MB is most of what a model costs.
constexpr size_t kSpans = 1 << 11;

}  // namespace

Samples32 MakeSamples(int64_t count, int64_t elements, int64_t classes, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> directions(elements * classes);
  for (float& x : directions) x = normal(random);
  Samples32 samples;
  samples.elements = elements;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<float> scores(classes, 0);
    for (int64_t e = 0; e < elements; ++e) {
      const float x = normal(random);
      samples.inputs.push_back(x);
      for (int64_t c = 0; c < classes; ++c) scores[c] += x * directions[c * elements + e];
    }
    samples.labels.push_back(
        static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin()));
  }
  return samples;
}

Samples32 MakeTokens(int64_t count, int64_t positions, int64_t vocabulary, uint32_t seed) {
  std::mt19937 random(seed);
  Samples32 samples;
  samples.elements = samples.label_elements = positions;
  for (int64_t i = 0; i < count; ++i) {
    auto next = static_cast<int32_t>(random() % vocabulary);
    for (int64_t t = 0; t < positions; ++t) {
      samples.tokens.push_back(next);
      next = static_cast<int32_t>(random() % vocabulary);
      samples.labels.push_back(next);
    }
  }
  return samples;
}

absl::StatusOr<MicroBatch> MemoryBatches::Get(const WorkRange&, uint64_t id) {
  const int64_t begin = static_cast<int64_t>(id) * size_;
  MicroBatch batch;
  batch.samples = std::clamp<int64_t>(samples_->size() - begin, 0, size_);
  if (batch.samples == 0) return batch;
  const int64_t input = begin * samples_->elements, label = begin * samples_->label_elements;
  batch.inputs = samples_->tokens.empty()
                     ? static_cast<const void*>(samples_->inputs.data() + input)
                     : samples_->tokens.data() + input;
  batch.labels = samples_->targets.empty()
                     ? static_cast<const void*>(samples_->labels.data() + label)
                     : samples_->targets.data() + label;
  return batch;
}

float* CollectingSink::Acquire(size_t range, SliceId slice) {
  MutexLock lock(&mutex_);
  const auto [entry, is_new] = entries_.try_emplace({range, slice.value});
  EXPECT_TRUE(is_new) << "slice " << slice << " was acquired twice";
  entry->second.values.assign(layout_->slices[slice.value].elements,
                              std::numeric_limits<float>::quiet_NaN());
  return entry->second.values.data();
}

void CollectingSink::Ready(size_t range, SliceId slice, uint32_t samples) {
  {
    MutexLock lock(&mutex_);
    Entry& entry = entries_[{range, slice.value}];
    EXPECT_FALSE(entry.ready || entry.values.empty()) << "slice " << slice;
    entry.ready = true;
    entry.ready_values = entry.values;
    entry.samples = samples;
  }
  if (on_ready) on_ready(range, slice);
}

std::vector<float> CollectingSink::gradient(size_t range) {
  MutexLock lock(&mutex_);
  std::vector<float> flat;
  for (const Slice& slice : layout_->slices) {
    Entry& entry = entries_[{range, slice.id.value}];
    if (slice.kind == FROZEN) {
      EXPECT_FALSE(entry.ready) << "a gradient of the frozen slice " << slice.id;
      entry.values.assign(slice.elements, 0);
      flat.insert(flat.end(), entry.values.begin(), entry.values.end());
      continue;
    }
    EXPECT_TRUE(entry.ready) << "range " << range << " slice " << slice.id;
    flat.insert(flat.end(), entry.ready_values.begin(), entry.ready_values.end());
  }
  return flat;
}

uint32_t CollectingSink::samples(size_t range) {
  MutexLock lock(&mutex_);
  return entries_[{range, 0}].samples;
}

bool CollectingSink::complete(size_t range) {
  MutexLock lock(&mutex_);
  for (const Slice& slice : layout_->slices) {
    if (slice.kind != FROZEN && !entries_[{range, slice.id.value}].ready) return false;
  }
  return true;
}

size_t CollectingSink::ready_slices() {
  MutexLock lock(&mutex_);
  size_t ready = 0;
  for (const auto& [key, entry] : entries_) ready += entry.ready;
  return ready;
}

void TestModel::Initialise(uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t p = 0; p < resolved.parameters.size(); ++p) {
    const Initializer& init = resolved.parameters[p].init;
    std::uniform_real_distribution<float> uniform(-static_cast<float>(init.value()),
                                                  static_cast<float>(init.value()));
    std::normal_distribution<float> normal(0, std::max(1e-9f, static_cast<float>(init.value())));
    float* const values = executor->live_parameters() + layout.parameters[p].flat_begin;
    for (uint64_t i = 0; i < layout.parameters[p].elements; ++i) {
      values[i] = init.kind() == Initializer::UNIFORM  ? uniform(random)
                  : init.kind() == Initializer::NORMAL ? normal(random)
                                                       : static_cast<float>(init.value());
    }
  }
}

TestModel MakeTestModel(Graph graph, const ExecutorOptions& options, const Optimizer& optimizer,
                        std::unique_ptr<Device> device) {
  TestModel model;
  model.graph = std::move(graph);
  model.resolved = Validate(model.graph).value();
  model.layout = MakeLayout(model.graph, optimizer).value();
  model.device = std::move(device);
  model.spans = std::make_unique<SpanRing>(kSpans);
  model.executor =
      Executor::Create(model.resolved, model.layout, options, model.device.get(), model.spans.get())
          .value();
  model.Initialise(1);
  return model;
}

WorkRange TrainRange(uint64_t first, uint32_t count) {
  return {WorkPurpose::kTrain, 0, first, count};
}

TrainOutput TrainOnce(TestModel& model, BatchSource& batches, const std::vector<WorkRange>& ranges,
                      uint64_t job_step) {
  OpenGate gate;
  CollectingSink sink(&model.layout);
  TrainOutput output;
  const absl::Status status =
      model.executor->Train({ranges, job_step, 0, nullptr}, batches, gate, sink, &output.result);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(output.result.finite) << output.result.bad_layer;
  for (size_t r = 0; r < ranges.size() && status.ok(); ++r) {
    output.gradients.push_back(sink.gradient(r));
    EXPECT_EQ(sink.samples(r), output.result.ranges[r].samples);
  }
  return output;
}

}  // namespace starling
