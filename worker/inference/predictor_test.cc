// From a file to a model, from an array to inputs, and from inputs to outputs.
#include "worker/inference/predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/graph/builders.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/inference/generate.h"
#include "worker/inference/preprocess.h"

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ToJson(const google::protobuf::Message& message) {
  std::string json;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(message, &json).ok());
  return json;
}

// An MLP of [1, 2, 3] inputs, trained on images.
JobSpec MlpSpec() {
  JobSpec spec;
  *spec.mutable_model() =
      *BuildMlp({.sample_shape = {1, 2, 3}, .classes = 3}, MlpOptions{.hidden = {4}});
  spec.mutable_train()->mutable_idx()->set_images("/images");
  spec.mutable_normalize()->add_mean(0.25);
  spec.mutable_normalize()->add_std(0.5);
  return spec;
}

float Weight(size_t i) { return 0.25f * static_cast<float>(static_cast<int>(i % 7) - 3); }

struct FileOptions {
  bool with_model = true;
  safetensors::DType dtype = safetensors::DType::kF32;
  int64_t more_rows = 0;       // added to the first tensor
  std::string leave_out = "";  // name of a tensor
  std::string add = "";        // name of a tensor with one element
};

class InferenceTest : public ::testing::Test {
 protected:
  safetensors::Reader Write(const JobSpec& spec, const FileOptions& options = {}) {
    std::vector<safetensors::TensorInfo> tensors;
    size_t elements = 0;
    for (const Parameter& parameter : spec.model().parameters()) {
      if (parameter.name() == options.leave_out) continue;
      safetensors::TensorInfo tensor{.name = parameter.name(), .dtype = options.dtype};
      tensor.shape.assign(parameter.shape().begin(), parameter.shape().end());
      if (tensors.empty()) tensor.shape[0] += static_cast<uint64_t>(options.more_rows);
      size_t count = 1;
      for (uint64_t dim : tensor.shape) count *= dim;
      elements += count;
      tensors.push_back(tensor);
    }
    if (!options.add.empty()) {
      tensors.push_back({.name = options.add, .dtype = options.dtype, .shape = {1}});
      ++elements;
    }
    std::map<std::string, std::string> metadata;
    if (options.with_model) {
      metadata = {{kModelKey, ToJson(spec.model())},
                  {kPreprocessingKey, ToJson(PreprocessingOf(spec))}};
    }
    const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/model.safetensors");
    auto writer = safetensors::Writer::Create(path, tensors, metadata);
    std::vector<float> values(elements);
    for (size_t i = 0; i < elements; ++i) values[i] = Weight(i);
    EXPECT_TRUE(writer->AppendFloats(values).ok());
    EXPECT_TRUE(writer->Finish().ok());
    return *safetensors::Reader::Open(path);
  }

  std::string LoadError(const JobSpec& spec, const FileOptions& options) {
    const auto model = LoadModel(Write(spec, options));
    EXPECT_TRUE(absl::IsInvalidArgument(model.status())) << model.status();
    return std::string(model.status().message());
  }

  std::unique_ptr<Device> device_ = *CreateCpuDevice();
};

npy::Array Bytes(std::vector<int64_t> shape, std::vector<uint8_t> values) {
  return {npy::DType::kU8, std::move(shape), std::move(values)};
}

template <typename T>
npy::Array Numbers(npy::DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  npy::Array array{dtype, std::move(shape), std::vector<uint8_t>(values.size() * sizeof(T))};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

TEST_F(InferenceTest, AnExportIsLoadedWithItsPreprocessing) {
  const auto model = LoadModel(Write(MlpSpec()));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->resolved.classes, 3);
  EXPECT_EQ(model->preprocessing.normalize().mean(0), 0.25);
  // 24 weights, 4 biases, 12 weights, 3 biases, in the order of the layout.
  size_t at = 0;
  for (size_t p = 0; p < model->resolved.parameters.size(); ++p) {
    const ParameterPlace& place = model->layout.parameters[p];
    for (uint64_t i = 0; i < place.elements; ++i) {
      EXPECT_EQ(model->values[place.flat_begin + i], Weight(at++));
    }
  }
  EXPECT_EQ(at, 43u);
}

TEST_F(InferenceTest, FilesThatDoNotFitAreRefusedWithAllThatIsWrong) {
  const JobSpec spec = MlpSpec();
  const std::string first = spec.model().parameters(0).name();
  const std::string second = spec.model().parameters(1).name();
  EXPECT_THAT(LoadError(spec, {.with_model = false}), HasSubstr("-f job.yaml"));
  const std::string message =
      LoadError(spec, {.more_rows = 1, .leave_out = second, .add = "extra.weight"});
  EXPECT_THAT(message, HasSubstr(absl::StrCat(first, ": expected F32 [4, 6], got F32 [5, 6]")));
  EXPECT_THAT(message, HasSubstr(absl::StrCat(second, ": expected F32 [4], not there")));
  EXPECT_THAT(message, HasSubstr("extra.weight: the model has none of that name"));
  EXPECT_THAT(LoadError(spec, {.dtype = safetensors::DType::kI32}), HasSubstr("got I32 [4, 6]"));
  EXPECT_TRUE(LoadModel(Write(spec, {.add = "bn1.num_batches_tracked"})).ok());
}

TEST_F(InferenceTest, AFileOfOnlyTensorsTakesTheModelFromElsewhere) {
  const safetensors::Reader file = Write(MlpSpec(), {.with_model = false});
  EXPECT_FALSE(LoadModel(file).ok());
  auto model = MakeModel(MlpSpec());
  ASSERT_TRUE(model.ok());
  EXPECT_TRUE(model->values.empty()) << "before it is known to fit the file";
  ASSERT_TRUE(ReadValues(file, &*model).ok());
  EXPECT_EQ(model->values[model->layout.parameters[0].flat_begin], Weight(0));
}

TEST_F(InferenceTest, MetadataThatIsNoModelIsRefused) {
  JobSpec spec = MlpSpec();
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/bad.safetensors");
  for (const char* text : {"", "{", "[]", "{\"colour\": 1}", "{\"nodes\": []}"}) {
    auto writer =
        safetensors::Writer::Create(path, {}, {{kModelKey, text}, {kPreprocessingKey, "{}"}});
    ASSERT_TRUE(writer->Finish().ok());
    EXPECT_TRUE(absl::IsInvalidArgument(LoadModel(*safetensors::Reader::Open(path)).status()))
        << text;
  }
}

TEST_F(InferenceTest, BytesAreScaledAndNormalised) {
  const auto preprocessor = Preprocessor::Create(*MakeModel(MlpSpec()));
  ASSERT_TRUE(preprocessor.ok()) << preprocessor.status();
  EXPECT_EQ(preprocessor->kind(), SampleKind::kPixels);
  const npy::Array array = Bytes({2, 2, 3}, {0, 1, 2, 3, 4, 5, 250, 251, 252, 253, 254, 255});
  ASSERT_TRUE(preprocessor->Check(array).ok());
  std::vector<float> out(6);
  ASSERT_TRUE(preprocessor->Apply(array, 1, 1, out.data()).ok());
  const float scale = static_cast<float>(1.0 / 255.0 / 0.5);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out[i], static_cast<float>(250 + i) * scale - 0.5f);

  // Floats are already in [0, 1].
  const auto floats = Numbers<double>(npy::DType::kF64, {1, 1, 2, 3}, {0, 0.25, 0.5, 0.75, 1, 2});
  ASSERT_TRUE(preprocessor->Check(floats).ok());
  ASSERT_TRUE(preprocessor->Apply(floats, 0, 1, out.data()).ok());
  EXPECT_THAT(out, ElementsAre(-0.5f, 0, 0.5f, 1, 1.5f, 3.5f));
}

TEST_F(InferenceTest, NumbersOfTablesAreNotScaled) {
  JobSpec spec = MlpSpec();
  spec.mutable_train()->mutable_csv()->set_path("/rows");
  const auto preprocessor = Preprocessor::Create(*MakeModel(spec));
  std::vector<float> out(6);
  const npy::Array bytes = Bytes({1, 2, 3}, {0, 1, 2, 3, 4, 5});
  ASSERT_TRUE(preprocessor->Check(bytes).ok());
  ASSERT_TRUE(preprocessor->Apply(bytes, 0, 1, out.data()).ok());
  EXPECT_THAT(out, ElementsAre(-0.5f, 1.5f, 3.5f, 5.5f, 7.5f, 9.5f));
  const auto longs = Numbers<int64_t>(npy::DType::kI64, {1, 2, 3}, {-1, 0, 0, 0, 0, 1});
  ASSERT_TRUE(preprocessor->Check(longs).ok());
  ASSERT_TRUE(preprocessor->Apply(longs, 0, 1, out.data()).ok());
  EXPECT_THAT(out, ElementsAre(-2.5f, -0.5f, -0.5f, -0.5f, -0.5f, 1.5f));
}

TEST_F(InferenceTest, ChannelsHaveTheirOwnMeans) {
  JobSpec spec = MlpSpec();
  *spec.mutable_model() =
      *BuildMlp({.sample_shape = {2, 1, 2}, .classes = 3}, MlpOptions{.hidden = {4}});
  spec.mutable_normalize()->add_mean(0.5);
  spec.mutable_normalize()->add_std(0.25);
  const auto preprocessor = Preprocessor::Create(*MakeModel(spec));
  ASSERT_TRUE(preprocessor.ok()) << preprocessor.status();
  std::vector<float> out(4);
  const auto array = Numbers<float>(npy::DType::kF32, {1, 2, 2}, {0, 1, 0, 1});
  ASSERT_TRUE(preprocessor->Apply(array, 0, 1, out.data()).ok());
  EXPECT_THAT(out, ElementsAre(-0.5f, 1.5f, -2, 2));
  spec.mutable_normalize()->add_mean(0.5);
  EXPECT_FALSE(Preprocessor::Create(*MakeModel(spec)).ok());
}

TEST_F(InferenceTest, ArraysOfAnotherShapeOrTypeAreRefused) {
  JobSpec spec = MlpSpec();
  const auto check = [&](const npy::Array& array) {
    return std::string(Preprocessor::Create(*MakeModel(spec))->Check(array).message());
  };
  const std::string expected = "expected an array of shape [n, 1, 2, 3] for n samples";
  EXPECT_THAT(check(Bytes({6}, std::vector<uint8_t>(6))), HasSubstr(expected));
  EXPECT_THAT(check(Bytes({}, {0})), HasSubstr(expected));
  EXPECT_THAT(check(Bytes({1, 3, 2}, std::vector<uint8_t>(6))),
              HasSubstr(absl::StrCat(expected, ", got [1, 3, 2]")));
  EXPECT_THAT(check(Bytes({1, 6}, std::vector<uint8_t>(6))), HasSubstr("got [1, 6]"));
  EXPECT_THAT(check(Numbers<int32_t>(npy::DType::kI32, {1, 2, 3}, std::vector<int32_t>(6))),
              HasSubstr("expected uint8 pixels"));
  for (int64_t dim : {1, 2, 3}) spec.add_sample_shape(dim);
  EXPECT_EQ(check(Bytes({1, 6}, std::vector<uint8_t>(6))), "");
  EXPECT_THAT(check(Bytes({1, 5}, std::vector<uint8_t>(5))), HasSubstr("or [n, 6]"));
}

TEST_F(InferenceTest, WhatReadsLabelsPredictsNothing) {
  JobSpec spec;
  *spec.mutable_model() = *BuildCounter(4);
  EXPECT_THAT(std::string(Preprocessor::Create(*MakeModel(spec)).status().message()),
              HasSubstr("nothing to predict"));
}

// Computed by hand in double precision; each sample's result is the same in batches with a short
// last one.
TEST_F(InferenceTest, PredictsAsByHandWhateverTheBatch) {
  const SavedModel model = *LoadModel(Write(MlpSpec()));
  constexpr int kSamples = 5;
  std::vector<float> inputs(kSamples * 6);
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<float>(i % 11) / 8 - 0.5f;
  for (int64_t batch : {1, 2, 5, 64}) {
    auto predictor = Predictor::Create(model, {.batch = batch}, device_.get());
    ASSERT_TRUE(predictor.ok()) << predictor.status();
    ASSERT_EQ((*predictor)->output_elements(), 3u);
    for (int64_t first = 0; first < kSamples; first += batch) {
      const int64_t count = std::min<int64_t>(batch, kSamples - first);
      std::vector<float> out(static_cast<size_t>(count) * 3);
      ASSERT_TRUE((*predictor)->Predict(inputs.data() + first * 6, count, out.data()).ok());
      for (int64_t n = 0; n < count; ++n) {
        double hidden[4];
        for (int h = 0; h < 4; ++h) {
          hidden[h] = Weight(24 + h);
          for (int i = 0; i < 6; ++i) hidden[h] += Weight(h * 6 + i) * inputs[(first + n) * 6 + i];
          hidden[h] = std::max(hidden[h], 0.0);
        }
        for (int o = 0; o < 3; ++o) {
          double expected = Weight(40 + o);
          for (int h = 0; h < 4; ++h) expected += Weight(28 + o * 4 + h) * hidden[h];
          EXPECT_NEAR(out[n * 3 + o], expected, 1e-5)
              << "batch " << batch << " sample " << first + n;
        }
      }
    }
  }
}

TEST_F(InferenceTest, RefusesABatchOfNone) {
  EXPECT_FALSE(Predictor::Create(*MakeModel(MlpSpec()), {.batch = 0}, device_.get()).ok());
}

TEST_F(InferenceTest, AModelOfNumbersDoesNotGenerate) {
  SavedModel model = *MakeModel(MlpSpec());
  EXPECT_THAT(std::string(Predictor::Create(model, {}, device_.get()).status().message()),
              HasSubstr("expected 43 values, got 0"));
  model.values.resize(model.layout.elements);
  auto predictor = *Predictor::Create(model, {.batch = 1}, device_.get());
  EXPECT_THAT(std::string(AsLanguageModel(model, predictor.get()).status().message()),
              HasSubstr("got one from numbers [1, 2, 3] to [3]"));
}

}  // namespace
}  // namespace starling
