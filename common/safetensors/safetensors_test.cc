#include "common/safetensors/safetensors.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"

namespace starling::safetensors {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string Path(const std::string& name) { return testing::TempDir() + "/" + name; }

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string File(const std::string& json, const std::string& data) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(json.size() >> (8 * i));
  return out + json + data;
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}");
}

int FilesThatBeginWith(const std::string& prefix) {
  int count = 0;
  DIR* folder = opendir(testing::TempDir().c_str());
  while (const dirent* entry = readdir(folder))
    count += std::string(entry->d_name).rfind(prefix, 0) == 0;
  closedir(folder);
  return count;
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const std::string path = Path("round.safetensors");
  const std::vector<float> weight = {1, -2.5, 3, 4, 5, 6};
  const std::vector<uint8_t> bytes = {7, 8, 9};
  {
    auto writer = Writer::Create(path,
                                 {{.name = "weight", .dtype = DType::kF32, .shape = {2, 3}},
                                  {.name = "none", .dtype = DType::kF32, .shape = {0, 4}},
                                  {.name = "bytes \"\xC3\xA9\"", .dtype = DType::kU8, .shape = {3}},
                                  {.name = "scalar", .dtype = DType::kF32, .shape = {}}},
                                 {{"model", "{\"a\": 1}"}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE(writer->AppendFloats({weight.data(), 2}).ok());  // in pieces
    EXPECT_TRUE(writer->AppendFloats({weight.data() + 2, 4}).ok());
    EXPECT_TRUE(writer->Append(bytes).ok());
    EXPECT_TRUE(writer->AppendFloats({42.0f}).ok());
    ASSERT_TRUE(writer->Finish().ok());
  }
  EXPECT_EQ(FilesThatBeginWith("round.safetensors"), 1);

  auto reader = Reader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->header().data_begin % 8, 0u);
  EXPECT_THAT(reader->header().metadata,
              ElementsAre(Pair("format", "pt"), Pair("model", "{\"a\": 1}")));
  EXPECT_EQ(*reader->ReadFloats("weight"), weight);
  EXPECT_TRUE(reader->ReadFloats("none")->empty());
  EXPECT_THAT(*reader->ReadFloats("scalar"), ElementsAre(42.0f));
  const TensorInfo* tensor = reader->Find("bytes \"\xC3\xA9\"");
  ASSERT_NE(tensor, nullptr);
  std::vector<uint8_t> two(2);
  EXPECT_TRUE(reader->Read(*tensor, 1, absl::MakeSpan(two)).ok());
  EXPECT_THAT(two, ElementsAre(8, 9));
  EXPECT_EQ(reader->Read(*tensor, 2, absl::MakeSpan(two)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(reader->Read(*tensor, std::numeric_limits<uint64_t>::max(), absl::MakeSpan(two)).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(reader->Find("absent"), nullptr);
  EXPECT_EQ(reader->ReadFloats("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(reader->ReadFloats("bytes \"\xC3\xA9\"").status().message()),
              HasSubstr("expected F32"));
}

TEST(Safetensors, TheEmptyFileIsLegal) {
  const std::string empty("\x08\0\0\0\0\0\0\0{}      ", 16);
  WriteAll(Path("empty"), empty);
  auto reader = Reader::Open(Path("empty"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(reader->header().tensors.empty());
}

TEST(Safetensors, AcceptsPaddingAndAnyOrderOfEntriesAndFields) {
  const std::string json = "{\"b\":{\"data_offsets\":[4,12],\"shape\":[2],\"dtype\":\"F32\"}," +
                           Entry("a", "F32", "[]", "[0,4]") + "}   ";
  auto header = ParseHeader(json, 12);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1],
            (TensorInfo{.name = "b", .dtype = DType::kF32, .shape = {2}, .begin = 4, .end = 12}));
}

TEST(Safetensors, KnowsEveryDType) {
  const std::vector<std::pair<std::string, uint64_t>> dtypes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  for (const auto& [name, bytes] : dtypes) {
    auto header = ParseHeader(
        "{" + Entry("t", name, "[3]", absl::StrCat("[0,", 3 * bytes, "]")) + "}", 3 * bytes);
    ASSERT_TRUE(header.ok()) << name << ": " << header.status();
    EXPECT_EQ(DTypeName(header->tensors[0].dtype), name);
  }
}

struct BadHeader {
  std::string json;
  uint64_t data_bytes;
  std::string says;
};

TEST(Safetensors, RefusesMalformedHeaders) {
  const std::string a = Entry("a", "F32", "[1]", "[0,4]");
  const BadHeader cases[] = {
      {"", 0, "begins with {"},
      {" {}", 0, "begins with {"},
      {"[]", 0, "begins with {"},
      {"{", 0, "not JSON"},
      {"{} x", 0, "not JSON"},
      {"{\"\xFF\":1}", 0, "not JSON"},
      {"{\"a\":1}", 0, "did not expect a number"},
      {"{\"a\":[]}", 0, "did not expect an array"},
      {"{\"a\":{\"dtype\":{}}}", 0, "did not expect an object"},
      {"{\"a\":null}", 0, "did not expect null"},
      {"{\"a\":true}", 0, "did not expect a boolean"},
      {"{\"a\":{}}", 0, "expected dtype, shape and data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "expected dtype, shape and data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4, "duplicate field \"dtype\""},
      {"{\"a\":{\"color\":\"red\"}}", 4, "unknown field \"color\""},
      {"{" + Entry("a", "F33", "[1]", "[0,4]") + "}", 4, "unknown dtype \"F33\""},
      {"{" + Entry("a", "F32", "[-1]", "[0,4]") + "}", 4, "did not expect a negative number"},
      {"{" + Entry("a", "F32", "[1.0]", "[0,4]") + "}", 4, "did not expect a fraction"},
      {"{" + Entry("a", "F32", "[18446744073709551616]", "[0,4]") + "}", 4, "beyond 64 bits"},
      {"{" + Entry("a", "F32", "[[1]]", "[0,4]") + "}", 4, "did not expect an array"},
      {"{" + Entry("a", "F32", "[1]", "[0]") + "}", 4, "two data_offsets"},
      {"{" + Entry("a", "F32", "[1]", "[0,4,8]") + "}", 4, "did not expect a number"},
      {"{" + Entry("a", "F32", "[1]", "[0,5]") + "}", 5, "expected 4 bytes"},
      {"{" + Entry("a", "F32", "[1]", "[4,0]") + "}", 4, "expected 4 bytes"},
      {"{" + Entry("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}", 0, "overflows"},
      {"{" + Entry("a", "F32", "[4611686018427387904]", "[0,0]") + "}", 0, "overflows"},
      {"{" + a + "," + a + "}", 4, "duplicate name \"a\""},
      {"{" + Entry("a", "F32", "[1]", "[4,8]") + "}", 8, "a hole"},
      {"{" + a + "," + Entry("b", "F32", "[1]", "[8,12]") + "}", 12, "a hole"},
      {"{" + a + "," + Entry("b", "F32", "[1]", "[0,4]") + "}", 4, "an overlap"},
      {"{" + Entry("a", "F32", "[2]", "[0,8]") + "," + Entry("b", "F32", "[1]", "[4,8]") + "}", 8,
       "an overlap"},
      {"{" + a + "}", 3, "truncated"},
      {"{" + a + "}", 5, "trailing bytes"},
      {"{}", 1, "trailing bytes"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "did not expect a number"},
      {"{\"__metadata__\":{\"a\":{}}}", 0, "did not expect an object"},
      {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "duplicate metadata key"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate name"},
      {"{\"a\":" + std::string(1'000'000, '['), 0, "did not expect an array"},
      {"{" + Entry("a", "F32", "[" + std::string(200, '1') + "]", "[0,4]") + "}", 4,
       "beyond 64 bits"},
  };
  for (const BadHeader& bad : cases) {
    const auto header = ParseHeader(bad.json, bad.data_bytes);
    EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument)
        << bad.json.substr(0, 200);
    EXPECT_THAT(std::string(header.status().message()), HasSubstr(bad.says))
        << bad.json.substr(0, 200);
  }
  std::string shape = "[1";
  for (size_t i = 0; i < kDimsMax; ++i) shape += ",1";
  EXPECT_THAT(
      std::string(
          ParseHeader("{" + Entry("a", "F32", shape + "]", "[0,4]") + "}", 4).status().message()),
      HasSubstr("dimensions"));
}

TEST(Safetensors, RefusesMalformedFiles) {
  const std::string good = File("{" + Entry("a", "F32", "[1]", "[0,4]") + "}", "1234");
  WriteAll(Path("good"), good);
  ASSERT_TRUE(Reader::Open(Path("good")).ok());
  for (size_t size = 0; size < good.size(); ++size) {  // cut anywhere
    WriteAll(Path("cut"), good.substr(0, size));
    const absl::Status status = Reader::Open(Path("cut")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("cut")));
  }
  WriteAll(Path("trailing"), good + "5");
  EXPECT_THAT(std::string(Reader::Open(Path("trailing")).status().message()),
              HasSubstr("trailing bytes"));
  std::string huge = good;
  huge[3] = 6;  // 6 << 24 exceeds the limit of 100,000,000
  WriteAll(Path("huge"), huge);
  EXPECT_THAT(std::string(Reader::Open(Path("huge")).status().message()),
              HasSubstr("at most 100000000"));
  huge[7] = '\xFF';
  WriteAll(Path("huge"), huge);
  EXPECT_THAT(std::string(Reader::Open(Path("huge")).status().message()),
              HasSubstr("at most 100000000"));
  EXPECT_EQ(Reader::Open(Path("absent")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Reader::Open(testing::TempDir()).status().code(), absl::StatusCode::kInvalidArgument);
}

// Valid headers with random damage: an error, or tensors that tile the data; under the sanitizers.
TEST(Safetensors, SurvivesRandomDamage) {
  std::mt19937 random(1);
  const std::string good = "{\"__metadata__\":{\"format\":\"pt\"}," +
                           Entry("a", "F32", "[2,1]", "[0,8]") + "," +
                           Entry("b", "U8", "[4]", "[8,12]") + "}";
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string json = good;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % json.size();
      switch (random() % 4) {
        case 0: json[at] = static_cast<char>(random()); break;
        case 1: json.erase(at, 1 + random() % 8); break;
        case 2: json.insert(at, json.substr(random() % json.size(), 10)); break;
        default: json[at] = "0123456789,:[]{}\""[random() % 17]; break;
      }
    }
    const auto header = ParseHeader(json, 12);
    if (!header.ok()) continue;
    ++accepted;
    uint64_t next = 0;
    for (const TensorInfo& tensor : header->tensors) {
      EXPECT_EQ(tensor.begin, next);
      EXPECT_EQ(tensor.end - tensor.begin, *TensorBytes(tensor.dtype, tensor.shape));
      next = tensor.end;
    }
    EXPECT_EQ(next, 12u);
  }
  EXPECT_GT(accepted, 100);  // damage in names and metadata
}

TEST(SafetensorsWriter, LeavesNothingUnlessFinished) {
  WriteAll(Path("old.safetensors"), "the old file");
  {
    auto writer = Writer::Create(Path("old.safetensors"), {{.name = "a", .shape = {2}}}, {});
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE(writer->AppendFloats({1}).ok());
    EXPECT_EQ(writer->Finish().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(writer->AppendFloats({2, 3}).code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(ReadAll(Path("old.safetensors")), "the old file");
  EXPECT_EQ(FilesThatBeginWith("old.safetensors"), 1);
  EXPECT_EQ(Writer::Create(Path("no/such/folder"), {}, {}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(SafetensorsWriter, ALinkStaysOneAndItsTargetKeepsItsMode) {
  const std::string target = Path("target.safetensors"), link = Path("link.safetensors");
  WriteAll(target, "the old file");
  std::filesystem::permissions(target, std::filesystem::perms(0604));
  std::filesystem::remove(link);
  std::filesystem::create_symlink("target.safetensors", link);
  auto writer = Writer::Create(link, {{.name = "a", .shape = {1}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(writer->AppendFloats({1}).ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(Reader::Open(target).ok());
  EXPECT_EQ(std::filesystem::status(target).permissions(), std::filesystem::perms(0604));
}

TEST(SafetensorsWriter, ADeviceIsWrittenInPlace) {
  const absl::Status full = Writer::Create("/dev/full", {{.name = "a", .shape = {1}}}, {}).status();
  EXPECT_EQ(full.message(), "cannot write /dev/full: No space left on device");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  auto null = Writer::Create("/dev/null", {{.name = "a", .shape = {1}}}, {});
  ASSERT_TRUE(null.ok()) << null.status();
  EXPECT_TRUE(null->AppendFloats({1}).ok());
  EXPECT_EQ(null->Finish(), absl::OkStatus());
}

TEST(SafetensorsWriter, RefusesWhatItsReaderWould) {
  EXPECT_FALSE(Writer::Create(Path("x"), {{.name = "a"}, {.name = "a"}}, {}).ok());
  EXPECT_FALSE(Writer::Create(Path("x"), {{.name = "__metadata__"}}, {}).ok());
  EXPECT_FALSE(Writer::Create(Path("x"), {{.name = "\xFF"}}, {}).ok());
  EXPECT_FALSE(Writer::Create(Path("x"), {}, {{"k", "\xFF"}}).ok());
  EXPECT_FALSE(Writer::Create(Path("x"), {{.name = "a", .shape = {uint64_t{1} << 62}}}, {}).ok());
  const uint64_t half = (uint64_t{1} << 61) - 1;
  EXPECT_FALSE(Writer::Create(Path("x"),
                              {{.name = "a", .shape = {half}},
                               {.name = "b", .shape = {half}},
                               {.name = "c", .shape = {half}}},
                              {})
                   .ok());
  EXPECT_FALSE(Writer::Create(Path("x"), {}, {{"k", std::string(kHeaderBytesMax, 'x')}}).ok());
  EXPECT_EQ(FilesThatBeginWith("x"), 0);
}

TEST(SafetensorsWriter, EmptyMetadataStillSaysItsFormat) {
  std::vector<TensorInfo> none;
  const std::string header = *EncodeHeader(&none, {});
  EXPECT_EQ(header.size() % 8, 0u);
  EXPECT_THAT(header.substr(8), HasSubstr("\"__metadata__\":{\"format\":\"pt\"}"));
}

}  // namespace
}  // namespace starling::safetensors
