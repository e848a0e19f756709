#include "tools/bundle/images.h"

#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "gtest/gtest.h"

namespace starling {
namespace {

std::string Contents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

TEST(ImagesTest, AreCifarsRecordsOfTenClasses) {
  const std::string path = ::testing::TempDir() + "/images.bin";
  ASSERT_TRUE(WriteImages(path, 40, 1).ok());
  const std::string bytes = Contents(path);
  constexpr size_t kRecord = 1 + 3 * 32 * 32;
  ASSERT_EQ(bytes.size(), 40 * kRecord);
  std::set<std::string> images;
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(bytes[i * kRecord], static_cast<char>(i % 10));
    images.insert(bytes.substr(i * kRecord + 1, kRecord - 1));
  }
  EXPECT_EQ(images.size(), 40u);

  ASSERT_TRUE(WriteImages(path, 40, 2).ok());
  EXPECT_NE(Contents(path), bytes);
  ASSERT_TRUE(WriteImages(path, 40, 1).ok());
  EXPECT_EQ(Contents(path), bytes);
}

TEST(ImagesTest, SaysWhatCannotBeWritten) {
  const absl::Status status = WriteImages("/nowhere/images.bin", 1, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/nowhere/images.bin"), std::string::npos) << status;
}

}  // namespace
}  // namespace starling
