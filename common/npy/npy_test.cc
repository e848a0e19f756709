#include "common/npy/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace starling::npy {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of version 1 with this header, verbatim, and `data_bytes` bytes of data.
std::string File(const std::string& header, size_t data_bytes) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file.push_back(static_cast<char>(header.size() & 0xff));
  file.push_back(static_cast<char>(header.size() >> 8));
  return file + header + std::string(data_bytes, '\x07');
}

std::string Dict(const std::string& descr, const std::string& order, const std::string& shape) {
  return absl::StrCat("{'descr': ", descr, ", 'fortran_order': ", order, ", 'shape': ", shape,
                      ", }\n");
}

std::string TempPath(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
}

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

absl::StatusOr<Array> Parse(const std::string& file) {
  const std::string path = TempPath("parsed.npy");
  Write(path, file);
  return ReadFile(path);
}

std::string Error(const std::string& file) {
  const auto array = Parse(file);
  if (array.ok()) return "no error";
  EXPECT_EQ(array.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(array.status().message());
}

std::string HeaderError(const std::string& header) { return Error(File(header, 24)); }

TEST(Npy, ReadsWhatNumPyWrites) {
  const auto array = Parse(File(Dict("'<f4'", "False", "(2, 3)"), 24));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->dtype, DType::kF32);
  EXPECT_THAT(array->shape, ElementsAre(2, 3));
  EXPECT_EQ(array->elements(), 6);
}

TEST(Npy, ReadsEveryTypeOfBothVersions) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kU8}) {
    const std::string header = absl::StrCat("{'descr': '", DTypeName(dtype),
                                            "', 'fortran_order': False, 'shape': (3,), }\n");
    std::string file = File(header, 3 * DTypeBytes(dtype));
    for (int version : {1, 2}) {
      if (version == 2) {
        file[6] = 2;
        file.insert(10, 2, '\0');
      }
      const auto array = Parse(file);
      ASSERT_TRUE(array.ok()) << array.status();
      EXPECT_EQ(array->dtype, dtype);
      EXPECT_EQ(array->bytes, std::vector<uint8_t>(3 * DTypeBytes(dtype), 7));
    }
  }
}

TEST(Npy, ShapesMayBeScalarsEmptyAndEndWithAComma) {
  EXPECT_TRUE(Parse(File(Dict("'<f8'", "False", "()"), 8))->shape.empty());
  EXPECT_THAT(Parse(File(Dict("'<f8'", "False", "(0, 7)"), 0))->shape, ElementsAre(0, 7));
  EXPECT_THAT(Parse(File(Dict("\"<f8\"", "False", "( 1 ,2, )"), 16))->shape, ElementsAre(1, 2));
}

TEST(Npy, EncodesAlignedHeadersThatItReadsBack) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {5}, {2, 3}, {0}}) {
    const std::string text = EncodeHeader({DType::kI64, shape});
    EXPECT_EQ(text.size() % 64, 0u);
    EXPECT_EQ(text.back(), '\n');
    const auto header = ParseHeader(absl::string_view(text).substr(10));
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->shape, shape);
    EXPECT_EQ(header->dtype, DType::kI64);
  }
}

TEST(Npy, RefusesFramesThatAreNone) {
  EXPECT_THAT(Error(""), HasSubstr("begins with"));
  EXPECT_THAT(Error("PK\x03\x04 an npz file"), HasSubstr("numpy.save"));
  EXPECT_THAT(Error("\x93NUMPY"), HasSubstr("within the version"));
  EXPECT_THAT(Error(std::string("\x93NUMPY\x03\x00\x00\x00\x00\x00", 12)), HasSubstr("got 3.0"));
  EXPECT_THAT(Error(std::string("\x93NUMPY\x01\x01\x00\x00", 10)), HasSubstr("got 1.1"));
  EXPECT_THAT(Error(std::string("\x93NUMPY\x01\x00\x10", 9)), HasSubstr("header's length"));
  EXPECT_THAT(Error(std::string("\x93NUMPY\x01\x00\x10\x00{", 11)), HasSubstr("within the header"));
  EXPECT_THAT(Error(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12)),
              HasSubstr("at most 65536 bytes, got 4294967295"));
}

TEST(Npy, RefusesHeadersThatAreNone) {
  EXPECT_THAT(HeaderError(""), HasSubstr("expected '{', got its end"));
  EXPECT_THAT(HeaderError("[1]"), HasSubstr("expected '{'"));
  EXPECT_THAT(HeaderError("{"), HasSubstr("a key in quotes"));
  EXPECT_THAT(HeaderError("{'descr"), HasSubstr("closing quote"));
  EXPECT_THAT(HeaderError("{'descr' '<f4'}"), HasSubstr("expected ':'"));
  EXPECT_THAT(HeaderError("{'descr': '<f4' 'shape': (1,)}"), HasSubstr("expected '}'"));
  EXPECT_THAT(HeaderError("{'descr': '<f4', 'shape': (6,)}"), HasSubstr("'fortran_order'"));
  EXPECT_THAT(HeaderError("{'descr': '<f4', 'descr': '<f4'}"), HasSubstr("once"));
  EXPECT_THAT(HeaderError("{'colour': 'red'}"), HasSubstr("got \"colour\""));
  EXPECT_THAT(HeaderError(Dict("'<f4'", "False", "(6,)") + "x"), HasSubstr("nothing behind"));
}

TEST(Npy, RefusesTypesAndOrders) {
  for (const char* descr : {"'>f4'", "'<f2'", "'|b1'", "'<u1'", "'<U3'", "'|O'", "''"}) {
    EXPECT_THAT(HeaderError(Dict(descr, "False", "(6,)")), HasSubstr("astype")) << descr;
  }
  EXPECT_THAT(HeaderError(Dict("[('a', '<f4')]", "False", "(6,)")), HasSubstr("structured"));
  EXPECT_THAT(HeaderError(Dict("'<f4'", "True", "(6,)")), HasSubstr("got \"Fortran order\""));
  EXPECT_THAT(HeaderError(Dict("'<f4'", "0", "(6,)")), HasSubstr("True or False"));
}

TEST(Npy, RefusesShapes) {
  const auto shape = [](const std::string& text) {
    return HeaderError(Dict("'<f4'", "False", text));
  };
  EXPECT_THAT(shape("6"), HasSubstr("expected '('"));
  EXPECT_THAT(shape("(6)"), HasSubstr("(n,)"));
  EXPECT_THAT(shape("(-6,)"), HasSubstr("a dimension"));
  EXPECT_THAT(shape("(6L,)"), HasSubstr("',' or ')'"));
  EXPECT_THAT(shape("(,)"), HasSubstr("a dimension"));
  EXPECT_THAT(shape("(2 3)"), HasSubstr("',' or ')'"));
  EXPECT_THAT(shape("(99999999999999999999,)"), HasSubstr("below 2^63"));
  EXPECT_THAT(shape("(9223372036854775807, 9223372036854775807)"), HasSubstr("more than 2^64"));
  EXPECT_THAT(shape("(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)"), HasSubstr("at most 16 dimensions"));
}

TEST(Npy, RefusesDataOfAnotherSize) {
  EXPECT_THAT(Error(File(Dict("'<f4'", "False", "(6,)"), 23)),
              HasSubstr("expected 24 bytes of data for float32 of shape (6), got 23"));
  EXPECT_THAT(Error(File(Dict("'<f4'", "False", "(6,)"), 25)), HasSubstr("got 25"));
}

TEST(NpyFile, WhatIsWrittenIsReadBack) {
  const std::string path = TempPath("array.npy");
  Array array{DType::kI32, {2, 2}, std::vector<uint8_t>(16)};
  const int32_t values[] = {1, -2, 3, -4};
  std::memcpy(array.bytes.data(), values, sizeof(values));
  ASSERT_TRUE(WriteFile(path, array).ok());
  const auto back = ReadFile(path);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->shape, array.shape);
  EXPECT_EQ(back->as<int32_t>()[3], -4);
}

TEST(NpyFile, RefusesAsParseDoesAndNamesTheFile) {
  const std::string path = TempPath("bad.npy");
  EXPECT_TRUE(absl::IsNotFound(ReadFile(TempPath("absent.npy")).status()));
  EXPECT_THAT(ReadFile(TempPath("")).status().message(), HasSubstr("regular file"));
  for (const std::string& bad :
       {std::string(), std::string("no array"), std::string("\x93NUMPY\x01\x00\x10\x00{", 11),
        File(Dict("'<f4'", "False", "(6,)"), 23), File(Dict("'<f4'", "True", "(6,)"), 24)}) {
    Write(path, bad);
    const absl::Status status = ReadFile(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(path, ": npy")));
  }
  Write(path, File(Dict("'<f4'", "False", "(6,)"), 24));
  EXPECT_TRUE(ReadFile(path, 24).ok());
  const absl::Status status = ReadFile(path, 23).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 23 bytes of data, got 24"));
}

TEST(NpyFile, ADeviceIsWrittenInPlace) {
  const absl::Status full = WriteFile("/dev/full", {DType::kU8, {1}, {7}});
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr("/dev/full"), HasSubstr("No space left on device")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_EQ(WriteFile("/dev/null", {DType::kU8, {1}, {7}}), absl::OkStatus());
}

TEST(NpyFile, AFailedWriteLeavesNothing) {
  const std::string folder = TempPath("folder.npy");
  std::filesystem::create_directories(folder + "/inside");
  EXPECT_FALSE(WriteFile(folder, {DType::kU8, {1}, {7}}).ok());
  EXPECT_FALSE(WriteFile(TempPath("no/such/folder.npy"), {DType::kU8, {1}, {7}}).ok());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TempPath(""))) {
    files += entry.path().string().find("folder.npy.") != std::string::npos;
  }
  EXPECT_EQ(files, 0);
}

}  // namespace
}  // namespace starling::npy
