#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "worker/data/data_set.h"
#include "worker/data/testing/files.h"

namespace starling {
namespace {

using data_testing::Gzip;
using data_testing::WriteFile;
using testing::ElementsAre;
using testing::HasSubstr;

// A record: labels, then channels of bytes, all 10 * c + mark in channel c.
std::string Record(const std::string& labels, int mark) {
  std::string out = labels;
  for (int c = 0; c < 3; ++c) out += std::string(1024, static_cast<char>(10 * c + mark));
  return out;
}

DataSource Source(const std::vector<std::string>& files,
                  DataSource::Cifar::Labels labels = DataSource::Cifar::CIFAR10) {
  DataSource source;
  for (const std::string& file : files) source.mutable_cifar()->add_files(file);
  source.mutable_cifar()->set_labels(labels);
  return source;
}

std::string Error(const DataSource& source,
                  absl::StatusCode code = absl::StatusCode::kInvalidArgument,
                  const DataSetOptions& options = {}) {
  const absl::Status status = DataSet::Open(source, {}, options).status();
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST(Cifar, ReadsBatchesInOrder) {
  const std::string one = WriteFile("c1.bin", Record({1}, 5) + Record({9}, 6));
  const std::string two = WriteFile("c2.bin", Gzip(Record({0}, 7)));
  const auto data = DataSet::Open(Source({one, two}), {}, {});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->samples(), 3);
  EXPECT_EQ((*data)->classes(), 10);
  EXPECT_THAT((*data)->sample_shape(), ElementsAre(3, 32, 32));
  EXPECT_EQ((*data)->class_names()[9], "truck");
  std::vector<float> pixels(2 * 3072);
  std::vector<int32_t> labels(2);
  ASSERT_TRUE((*data)->Gather({2, 1}, nullptr, pixels.data(), labels.data()).ok());
  EXPECT_THAT(labels, ElementsAre(0, 9));
  EXPECT_FLOAT_EQ(pixels[1023], 7 / 255.0f);
  EXPECT_FLOAT_EQ(pixels[1024], 17 / 255.0f);
  EXPECT_FLOAT_EQ(pixels[3072 + 3071], 26 / 255.0f);
}

TEST(Cifar, HundredHasTwoLabels) {
  std::string bytes;
  for (int i = 0; i < 600; ++i)
    bytes += Record({static_cast<char>(i % 20), static_cast<char>(i % 100)}, i % 50);
  const std::string path = WriteFile("c100.bin", bytes);  // several chunks
  for (const auto labels : {DataSource::Cifar::FINE, DataSource::Cifar::COARSE}) {
    const auto data = *DataSet::Open(Source({path}, labels), {}, {});
    EXPECT_EQ(data->samples(), 600);
    EXPECT_EQ(data->classes(), labels == DataSource::Cifar::FINE ? 100 : 20);
    std::vector<float> pixels(3072);
    int32_t label = -1;
    ASSERT_TRUE(data->Gather({599}, nullptr, pixels.data(), &label).ok());
    EXPECT_EQ(label, labels == DataSource::Cifar::FINE ? 99 : 19);
    EXPECT_FLOAT_EQ(pixels[0], 49 / 255.0f);
  }
}

TEST(Cifar, NamesFileAndRecord) {
  const std::string good = Record({1}, 5);
  EXPECT_THAT(Error(Source({WriteFile("c.bin", good + good.substr(0, 100))})),
              HasSubstr("c.bin: 100 bytes after record 1: expected whole records of 3073 bytes"));
  EXPECT_THAT(Error(Source({WriteFile("c.bin", good + Record({10}, 5))})),
              HasSubstr("c.bin: record 1 has label 10, expected less than 10 in CIFAR-10"));
  EXPECT_THAT(Error(Source({WriteFile("c.bin", "")})), HasSubstr("c.bin: empty"));
  EXPECT_THAT(Error(Source({})), HasSubstr("at least one file"));
  EXPECT_THAT(Error(Source({WriteFile("c.bin", Gzip(good).substr(0, 30))})),
              HasSubstr("gzip stream is truncated"));
  EXPECT_THAT(Error(Source({"/no/such.bin"}), absl::StatusCode::kNotFound),
              HasSubstr("/no/such.bin"));
  DataSetOptions options;
  options.limits.decoded_bytes_max = 3000;
  EXPECT_THAT(
      Error(Source({WriteFile("c.bin", good)}), absl::StatusCode::kResourceExhausted, options),
      HasSubstr("3073 bytes of data in all, more than the limit of 3000"));
  // CIFAR-100's records read as CIFAR-10's: the sizes do not fit.
  EXPECT_THAT(Error(Source({WriteFile("c.bin", Record({1, 2}, 5))})), HasSubstr("another format"));
}

// Reading a sparse file of a terabyte would take minutes, and all of the machine's memory.
TEST(Cifar, ALargeFileIsRefusedByItsSize) {
  constexpr uint64_t kRecords = uint64_t{1} << 28;
  const std::string sparse = WriteFile("sparse.bin", Record({1}, 5));
  std::filesystem::resize_file(sparse, kRecords * 3073);
  DataSetOptions options;
  options.limits.decoded_bytes_max = 64 << 20;
  EXPECT_THAT(
      Error(Source({sparse}), absl::StatusCode::kResourceExhausted, options),
      HasSubstr("sparse.bin: 824902156288 bytes of data in all, more than the limit of 67108864"));
  std::filesystem::resize_file(sparse, kRecords * 3073 + 7);
  EXPECT_THAT(Error(Source({sparse}), absl::StatusCode::kInvalidArgument, options),
              HasSubstr("sparse.bin: 7 bytes after record 268435456: expected whole records"));
  std::filesystem::remove(sparse);
}

}  // namespace
}  // namespace starling
