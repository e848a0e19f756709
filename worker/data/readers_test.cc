#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "worker/data/byte_stream.h"
#include "worker/data/samples.h"
#include "worker/data/testing/files.h"

namespace starling {
namespace {

using data_testing::Gzip;
using data_testing::Idx;
using data_testing::Images;
using data_testing::Labels;
using data_testing::WriteFile;
using testing::ElementsAre;
using testing::HasSubstr;

const DataLimits kLimits;

// `status` has the code, and its message names `path` and contains `what`.
void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& path,
                 const std::string& what) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

void ExpectInvalid(const absl::Status& status, const std::string& path, const std::string& what) {
  ExpectError(status, absl::StatusCode::kInvalidArgument, path, what);
}

class IdxTest : public testing::Test {
 protected:
  // Reads `images` with three good labels.
  absl::Status Read(const std::string& images, const DataLimits& limits = kLimits) {
    path_ = WriteFile("images", images);
    return ReadIdx(path_, labels_, limits).status();
  }

  std::string path_;
  const std::string labels_ = WriteFile("labels", Labels(3));
};

TEST_F(IdxTest, ReadsPlainAndGzip) {
  for (bool gzip : {false, true}) {
    const std::string images = gzip ? Gzip(Images(3, 2, 4)) : Images(3, 2, 4);
    const std::string labels = gzip ? Gzip(Labels(3)) : Labels(3);
    const auto samples = ReadIdx(WriteFile("i", images), WriteFile("l", labels), kLimits);
    ASSERT_TRUE(samples.ok()) << samples.status();
    EXPECT_THAT(samples->shape, ElementsAre(1, 2, 4));
    EXPECT_THAT(samples->labels, ElementsAre(0, 1, 2));
    ASSERT_EQ(samples->bytes.size(), 24u);
    for (int i = 0; i < 24; ++i) EXPECT_EQ(samples->bytes[i], 10 * (i / 8) + i % 8);
  }
}

TEST_F(IdxTest, ReadsSeveralGzipMembers) {
  const std::string images = Images(3, 2, 4);
  EXPECT_TRUE(Read(Gzip(images.substr(0, 7)) + Gzip("") + Gzip(images.substr(7))).ok());
}

TEST_F(IdxTest, MissingFile) {
  ExpectError(ReadIdx("/no/such/file", labels_, kLimits).status(), absl::StatusCode::kNotFound,
              "/no/such/file", "No such file");
  ExpectInvalid(ReadIdx(testing::TempDir(), labels_, kLimits).status(), testing::TempDir(),
                "regular file");
}

TEST_F(IdxTest, WrongMagic) {
  ExpectInvalid(Read(Labels(3)), path_,
                "expected IDX magic 0x00000803 (images), got 0x00000801 (labels)");
  ExpectInvalid(Read("PNG, not IDX at all"), path_, "got 0x504e472c");
  ExpectInvalid(Read(Idx({3, 1, 1, 1}, "abc")), path_, "got 0x00000804");
}

TEST_F(IdxTest, TruncatedAnywhere) {
  const std::string good = Images(3, 2, 4);
  for (size_t size = 0; size < good.size(); ++size) {
    ExpectInvalid(Read(good.substr(0, size)), path_, "truncated");
  }
  const std::string gzip = Gzip(good);
  for (size_t size = 2; size < gzip.size(); ++size) {
    ExpectInvalid(Read(gzip.substr(0, size)), path_, "truncated");
  }
  ExpectInvalid(Read(Gzip(good.substr(0, good.size() - 1))), path_, "truncated");
}

TEST_F(IdxTest, TrailingBytes) {
  ExpectInvalid(Read(Images(3, 2, 4) + "xy"), path_, "2 trailing bytes");
  ExpectInvalid(Read(Gzip(Images(3, 2, 4) + "x")), path_, "trailing bytes");
  ExpectInvalid(Read(Gzip(Images(3, 2, 4)) + "junk"), path_, "corrupt");
}

TEST_F(IdxTest, CorruptGzip) {
  const std::string good = Gzip(Images(3, 2, 4));
  int refused = 0;
  for (size_t i = 10; i < good.size(); ++i) {  // after gzip's header, whose time and name may vary
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x55);
    const absl::Status status = Read(bad);
    EXPECT_FALSE(status.ok()) << i;
    refused += !status.ok();
  }
  EXPECT_EQ(refused, static_cast<int>(good.size()) - 10);
}

TEST_F(IdxTest, CountsDiffer) {
  const absl::Status status = Read(Images(4, 2, 4));
  ExpectInvalid(status, path_, "has 4 images");
  ExpectInvalid(status, labels_, "has 3 labels");
}

TEST_F(IdxTest, SizesThatCannotBe) {
  ExpectInvalid(Read(Idx({0, 2, 4}, "")), path_, "empty");
  ExpectInvalid(Read(Idx({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, "x")), path_, "overflow");
  ExpectInvalid(Read(Idx({0xFFFFFFFF, 1000, 1000}, "x")), path_, "truncated");
  // A gzip file of this size cannot inflate to that, so nothing is allocated.
  ExpectInvalid(Read(Gzip(Idx({0xFFFFFFFF, 1000, 1000}, "x"))), path_, "truncated");
}

TEST_F(IdxTest, LimitsAndBombs) {
  DataLimits small;
  small.decoded_bytes_max = 23;
  ExpectError(Read(Images(3, 2, 4), small), absl::StatusCode::kResourceExhausted, path_,
              "limit of 23");
  small.decoded_bytes_max = 24;
  EXPECT_TRUE(Read(Images(3, 2, 4), small).ok());
  // 64 MB of zeros after the 24 bytes that the header specifies: inflating stops one byte later.
  ExpectInvalid(Read(Gzip(Images(3, 2, 4) + std::string(64 << 20, '\0')), small), path_,
                "trailing bytes");
}

TEST(ByteStream, ReadsInPieces) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) absl::StrAppend(&text, i, ",");
  for (const std::string& bytes :
       {text, Gzip(text), Gzip(text.substr(0, 1000)) + Gzip(text.substr(1000))}) {
    auto stream = ByteStream::Open(WriteFile("stream", bytes));
    ASSERT_TRUE(stream.ok()) << stream.status();
    EXPECT_GE((*stream)->bytes_max(), text.size());
    std::string found;
    std::vector<uint8_t> piece(7919);
    for (size_t got = piece.size(); got == piece.size();) {
      got = *(*stream)->Read(absl::MakeSpan(piece));
      found.append(piece.begin(), piece.begin() + static_cast<int64_t>(got));
    }
    EXPECT_EQ(found, text);
    EXPECT_EQ(*(*stream)->Read(absl::MakeSpan(piece)), 0u);
  }
}

class CsvTest : public testing::Test {
 protected:
  absl::StatusOr<Samples> Read(const std::string& text, const DataLimits& limits = kLimits) {
    path_ = WriteFile("rows.csv", text);
    csv_.set_path(path_);
    return ReadCsv(csv_, limits);
  }
  // The error message for a schema.
  std::string Error(const std::string& text) { return std::string(Read(text).status().message()); }

  DataSource::Csv csv_;
  std::string path_;
};

TEST_F(CsvTest, ReadsRows) {
  const std::string text = "0,1.5,-2,0\n16, 1e-3 ,3,9\n";
  for (const std::string& bytes : {text, Gzip(text), text.substr(0, text.size() - 1),
                                   std::string("0,1.5,-2,0\r\n16,1e-3,3,9\r\n")}) {
    const auto samples = Read(bytes);
    ASSERT_TRUE(samples.ok()) << samples.status();
    EXPECT_THAT(samples->shape, ElementsAre(3));
    EXPECT_THAT(samples->floats, ElementsAre(0, 1.5f, -2, 16, 1e-3f, 3));
    EXPECT_THAT(samples->labels, ElementsAre(0, 9));
  }
}

TEST_F(CsvTest, AByteOrderMarkIsSkipped) {
  const std::string mark = "\xEF\xBB\xBF";
  const auto plain = Read(mark + "4,5,1\n");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT(plain->floats, ElementsAre(4, 5));
  csv_.set_header(true);
  csv_.add_label("first");
  const auto named = Read(mark + "first,second\n1,4\n");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(named->labels, ElementsAre(1));
}

TEST_F(CsvTest, ReadsLinesAcrossChunks) {
  std::string text;
  for (int i = 0; i < 30'000; ++i) absl::StrAppend(&text, i, ",", i * 2, ",", i % 10, "\n");
  const auto samples = Read(text);
  ASSERT_TRUE(samples.ok()) << samples.status();
  ASSERT_EQ(samples->labels.size(), 30'000u);
  for (int i = 0; i < 30'000; ++i) {
    ASSERT_EQ(samples->floats[2 * i + 1], 2 * i);
    ASSERT_EQ(samples->labels[i], i % 10);
  }
}

TEST_F(CsvTest, WhatIsTooSmallForAFloatIsZero) {
  const auto samples = Read("1e-46,-1e-400,3\n");
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_THAT(samples->floats, ElementsAre(0, 0));
}

TEST_F(CsvTest, NamesTheLineThatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "empty"},
      {"pixel0,pixel1,label\n1,2,3\n",
       "line 1: column 1: expected a number, got \"pixel0\" (where this is the header, say header: "
       "true)"},
      {"1,2,3\n1,2\n", "line 2: expected 3 columns as in line 1, got 2"},
      {"1,2,3\n1,2,3,4\n", "line 2: expected 3 columns as in line 1, got 4"},
      {"1,2,3\n\n1,2,3\n", "line 2: expected numbers separated by commas"},
      {"1,2,3\n1,x,3\n", "line 2: column 2: expected a number, got \"x\""},
      {"1,2,3\n1,,3\n", "line 2: column 2: expected a number, got \"\""},
      {"1,2,3\n1,2 2,3\n", "line 2: column 2"},
      {"1,2,3\n1,nan,3\n", "line 2: column 2"},
      {"1,2,3\n1,inf,3\n", "line 2: column 2"},
      {"1,2,3\n1,1e39,3\n",
       "line 2: column 2: expected a number that a float holds, from -3.4028235e38 to "
       "3.4028235e38, got \"1e39\""},
      {"1,2,3\n1,-1e400,3\n", "3.4028235e38, got \"-1e400\""},
      {"1,2,3\n1,2,-1\n", "line 2: column 3: expected a label, an integer >= 0, got \"-1\""},
      {"1,2,3\n1,2,3.5\n", "line 2: column 3: expected a label"},
      {"1,2,3\n1,2,4294967296\n", "line 2: column 3: expected a label"},
      {"7\n", "line 1: expected numbers separated by commas"},
      {std::string("1,2,3\n1,\0,3\n", 12), "line 2: column 2: expected a number, got \"\\x00\""},
  };
  for (const auto& [text, what] : cases) ExpectInvalid(Read(text).status(), path_, what);
}

constexpr char kHouses[] =
    "id,area,rooms,\"price\",rent\n"
    "x-1,50.5,2,100,1.5\n"
    "x-2,70,3,150,-2\n";

TEST_F(CsvTest, ColumnsByName) {
  csv_.set_header(true);
  csv_.add_ignore("id");
  csv_.add_label("price");
  csv_.add_label("rent");
  csv_.set_label_type(DataSource::Csv::LABEL_NUMBER);
  auto samples = Read(kHouses);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_THAT(samples->shape, ElementsAre(2));
  EXPECT_THAT(samples->label_shape, ElementsAre(2));
  EXPECT_THAT(samples->floats, ElementsAre(50.5f, 2, 70, 3));
  EXPECT_THAT(samples->targets, ElementsAre(100, 1.5f, 150, -2));
  EXPECT_TRUE(samples->labels.empty());
  EXPECT_EQ(samples->count(), 2);
  // Features in the given order; unnamed columns are left out; labels in their own order.
  csv_.clear_ignore();
  csv_.clear_label();
  csv_.add_label("rent");
  csv_.add_label("area");
  csv_.add_features("price");
  csv_.add_features("rooms");
  samples = Read(kHouses);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_THAT(samples->floats, ElementsAre(100, 2, 150, 3));
  EXPECT_THAT(samples->targets, ElementsAre(1.5f, 50.5f, -2, 70));
}

TEST_F(CsvTest, ColumnsByNumberAndClassesByName) {
  csv_.set_separator(";");
  csv_.add_label("1");
  csv_.add_ignore("3");
  for (const char* name : {"setosa", "virginica"}) csv_.add_classes(name);
  const auto samples = Read("setosa;1;anything;2\n\"virginica\";3;;4\n");
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_THAT(samples->floats, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(samples->labels, ElementsAre(0, 1));
  EXPECT_THAT(samples->class_names, ElementsAre("setosa", "virginica"));
  EXPECT_THAT(
      Error("setosa;1;;2\nrose;3;;4\n"),
      HasSubstr("line 2: column 1: unknown class \"rose\"; classes lists setosa, virginica"));
  EXPECT_THAT(Error("setosa,1,,2\n"), HasSubstr("expected numbers separated by ;"));
}

TEST_F(CsvTest, SchemasThatDoNotFit) {
  csv_.set_header(true);
  csv_.add_label("prize");
  EXPECT_THAT(Error(kHouses),
              HasSubstr("rows.csv: line 1: no column \"prize\"; the file has 5: id, area"));
  csv_.set_label(0, "price");
  EXPECT_THAT(Error(kHouses),
              HasSubstr("line 2: column 1 (\"id\"): expected a number, got \"x-1\""));
  csv_.add_ignore("price");
  EXPECT_THAT(Error(kHouses),
              HasSubstr("column \"price\" is named twice among label, features and ignore"));
  csv_.set_ignore(0, "id");
  EXPECT_THAT(Error("id,id,price\n1,2,3\n"), HasSubstr("two columns are called \"id\""));
  csv_.add_label("rent");
  EXPECT_THAT(Error(kHouses), HasSubstr("a class is one column, and label names 2"));
  csv_.add_ignore("area");
  csv_.add_ignore("rooms");
  EXPECT_THAT(Error(kHouses), HasSubstr("no column is left for the features"));
  csv_.mutable_ignore()->RemoveLast();
  csv_.set_label_type(DataSource::Csv::LABEL_NUMBER);
  EXPECT_THAT(Error("id,area,rooms,price,rent\n"), HasSubstr("empty"));
  EXPECT_THAT(Error("id,area,rooms,price,rent\n1,2,3,much,5\n"),
              HasSubstr("line 2: column 4 (\"price\"): expected a number, got \"much\""));
  EXPECT_THAT(Error("id,area,rooms,price,rent\n1,2,3\n"),
              HasSubstr("expected 5 columns as in line 1, got 3"));
}

TEST_F(CsvTest, LimitsAndBombs) {
  DataLimits limits;
  limits.csv_line_bytes_max = 1000;
  const std::string bomb = Gzip("1,2,3\n" + std::string(16 << 20, '1'));
  ExpectInvalid(Read(bomb, limits).status(), path_, "line 2: longer than 1000 bytes");
  limits.decoded_bytes_max = 10'000;
  std::string rows;
  for (int i = 0; i < 100'000; ++i) rows += "1,2,3\n";
  ExpectError(Read(Gzip(rows), limits).status(), absl::StatusCode::kResourceExhausted, path_,
              "limit of 10000");
  const std::string gzip = Gzip(rows);
  ExpectInvalid(Read(gzip.substr(0, gzip.size() / 2)).status(), path_, "truncated");
}

// Bytes of valid files flipped, cut, doubled and joined at random: any status, but no crash
// (sanitizers check), and never inconsistent samples.
TEST(Readers, SurviveRandomDamage) {
  std::mt19937 random(1);
  const std::string csv = "0,1.5,-2,0\n16,1e-3,3,9\n";
  const std::string seeds[] = {Images(3, 2, 4), Gzip(Images(3, 2, 4)), Labels(3), csv, Gzip(csv)};
  const std::string labels = WriteFile("damage-labels", Labels(3));
  DataLimits limits;
  limits.decoded_bytes_max = 1 << 20;
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = seeds[random() % std::size(seeds)];
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0 && !bytes.empty(); --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.resize(at); break;
        case 2: bytes.insert(at, bytes.substr(at / 2)); break;
        default: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8)); break;
      }
    }
    const std::string path = data_testing::WriteNewFile("damage", bytes);
    DataSource::Csv source;
    source.set_path(path);
    for (const auto& samples :
         {ReadIdx(path, labels, limits), ReadIdx(path, path, limits), ReadCsv(source, limits)}) {
      if (!samples.ok()) continue;
      size_t elements = samples->labels.size();
      for (int64_t dim : samples->shape) elements *= static_cast<size_t>(dim);
      EXPECT_EQ(samples->bytes.size() + samples->floats.size(), elements);
      EXPECT_GT(elements, 0u);
    }
  }
}

TEST(HeldOutRows, IsStratifiedAndSeeded) {
  std::vector<int32_t> labels;
  for (int i = 0; i < 1000; ++i) labels.push_back(i % 7 == 0 ? 1 : 0);  // 143 and 857
  labels.push_back(2);                                                  // alone in its class
  const std::vector<int64_t> rows = HeldOutRows(labels, 0.2, 7);
  std::map<int32_t, int> counts;
  for (int64_t row : rows) ++counts[labels[row]];
  EXPECT_EQ(counts[0], 171);  // floor(0.2 * 857 + 0.5)
  EXPECT_EQ(counts[1], 29);
  EXPECT_EQ(counts[2], 0);
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  EXPECT_EQ(std::set<int64_t>(rows.begin(), rows.end()).size(), rows.size());
  EXPECT_EQ(rows, HeldOutRows(labels, 0.2, 7));
  EXPECT_NE(rows, HeldOutRows(labels, 0.2, 8));
  EXPECT_TRUE(HeldOutRows(labels, 0, 7).empty());
}

TEST(HeldOutRows, DoesNotChangeBetweenReleases) {  // tests/judge computes the same in Python
  EXPECT_THAT(HeldOutRows(std::vector<int32_t>(20, 0), 0.25, 7), ElementsAre(0, 1, 9, 12, 14));
}

}  // namespace
}  // namespace starling
