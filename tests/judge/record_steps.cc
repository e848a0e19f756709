// record_steps FOLDER MODEL OPTIMIZER CLIP: trains a small net with the product's executor and the
// shard's update, in one process, and records each step for tests/judge/trainer.py, as a worker of
// a real job does, but without a cluster. MODEL: mlp | cnn; OPTIMIZER: one of the job file's, with
// groups; CLIP: none | parameter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/data_plan/batch_plan.h"
#include "common/graph/builders.h"
#include "common/safetensors/safetensors.h"
#include "common/schedule/learning_rate.h"
#include "google/protobuf/util/json_util.h"
#include "server/shard/apply/update.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kSamples = 150;  // the epoch's last step has 22: 8, 8, 6 and an empty one
constexpr uint32_t kGlobal = 32;
constexpr uint32_t kMicroBatches = 4;
constexpr int64_t kClasses = 5;
constexpr uint64_t kSteps = 24;

Graph MakeGraph(const std::string& model) {
  if (model == "mlp")
    return BuildMlp({.sample_shape = {20}, .classes = kClasses}, {.hidden = {32, 16}}).value();
  const std::vector<LayerDescription> layers = {
      {"conv2d",
       "conv1",
       {{"out_channels", int64_t{8}},
        {"kernel", int64_t{3}},
        {"padding", int64_t{1}},
        {"bias", false}}},
      {"batchnorm", "bn1", {}},
      {"relu", "relu1", {}},
      {"maxpool2d", "pool1", {{"kernel", int64_t{2}}}},
      {"conv2d", "conv2", {{"out_channels", int64_t{12}}, {"kernel", std::vector<int64_t>{3, 2}}}},
      {"relu", "relu2", {}},
      {"avgpool2d",
       "pool2",
       {{"kernel", int64_t{2}}, {"stride", int64_t{1}}, {"padding", int64_t{1}}}},
      {"flatten", "flatten", {}},
      {"linear", "fc1", {{"out_features", int64_t{16}}, {"bias", false}}},
      {"batchnorm", "bn2", {}},
      {"relu", "relu3", {}},
      {"linear", "fc2", {}},
  };
  return BuildLayers({.sample_shape = {2, 10, 8}, .classes = kClasses}, layers).value();
}

void SetKind(const std::string& name, Optimizer& out) {
  if (name == "sgd") out.mutable_sgd();
  if (name == "momentum") out.mutable_momentum()->set_momentum(0.9);
  if (name == "nesterov") out.mutable_nesterov()->set_momentum(0.9);
  if (name == "adagrad") {
    out.mutable_adagrad()->set_epsilon(1e-10);
    out.mutable_adagrad()->set_initial_accumulator(0.1);
  }
  if (Optimizer::Adam* adam = name == "adam"    ? out.mutable_adam()
                              : name == "adamw" ? out.mutable_adamw()
                              : name == "lamb"  ? out.mutable_lamb()
                                                : nullptr) {
    adam->set_beta1(0.9);
    adam->set_beta2(0.999);
    adam->set_epsilon(1e-8);
  }
}

JobSpec MakeSpec(const std::string& optimizer, const std::string& clip) {
  JobSpec spec;
  Optimizer& out = *spec.mutable_optimizer();
  SetKind(optimizer, out);
  out.set_weight_decay(0.01);
  const bool adaptive = out.has_adam() || out.has_adamw();
  Schedule* schedule = out.mutable_learning_rate();
  schedule->mutable_cosine()->set_peak(adaptive ? 0.005 : 0.05);
  schedule->set_warmup_steps(4);
  Optimizer::Group* slow = out.add_groups();
  slow->add_match("fc1.*");
  slow->set_rate_scale(0.5);
  Optimizer::Group* vectors = out.add_groups();
  vectors->set_vectors(true);
  vectors->set_weight_decay(0);
  vectors->set_no_trust_ratio(out.has_lamb());
  if (clip == "parameter") {
    spec.mutable_clip()->set_scope(Clip::PARAMETER);
    spec.mutable_clip()->set_norm(0.1);
  }
  return spec;
}

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string out;
  if (!google::protobuf::util::MessageToJsonString(message, &out, options).ok()) out.clear();
  return out;
}

class Recorder {
 public:
  Recorder(std::string folder, const std::string& model, JobSpec spec)
      : folder_(std::move(folder)),
        spec_(std::move(spec)),
        rate_(LearningRate::Make(spec_.optimizer().learning_rate(), kSteps).value()) {
    ExecutorOptions options;
    options.global_batch = kGlobal;
    options.micro_batches = kMicroBatches;
    options.train_samples = {6, 8};
    options.lanes = 2;
    model_ = MakeTestModel(MakeGraph(model), options, spec_.optimizer());
    int64_t elements = 1;
    for (int64_t dim : model_.graph.input().shape()) elements *= dim;
    samples_ = MakeSamples(kSamples, elements, kClasses, /*seed=*/3);
    slots_[0].resize(model_.layout.elements);
    slots_[1].resize(model_.layout.elements);
    for (const Slice& slice : model_.layout.slices) {
      rules_.push_back(MakeUpdateRule(spec_, slice).value());
      std::fill_n(slots_[0].begin() + static_cast<ptrdiff_t>(slice.flat_begin), slice.elements,
                  rules_.back().first_slot0);
    }
  }

  absl::Status Run() {
    MemoryBatches batches(&samples_, plan_.micro_batch_samples());
    for (uint64_t step = 0; step < kSteps; ++step) {
      const WorkRange range = TrainRange(step % plan_.steps() * kMicroBatches, kMicroBatches);
      const TrainOutput out = TrainOnce(model_, batches, {range}, step);
      const absl::Status status = Write(step, range, out);
      if (!status.ok()) return status;
      Update(step, out);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Write(uint64_t step, const WorkRange& range, const TrainOutput& out) {
    using safetensors::DType;
    std::vector<safetensors::TensorInfo> tensors;
    for (const char* prefix : {"param/", "grad/"}) {
      for (const Parameter& parameter : model_.graph.parameters()) {
        tensors.push_back({.name = prefix + parameter.name(),
                           .dtype = DType::kF32,
                           .shape = {parameter.shape().begin(), parameter.shape().end()}});
      }
    }
    const PositionRange positions = plan_.Positions(range.first, range.count);
    const uint64_t n = positions.size();
    std::vector<uint64_t> shape = {n};
    for (int64_t dim : model_.graph.input().shape()) shape.push_back(dim);
    tensors.push_back({.name = "input", .dtype = DType::kF32, .shape = shape});
    tensors.push_back({.name = "label", .dtype = DType::kI32, .shape = {n}});
    tensors.push_back({.name = "loss", .dtype = DType::kF64, .shape = {}});
    auto writer = safetensors::Writer::Create(
        absl::StrFormat("%s/step-%06d.safetensors", folder_, step), tensors, Metadata(range));
    if (!writer.ok()) return writer.status();
    absl::Status status;
    for (absl::Span<const float> flat :
         {absl::Span<const float>(model_.live()), absl::MakeConstSpan(out.gradients[0])}) {
      for (const ParameterPlace& place : model_.layout.parameters) {
        status.Update(writer->AppendFloats(flat.subspan(place.flat_begin, place.elements)));
      }
    }
    status.Update(writer->AppendFloats(
        absl::MakeConstSpan(samples_.inputs)
            .subspan(positions.begin * samples_.elements, n * samples_.elements)));
    status.Update(writer->Append(
        {reinterpret_cast<const uint8_t*>(&samples_.labels[positions.begin]), 4 * n}));
    const double loss = out.result.ranges[0].loss_sum / static_cast<double>(n);
    status.Update(writer->Append({reinterpret_cast<const uint8_t*>(&loss), sizeof(loss)}));
    status.Update(writer->Finish());
    return status;
  }

  std::map<std::string, std::string> Metadata(const WorkRange& range) const {
    Batch batch;
    batch.set_global(kGlobal);
    batch.set_micro_batches(kMicroBatches);
    std::vector<int64_t> sizes;
    for (uint64_t id = range.first; id < range.first + range.count; ++id)
      sizes.push_back(plan_.Positions(id).size());
    std::map<std::string, std::string> metadata = {
        {"model", Json(model_.graph)},
        {"optimizer", Json(spec_.optimizer())},
        {"batch", Json(batch)},
        {"steps", absl::StrCat(kSteps)},
        {"micro_batch_samples", absl::StrCat("[", absl::StrJoin(sizes, ", "), "]")}};
    if (spec_.has_clip()) metadata["clip"] = Json(spec_.clip());
    return metadata;
  }

  // Does what the shard does with a step's sum.
  void Update(uint64_t step, const TrainOutput& out) {
    UpdateScalars scalars;
    const float rate = rate_.At(static_cast<int64_t>(step));
    scalars.scale = static_cast<float>(kGlobal) / static_cast<float>(out.result.ranges[0].samples);
    scalars.t = static_cast<int64_t>(step) + 1;
    for (const Slice& slice : model_.layout.slices) {
      const PayloadPiece piece(
          reinterpret_cast<const uint8_t*>(&out.gradients[0][slice.flat_begin]),
          slice.elements * sizeof(float));
      float* const values = model_.live().data() + slice.flat_begin;
      const UpdateRule& rule = rules_[slice.id.value];
      const GroupSettings group = SettingsOf(spec_.optimizer(), slice.group);
      scalars.rate = static_cast<float>(rate * group.rate_scale);
      scalars.decay = group.weight_decay;
      SliceMemory memory = {.in = values, .out = values, .elements = slice.elements};
      if (rule.slots() > 0) memory.slot0 = &slots_[0][slice.flat_begin];
      if (rule.slots() > 1) memory.slot1 = &slots_[1][slice.flat_begin];
      ApplyUpdate(rule, scalars, {&piece, 1}, memory);
    }
  }

  const std::string folder_;
  const JobSpec spec_;
  const LearningRate rate_;
  const BatchPlan plan_ = BatchPlan::Make(kSamples, kGlobal, kMicroBatches).value();
  TestModel model_;
  Samples32 samples_;
  std::vector<UpdateRule> rules_;  // one per slice
  std::vector<float> slots_[2];
};

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: record_steps FOLDER MODEL OPTIMIZER CLIP\n");
    return 2;
  }
  const absl::Status status =
      starling::Recorder(argv[1], argv[2], starling::MakeSpec(argv[3], argv[4])).Run();
  if (!status.ok()) std::fprintf(stderr, "record_steps: %s\n", status.ToString().c_str());
  return status.ok() && !testing::Test::HasFailure() ? 0 : 1;
}
