#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <random>

#include "worker/data/data_set.h"
#include "worker/data/testing/files.h"

namespace starling {
namespace {

using data_testing::Gzip;
using data_testing::Packed;
using data_testing::TextSource;
using data_testing::TokenHeader;
using data_testing::TokenSource;
using data_testing::WriteFile;
using testing::ElementsAre;
using testing::HasSubstr;

using Window = std::pair<std::vector<int32_t>, std::vector<int32_t>>;  // inputs, labels

Window WindowAt(const DataSet& data, int64_t id) {
  Window out;
  out.first.resize(data.sample_elements());
  out.second.resize(data.label_elements());
  EXPECT_EQ(data.Gather({id}, nullptr, out.first.data(), out.second.data()), absl::OkStatus());
  return out;
}

std::string Error(const DataSource& source, const DataSetOptions& options = {}) {
  const absl::Status status = DataSet::Open(source, {}, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(Text, EachWindowIsLabelledWithTheNextByte) {
  const auto data = *DataSet::Open(TextSource(WriteFile("t.txt", "abcdefgh\xff"), 3), {}, {});
  EXPECT_EQ(data->samples(), 2);  // "abc|d" and "def|g"; "gh\xff" has no next byte
  EXPECT_EQ(data->format().type, INT32);
  EXPECT_EQ(data->format().label_type, INT32);
  EXPECT_EQ(data->format().vocabulary, 256);
  EXPECT_EQ(data->classes(), 256);
  EXPECT_THAT(data->sample_shape(), ElementsAre(3));
  EXPECT_THAT(data->format().label_shape, ElementsAre(3));
  EXPECT_EQ(WindowAt(*data, 1), Window({'d', 'e', 'f'}, {'e', 'f', 'g'}));
  // Bytes are 0 to 255, whether `char` is signed or not.
  const auto last = *DataSet::Open(TextSource(WriteFile("t.txt", "abcdefgh\xff"), 8), {}, {});
  EXPECT_EQ(WindowAt(*last, 0).second.back(), 255);
}

TEST(Text, StrideAndPart) {
  const std::string path = WriteFile("p.txt", "0123456789");
  const auto overlapping = *DataSet::Open(TextSource(path, 4, 1), {}, {});
  EXPECT_EQ(overlapping->samples(), 6);
  EXPECT_EQ(WindowAt(*overlapping, 5), Window({'5', '6', '7', '8'}, {'6', '7', '8', '9'}));
  // The two parts share nothing: the label after the first part's last window is its own byte.
  const auto train = *DataSet::Open(TextSource(path, 4, 1, 0, 0.5), {}, {});
  EXPECT_EQ(train->samples(), 1);
  EXPECT_EQ(WindowAt(*train, 0), Window({'0', '1', '2', '3'}, {'1', '2', '3', '4'}));
  const auto test = *DataSet::Open(TextSource(path, 4, 1, 0.5), {}, {});
  EXPECT_EQ(test->samples(), 1);
  EXPECT_EQ(WindowAt(*test, 0), Window({'5', '6', '7', '8'}, {'6', '7', '8', '9'}));
}

TEST(Text, RefusesWhatItCannotUse) {
  const std::string path = WriteFile("r.txt", "0123456789");
  EXPECT_THAT(Error(TextSource(path, 10)),
              HasSubstr("r.txt: its part from 0 to 1 has 10 tokens, fewer than one sample and the "
                        "token behind it (11)"));
  EXPECT_THAT(Error(TextSource(path, 0)), HasSubstr("expected a context of 1 to"));
  for (const auto& [begin, end] : std::vector<std::pair<double, double>>{
           {0.5, 0.5}, {-0.1, 1}, {0, 1.1}, {std::nan(""), 1}, {0, std::nan("")}}) {
    EXPECT_THAT(Error(TextSource(path, 2, 0, begin, end)), HasSubstr("0 <= begin < end <= 1"));
  }
  EXPECT_THAT(Error(TextSource(WriteFile("z.txt", Gzip("0123456789")), 2)),
              HasSubstr("expected plain text, got gzip"));
  EXPECT_THAT(Error(TextSource(WriteFile("e.txt", ""), 2)), HasSubstr("has 0 tokens"));
  EXPECT_EQ(DataSet::Open(TextSource("/no/such/file", 2), {}, {}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(Error(TextSource(testing::TempDir(), 2)), HasSubstr("expected a regular file"));
  EXPECT_THAT(Error(TextSource(path, 2), {.classes = 65}),
              HasSubstr("expected tokens less than 65, the model's vocabulary"));
  EXPECT_THAT(Error(TextSource(path, 2), {.sample_shape = {1, 2}}), HasSubstr("data.shape"));
  DataSetOptions flip;
  flip.augment.set_horizontal_flip(true);
  EXPECT_THAT(Error(TextSource(path, 2), flip), HasSubstr("augment is for images"));
  Normalize normalize;
  normalize.add_mean(0);
  normalize.add_std(1);
  EXPECT_THAT(std::string(DataSet::Open(TextSource(path, 2), normalize, {}).status().message()),
              HasSubstr("tokens cannot be normalised"));
}

TEST(Text, AFileThatShrinksIsAnErrorWhereItIsRead) {
  const std::string path = WriteFile("s.txt", "0123456789");
  const auto data = *DataSet::Open(TextSource(path, 4), {}, {});
  WriteFile("s.txt", "012345");
  std::vector<int32_t> inputs(4);
  std::vector<int32_t> labels(4);
  const absl::Status status = data->Gather({1}, nullptr, inputs.data(), labels.data());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("s.txt: truncated: expected 5 bytes from byte 4 on, got 2"));
}

TEST(Tokens, OfNanoGptAndOfBothHeadersOfLlmC) {
  const std::vector<uint16_t> narrow = {5, 60000, 7, 8, 9};
  const std::vector<uint32_t> wide = {5, 60000, 7, 8, 99999};
  const std::string plain = WriteFile("n.bin", Packed(narrow));
  const std::string v1 = WriteFile("1.bin", TokenHeader(20240520, 1, 5) + Packed(narrow));
  const std::string v7 = WriteFile("7.bin", TokenHeader(20240801, 7, 5) + Packed(wide));
  for (const std::string& path : {plain, v1, v7}) {
    const auto data = DataSet::Open(TokenSource(path, 2, 100'000), {}, {});
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ((*data)->samples(), 2) << path;
    EXPECT_EQ((*data)->format().vocabulary, 100'000);
    EXPECT_EQ(WindowAt(**data, 0), Window({5, 60000}, {60000, 7})) << path;
    EXPECT_EQ(WindowAt(**data, 1), Window({7, 8}, {8, path == v7 ? 99999 : 9})) << path;
  }
  const auto part = *DataSet::Open(TokenSource(v7, 1, 100'000, 0, 0.4), {}, {});
  EXPECT_EQ(WindowAt(*part, 0), Window({7}, {8}));
}

TEST(Tokens, OutOfTheVocabulary) {
  const std::string path = WriteFile("o.bin", Packed<uint16_t>({1, 2, 3, 700, 4, 5}));
  EXPECT_THAT(Error(TokenSource(path, 2, 600)),
              HasSubstr("o.bin: token 3 is 700, expected less than 600, the vocabulary"));
  // Beyond the part that is scanned at opening, it is found when it is read.
  DataSetOptions blind;
  blind.limits.token_scan_bytes_max = 4;
  const auto data = *DataSet::Open(TokenSource(path, 2, 600), {}, blind);
  std::vector<int32_t> inputs(2);
  std::vector<int32_t> labels(2);
  EXPECT_THAT(std::string(data->Gather({1}, nullptr, inputs.data(), labels.data()).message()),
              HasSubstr("token 3 is 700"));
  // A part that does not contain it is valid.
  EXPECT_TRUE(DataSet::Open(TokenSource(path, 2, 600, 0, 0, 0.5), {}, {}).ok());
  // A value beyond int32 is not a negative token.
  const std::string huge = WriteFile(
      "h.bin", TokenHeader(20240801, 7, 3) + Packed<uint32_t>({1, 0x80000001u, 0xffffffffu}));
  EXPECT_THAT(Error(TokenSource(huge, 1, 50'257)), HasSubstr("token 2 is 4294967295"));
  EXPECT_THAT(Error(TokenSource(path, 2, 0)), HasSubstr("vocabulary of at least 2"));
  EXPECT_THAT(Error(TokenSource(path, 2, std::numeric_limits<uint32_t>::max())),
              HasSubstr("vocabulary of at least 2"));
}

TEST(Tokens, RefusesFilesThatAreNotWhole) {
  const auto of = [](const std::string& bytes) {
    return Error(TokenSource(WriteFile("w.bin", bytes), 1, 100));
  };
  EXPECT_THAT(of("abc"), HasSubstr("expected tokens of 2 bytes each, got 3 bytes"));
  EXPECT_THAT(of(TokenHeader(20240520, 2, 0)), HasSubstr("expected version 1"));
  EXPECT_THAT(of(TokenHeader(20240801, 1, 0)), HasSubstr("expected version 7"));
  EXPECT_THAT(of(TokenHeader(20240520, 1, 3).substr(0, 500)), HasSubstr("in a file of 500 bytes"));
  EXPECT_THAT(of(TokenHeader(20240520, 1, 3) + Packed<uint16_t>({1, 2})),
              HasSubstr("its header speaks of 3 tokens, and it holds 2"));
  EXPECT_THAT(of(TokenHeader(20240801, 7, -1) + Packed<uint32_t>({1, 2})),
              HasSubstr("speaks of -1 tokens"));
  EXPECT_THAT(of(TokenHeader(20240801, 7, 1) + "abcdef"),
              HasSubstr("expected tokens of 4 bytes each, got 6 bytes"));
}

// For any bytes: a clear error, or only tokens in the vocabulary.
TEST(Tokens, RandomDamageNeverGetsThrough) {
  std::mt19937 random(7);
  std::string good = TokenHeader(20240801, 7, 64);
  for (uint32_t i = 0; i < 64; ++i) good += Packed<uint32_t>({i});
  for (int round = 0; round < 600; ++round) {
    std::string bytes = good;
    for (int flips = 1 + random() % 4; flips > 0; --flips) {
      const size_t at = random() % 2 == 0 ? random() % 12 : random() % bytes.size();
      bytes[at] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto data =
        DataSet::Open(TokenSource(data_testing::WriteNewFile("d.bin", bytes), 4, 256), {}, {});
    if (!data.ok()) {
      EXPECT_EQ(data.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    for (int64_t i = 0; i < (*data)->samples(); ++i) {
      for (int32_t token : WindowAt(**data, i).first) EXPECT_TRUE(token >= 0 && token < 256);
    }
  }
}

TEST(Text, ReadsTheRealShakespeare) {
  const char* root = std::getenv("STARLING_DATA");
  if (root == nullptr) GTEST_SKIP() << "STARLING_DATA is not set";
  const std::string path = std::string(root) + "/tinyshakespeare/input.txt";
  const auto data = DataSet::Open(TextSource(path, 128, 0, 0, 0.9), {}, {});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->samples(), 7842);
  const Window first = WindowAt(**data, 0);
  EXPECT_EQ(std::string(first.first.begin(), first.first.begin() + 14), "First Citizen:");
}

}  // namespace
}  // namespace starling
