#include "common/base/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace starling {
namespace {

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

// Published values: RFC 3720 B.4 and the usual check string.
TEST(Crc32c, MatchesPublishedValues) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\xFF'))), 0x62A8AB43u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32c, InstructionAndTableAgreeAtEveryLength) {
  std::vector<uint8_t> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 11);
  for (size_t n = 0; n <= bytes.size(); ++n) {
    const auto span = absl::MakeConstSpan(bytes).subspan(0, n);
    ASSERT_EQ(Crc32c(span), Crc32cPortable(span)) << "length " << n;
  }
}

}  // namespace
}  // namespace starling
