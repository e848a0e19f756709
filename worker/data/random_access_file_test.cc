#include "worker/data/random_access_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/base/status_macros.h"
#include "worker/data/testing/files.h"

namespace starling {
namespace {

using data_testing::WriteNewFile;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<std::vector<uint8_t>> Read(const RandomAccessFile& file, uint64_t offset,
                                          size_t bytes) {
  std::vector<uint8_t> out(bytes);
  STARLING_RETURN_IF_ERROR(file.ReadAt(offset, absl::MakeSpan(out)));
  return out;
}

// Whether the file is kept or not.
void ExpectReads(const RandomAccessFile& file) {
  EXPECT_THAT(*Read(file, 0, 5), ElementsAre('a', 'b', 'c', 'd', 'e'));
  EXPECT_THAT(*Read(file, 3, 2), ElementsAre('d', 'e'));
  EXPECT_THAT(*Read(file, 5, 0), ElementsAre());
  for (const uint64_t offset : {uint64_t{4}, uint64_t{5}, uint64_t{1} << 40}) {
    const absl::Status status = Read(file, offset, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("truncated: expected 2 bytes from byte ", offset,
                                       " on, got ", offset == 4 ? 1 : 0)));
  }
}

TEST(RandomAccessFile, ReadsAtAnyPlaceFromDiskAndFromMemory) {
  const auto file = *RandomAccessFile::Open(WriteNewFile("five", "abcde"));
  EXPECT_EQ(file->bytes(), 5u);
  ExpectReads(*file);
  EXPECT_FALSE(file->Kept(0, 1).has_value());
  ASSERT_EQ(file->Keep(), absl::OkStatus());
  ExpectReads(*file);
  EXPECT_THAT(*file->Kept(1, 3), ElementsAre('b', 'c', 'd'));
  EXPECT_THAT(*file->Kept(5, 0), ElementsAre());
  EXPECT_FALSE(file->Kept(4, 2).has_value());
  EXPECT_FALSE(file->Kept(6, 0).has_value());
  EXPECT_FALSE(file->Kept(1, ~uint64_t{0}).has_value());
}

TEST(RandomAccessFile, WhatIsKeptNeedsNoFile) {
  const std::string path = WriteNewFile("gone", "abcde");
  const auto file = *RandomAccessFile::Open(path);
  ASSERT_EQ(file->Keep(), absl::OkStatus());
  ASSERT_EQ(file->Keep(), absl::OkStatus());
  std::filesystem::resize_file(path, 1);
  ExpectReads(*file);
}

TEST(RandomAccessFile, ShorterThanItWas) {
  const std::string path = WriteNewFile("short", "abcde");
  const auto file = *RandomAccessFile::Open(path);
  std::filesystem::resize_file(path, 2);
  EXPECT_THAT(std::string(file->Keep().message()), HasSubstr("truncated: expected 5 bytes"));
  EXPECT_THAT(*Read(*file, 0, 2), ElementsAre('a', 'b'));
}

}  // namespace
}  // namespace starling
