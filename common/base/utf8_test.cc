#include "common/base/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace starling {
namespace {

TEST(CutUtf8, EndsWithAWholeCharacter) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\xa6z";  // of 1, 2, 3, 4 and 1 bytes
  const size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  for (size_t bytes = 0; bytes < std::size(expected); ++bytes) {
    EXPECT_EQ(CutUtf8(text, bytes), text.substr(0, expected[bytes])) << bytes;
  }
}

TEST(CutUtf8, TakesWhatIsNoUtf8) {
  EXPECT_EQ(CutUtf8("\x80\x80\x80", 2), "");
  EXPECT_EQ(CutUtf8("", 0), "");
}

}  // namespace
}  // namespace starling
