#include "worker/data/data_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "worker/data/data_digest.h"
#include "worker/data/testing/files.h"

namespace starling {
namespace {

using data_testing::CounterSource;
using data_testing::CsvSource;
using data_testing::IdxSource;
using data_testing::Images;
using data_testing::Labels;
using data_testing::WriteFile;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

Normalize Of(std::vector<double> mean, std::vector<double> std) {
  Normalize out;
  out.mutable_mean()->Add(mean.begin(), mean.end());
  out.mutable_std()->Add(std.begin(), std.end());
  return out;
}

std::string Error(const DataSource& source, const Normalize& normalize = {},
                  const DataSetOptions& options = {}) {
  const absl::Status status = DataSet::Open(source, normalize, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

void Gather(const DataSet& data, const std::vector<int64_t>& ids, void* inputs, void* labels) {
  EXPECT_EQ(data.Gather(ids, nullptr, inputs, labels), absl::OkStatus());
}

DataSource SmallIdx() {
  return IdxSource(WriteFile("images", Images(5, 3, 5)), WriteFile("labels", Labels(5)));
}

TEST(DataSet, ScalesAndNormalisesBytes) {
  const auto data = DataSet::Open(SmallIdx(), Of({0.1307}, {0.3081}), {});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->samples(), 5);
  EXPECT_EQ((*data)->sample_elements(), 15);
  EXPECT_EQ((*data)->classes(), 3);
  EXPECT_THAT((*data)->sample_shape(), ElementsAre(1, 3, 5));
  const std::vector<int64_t> ids = {4, 0, 4};
  std::vector<float> inputs(45);
  std::vector<int32_t> labels(3);
  Gather(**data, ids, inputs.data(), labels.data());
  EXPECT_THAT(labels, ElementsAre(1, 0, 1));
  for (int i = 0; i < 3; ++i) {
    for (int e = 0; e < 15; ++e) {
      const double expected = ((10.0 * ids[i] + e) / 255 - 0.1307) / 0.3081;
      EXPECT_NEAR(inputs[15 * i + e], expected, 1e-6);
    }
  }
}

TEST(DataSet, WithoutNormalizeBytesAreInZeroToOne) {
  const auto data = DataSet::Open(SmallIdx(), {}, {});
  std::vector<float> inputs(15);
  int32_t label;
  Gather(**data, {3}, inputs.data(), &label);
  for (int e = 0; e < 15; ++e) EXPECT_FLOAT_EQ(inputs[e], (30 + e) / 255.0f);
}

TEST(DataSet, CsvValuesAreNotScaled) {
  const DataSource source = CsvSource(WriteFile("a.csv", "1,2,3,0\n4,5,6,1\n"));
  std::vector<float> inputs(6);
  std::vector<int32_t> labels(2);
  Gather(**DataSet::Open(source, {}, {}), {1, 0}, inputs.data(), labels.data());
  EXPECT_THAT(inputs, ElementsAre(4, 5, 6, 1, 2, 3));
  EXPECT_THAT(labels, ElementsAre(1, 0));
  Gather(**DataSet::Open(source, Of({1}, {2}), {}), {0}, inputs.data(), labels.data());
  EXPECT_FLOAT_EQ(inputs[2], 1);
  Gather(**DataSet::Open(source, Of({1, 2, 3}, {1, 1, 2}), {}), {1}, inputs.data(), labels.data());
  EXPECT_FLOAT_EQ(inputs[0], 3);
  EXPECT_FLOAT_EQ(inputs[1], 3);
  EXPECT_FLOAT_EQ(inputs[2], 1.5);
}

TEST(DataSet, ReshapesSamples) {
  const DataSource source = CsvSource(WriteFile("a.csv", "1,2,3,4,0\n"));
  const auto data = DataSet::Open(source, Of({1, 2}, {1, 1}), {.sample_shape = {2, 1, 2}});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT((*data)->sample_shape(), ElementsAre(2, 1, 2));
  std::vector<float> inputs(4);
  int32_t label;
  Gather(**data, {0}, inputs.data(), &label);
  EXPECT_THAT(inputs, ElementsAre(0, 1, 1, 2));  // two channels of two values
  EXPECT_THAT(Error(source, {}, {.sample_shape = {2, 3}}),
              HasSubstr("sample shape [2, 3]: expected 4 elements"));
  EXPECT_THAT(Error(source, {}, {.sample_shape = {-4}}), HasSubstr("expected 4 elements"));
  EXPECT_THAT(Error(source, {}, {.sample_shape = {-2, -2}}), HasSubstr("expected 4 elements"));
  EXPECT_THAT(Error(source, {}, {.sample_shape = {int64_t{1} << 62, 8}}),
              HasSubstr("expected 4 elements"));
  EXPECT_THAT(Error(source, {}, {.sample_shape = std::vector<int64_t>(9, 1)}),
              HasSubstr("at most 8 dimensions"));
}

TEST(DataSet, RefusesLabelsOutOfRange) {
  EXPECT_THAT(Error(SmallIdx(), {}, {.classes = 2}),
              HasSubstr("sample 2 has label 2, expected less than 2"));
  EXPECT_TRUE(DataSet::Open(SmallIdx(), {}, {.classes = 3}).ok());
}

TEST(DataSet, RefusesBadNormalize) {
  EXPECT_THAT(Error(SmallIdx(), Of({0.1}, {})),
              HasSubstr("expected 1 or 1 values of mean and as many of std"));
  EXPECT_THAT(Error(SmallIdx(), Of({0.1, 0.2}, {1, 1})), HasSubstr("got 2 and 2"));
  EXPECT_THAT(Error(SmallIdx(), Of({0.1}, {0})), HasSubstr("std above 0"));
  EXPECT_THAT(Error(SmallIdx(), Of({0.1}, {-1})), HasSubstr("std above 0"));
  EXPECT_THAT(Error(SmallIdx(), Of({NAN}, {1})), HasSubstr("finite mean"));
  EXPECT_THAT(Error(SmallIdx(), Of({0}, {1e-300})), HasSubstr("std above 0"));
}

TEST(DataSet, HoldoutPartsTileTheFile) {
  std::string rows;
  for (int i = 0; i < 50; ++i) rows += std::to_string(i) + "," + std::to_string(i % 2) + "\n";
  DataSource source = CsvSource(WriteFile("h.csv", rows));
  source.mutable_csv()->set_holdout_fraction(0.2);
  source.mutable_csv()->set_holdout_seed(7);
  std::set<float> seen;
  int64_t sizes[2];
  for (const auto part : {DataSource::Csv::PART_TRAIN, DataSource::Csv::PART_HOLDOUT}) {
    source.mutable_csv()->set_part(part);
    const auto data = *DataSet::Open(source, {}, {});
    sizes[part - 1] = data->samples();
    for (int64_t i = 0; i < data->samples(); ++i) {
      float value;
      int32_t label;
      Gather(*data, {i}, &value, &label);
      EXPECT_EQ(label, static_cast<int>(value) % 2);  // rows stay whole
      EXPECT_TRUE(seen.insert(value).second);
    }
  }
  EXPECT_EQ(sizes[0], 40);
  EXPECT_EQ(sizes[1], 10);
  EXPECT_EQ(seen.size(), 50u);
  source.mutable_csv()->set_part(DataSource::Csv::PART_ALL);
  EXPECT_EQ((*DataSet::Open(source, {}, {}))->samples(), 50);
  source.mutable_csv()->set_part(DataSource::Csv::PART_HOLDOUT);
  source.mutable_csv()->set_holdout_fraction(0);
  EXPECT_THAT(Error(source), HasSubstr("leaves this part empty"));
  for (double fraction : {-0.1, 1.0, 1e9, std::nan("")}) {
    source.mutable_csv()->set_holdout_fraction(fraction);
    EXPECT_THAT(Error(source), HasSubstr("holdout fraction"));
  }
}

TEST(DataSet, CountersSamplesAreTheirIndices) {
  const auto data = *DataSet::Open(CounterSource(4096), {}, {});
  EXPECT_EQ(data->samples(), 4096);
  EXPECT_EQ(data->classes(), 0);
  EXPECT_THAT(data->sample_shape(), ElementsAre(1));
  float values[2];
  int32_t labels[2];
  Gather(*data, {4095, 7}, values, labels);
  EXPECT_THAT(values, ElementsAre(4095, 7));
  EXPECT_THAT(labels, ElementsAre(4095, 7));
  EXPECT_THAT(Error(CounterSource(0)), HasSubstr("expected 1 to 16777216 samples, got 0"));
  EXPECT_THAT(Error(CounterSource((1 << 24) + 1)), HasSubstr("got 16777217"));
  EXPECT_THAT(Error(CounterSource(10), Of({0}, {1})), HasSubstr("cannot be normalised"));
  EXPECT_THAT(Error(DataSource()), HasSubstr("no data source"));
}

// ---- The digest by which workers check that they see the same data ----

uint64_t DigestOf(const DataSource& train, uint64_t seed = 7, const DataSource* test = nullptr) {
  const auto data = DataSet::Open(train, {}, {});
  EXPECT_TRUE(data.ok()) << data.status();
  std::shared_ptr<const DataSet> test_data;
  if (test != nullptr) test_data = DataSet::Open(*test, {}, {}).value();
  const auto digest = DataDigest(**data, test_data.get(), seed);
  EXPECT_TRUE(digest.ok()) << digest.status();
  return digest.value_or(0);
}

DataSource CsvOf(const std::string& name, const std::string& rows) {
  DataSource source;
  source.mutable_csv()->set_path(data_testing::WriteNewFile(name, rows));
  return source;
}

TEST(DataDigest, IsOfTheContentsAndNotOfThePlace) {
  const std::string rows = "1,2,0\n3,4,1\n5,6,0\n";
  const uint64_t digest = DigestOf(CsvOf("one.csv", rows));
  EXPECT_NE(digest, 0u);
  EXPECT_EQ(DigestOf(CsvOf("two.csv", rows)), digest);
  EXPECT_NE(DigestOf(CsvOf("two.csv", "1,2,0\n3,5,1\n5,6,0\n")), digest) << "a value";
  EXPECT_NE(DigestOf(CsvOf("two.csv", "1,2,0\n3,4,0\n5,6,1\n")), digest) << "labels";
  EXPECT_NE(DigestOf(CsvOf("two.csv", rows + "7,8,0\n")), digest) << "a sample";
  const DataSource test = CsvOf("test.csv", "1,2,0\n");
  const uint64_t both = DigestOf(CsvOf("one.csv", rows), 7, &test);
  EXPECT_NE(both, digest);
  const DataSource other = CsvOf("other.csv", "1,2,1\n");
  EXPECT_NE(DigestOf(CsvOf("one.csv", rows), 7, &other), both);
}

// Tokens stay on the disk: samples drawn by the seed represent them.
TEST(DataDigest, OfAFileThatStaysOnTheDiskIsOfDrawnSamples) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text.push_back(static_cast<char>('a' + i * i % 23));
  const auto source = [&](const std::string& name) {
    DataSource source;
    source.mutable_text()->set_path(data_testing::WriteNewFile(name, text));
    source.mutable_text()->set_context(16);
    source.mutable_text()->set_stride(16);
    source.mutable_text()->set_end(1);
    return source;
  };
  const uint64_t digest = DigestOf(source("text"));
  EXPECT_EQ(DigestOf(source("copy")), digest);
  EXPECT_NE(DigestOf(source("copy"), 8), digest) << "others are drawn";
  for (char& c : text) c = static_cast<char>(c ^ 1);
  EXPECT_NE(DigestOf(source("copy")), digest) << "as long, and another text";
}

TEST(DataDigest, InspectionSaysWhatAWorkerOfTheJobWould) {
  JobSpec spec;
  *spec.mutable_train() = CsvOf("one.csv", "1,2,0\n3,4,1\n");
  *spec.mutable_test() = CsvOf("test.csv", "1,2,0\n");
  spec.set_seed(7);
  EXPECT_EQ(InspectData(spec).data_digest(), DigestOf(spec.train()))
      << "the test set is not opened";
  spec.mutable_evaluate()->set_every_epochs(1);
  EXPECT_EQ(InspectData(spec).data_digest(), DigestOf(spec.train(), 7, &spec.test()));
}

TEST(InspectData, SaysWhatIsThere) {
  JobSpec spec;
  *spec.mutable_train() = SmallIdx();
  *spec.mutable_test() =
      IdxSource(WriteFile("t-images", Images(2, 3, 5)), WriteFile("t-labels", Labels(2)));
  const Inspection found = InspectData(spec);
  EXPECT_EQ(found.error(), "");
  EXPECT_EQ(found.train_samples(), 5u);
  EXPECT_EQ(found.test_samples(), 2u);
  EXPECT_EQ(found.classes(), 3u);
  EXPECT_THAT(found.sample_shape(), ElementsAre(1, 3, 5));
  spec.clear_test();
  EXPECT_EQ(InspectData(spec).test_samples(), 0u);
  spec.mutable_sample_shape()->Add(15);
  EXPECT_THAT(InspectData(spec).sample_shape(), ElementsAre(15));
}

TEST(InspectData, SaysWhatIsWrong) {
  JobSpec spec;
  EXPECT_THAT(InspectData(spec).error(), HasSubstr("data.train: no data source"));
  *spec.mutable_train() = SmallIdx();
  *spec.mutable_test() = IdxSource("/no/such/file", WriteFile("t-labels", Labels(2)));
  EXPECT_THAT(InspectData(spec).error(), HasSubstr("data.test: cannot open /no/such/file"));
  *spec.mutable_test() =
      IdxSource(WriteFile("t-images", Images(2, 5, 3)), WriteFile("t-labels", Labels(2)));
  EXPECT_THAT(
      InspectData(spec).error(),
      HasSubstr("samples are float32 [1, 5, 3], and those of data.train are float32 [1, 3, 5]"));
  spec.clear_test();
  spec.mutable_model()->mutable_input()->mutable_shape()->Add(15);
  EXPECT_THAT(InspectData(spec).error(),
              HasSubstr("samples are float32 [1, 3, 5], and the model takes float32 [15]"));
  spec.mutable_model()->mutable_input()->clear_shape();
  for (int64_t dim : {1, 3, 5}) spec.mutable_model()->mutable_input()->add_shape(dim);
  EXPECT_EQ(InspectData(spec).error(), "");
  spec.mutable_model()->set_classes(2);
  EXPECT_THAT(InspectData(spec).error(), HasSubstr("label 2, expected less than 2"));
}

JobSpec CsvJob(const std::string& train, const std::string& test) {
  JobSpec spec;
  *spec.mutable_train() = CsvSource(WriteFile("train.csv", train));
  *spec.mutable_test() = CsvSource(WriteFile("test.csv", test));
  return spec;
}

TEST(InspectData, ALabelThatOnlyTheTestSetHasIsRefusedByName) {
  JobSpec spec = CsvJob("1,0\n2,1\n3,2\n", "1,0\n2,77\n3,2\n");
  EXPECT_THAT(InspectData(spec).error(),
              AllOf(HasSubstr("test.csv: line 2 has label 77, which no sample of data.train has"),
                    HasSubstr("expected less than 3")));
  spec.mutable_test()->mutable_csv()->set_header(true);
  EXPECT_THAT(InspectData(spec).error(), HasSubstr("test.csv: line 2 has label 77"));

  // With a part of the file, the line number is still the file's.
  spec = CsvJob("1,0\n1,0\n", "1,0\n1,0\n1,0\n1,5\n1,5\n");
  spec.mutable_test()->mutable_csv()->set_part(DataSource::Csv::PART_TRAIN);
  spec.mutable_test()->mutable_csv()->set_holdout_fraction(0.4);
  EXPECT_THAT(InspectData(spec).error(),
              AnyOf(HasSubstr("line 4 has label 5"), HasSubstr("line 5 has label 5")));

  spec = JobSpec();
  *spec.mutable_train() =
      IdxSource(WriteFile("few-images", Images(2, 3, 5)), WriteFile("few-labels", Labels(2)));
  *spec.mutable_test() = SmallIdx();
  spec.mutable_test()->mutable_idx()->set_labels(WriteFile("t-labels", Labels(5)));
  EXPECT_THAT(InspectData(spec).error(), HasSubstr("t-labels: sample 2 has label 2"));
}

TEST(InspectData, BinaryCrossEntropyWantsLabelsFromZeroToOne) {
  JobSpec spec = CsvJob("1,0,1\n2,0.5,0\n", "x,y,z\n1,1,1\n3,0,1.5\n");
  for (DataSource* const source : {spec.mutable_train(), spec.mutable_test()}) {
    source->mutable_csv()->set_label_type(DataSource::Csv::LABEL_NUMBER);
    for (const char* column : {"2", "3"}) source->mutable_csv()->add_label(column);
  }
  spec.mutable_test()->mutable_csv()->set_header(true);
  spec.mutable_test()->mutable_csv()->set_label(0, "y");
  spec.mutable_test()->mutable_csv()->set_label(1, "z");
  spec.mutable_model_source()->set_loss("mean_squared_error");
  EXPECT_EQ(InspectData(spec).error(), "");
  constexpr char kRefusal[] =
      "test.csv: line 3 has label 1.5, expected a number from 0 to 1, as loss: binaryCrossEntropy";
  spec.mutable_model_source()->set_loss("binary_cross_entropy");
  EXPECT_THAT(InspectData(spec).error(), AllOf(HasSubstr("data.test: "), HasSubstr(kRefusal)));
  spec.clear_test();
  EXPECT_EQ(InspectData(spec).error(), "");

  // Of a client that sends a graph, and of a label that is below.
  *spec.mutable_train() = CsvSource(WriteFile("train.csv", "1,-1\n"));
  spec.mutable_train()->mutable_csv()->set_label_type(DataSource::Csv::LABEL_NUMBER);
  spec.clear_model_source();
  spec.mutable_model()->mutable_input()->add_shape(1);
  spec.mutable_model()->add_nodes()->set_op("binary_cross_entropy");
  EXPECT_THAT(InspectData(spec).error(), HasSubstr("train.csv: line 1 has label -1, expected"));
}

TEST(InspectData, ALabelThatTheModelHasRoomForIsWarnedAbout) {
  JobSpec spec = CsvJob("1,0\n2,1\n3,3\n", "1,0\n2,2\n3,3\n");
  Inspection found = InspectData(spec);
  EXPECT_EQ(found.error(), "");
  EXPECT_EQ(found.classes(), 4u);
  EXPECT_THAT(found.warnings(),
              ElementsAre(HasSubstr("test.csv: line 2 has label 2, which no sample")));

  spec = CsvJob("1,0\n2,1\n", "1,0\n2,7\n");
  EXPECT_THAT(InspectData(spec).error(), HasSubstr("expected less than 2"));
  (*spec.mutable_model_source()->mutable_arguments())["classes"].set_i(8);
  found = InspectData(spec);
  EXPECT_EQ(found.error(), "");
  EXPECT_EQ(found.classes(), 2u) << "the head is widened by the job alone";
  EXPECT_EQ(found.warnings_size(), 1);
  spec.clear_model_source();
  (*spec.mutable_model_source()->add_layers()->mutable_attributes())["out_features"].set_i(8);
  EXPECT_EQ(InspectData(spec).error(), "");
}

TEST(DataSet, ReadsTheRealMnist) {
  const char* root = std::getenv("STARLING_DATA");
  if (root == nullptr) GTEST_SKIP() << "STARLING_DATA is not set";
  const std::string folder = std::string(root) + "/mnist/";
  const auto data = DataSet::Open(
      IdxSource(folder + "train-images-idx3-ubyte.gz", folder + "train-labels-idx1-ubyte.gz"),
      Of({0.1307}, {0.3081}), {.classes = 10});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->samples(), 60'000);
  double sum = 0;
  double squares = 0;
  std::vector<float> inputs(784);
  int32_t label;
  for (int64_t i = 0; i < 60'000; ++i) {
    Gather(**data, {i}, inputs.data(), &label);
    for (float x : inputs) {
      sum += x;
      squares += double{x} * x;
    }
    if (i == 0) {
      EXPECT_EQ(label, 5);
    }
  }
  EXPECT_NEAR(sum / (60'000 * 784.0), 0, 1e-3);  // so 0.1307 and 0.3081 fit the data
  EXPECT_NEAR(squares / (60'000 * 784.0), 1, 1e-3);
}

}  // namespace
}  // namespace starling
