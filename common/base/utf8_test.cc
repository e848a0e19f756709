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

TEST(FindNotUtf8, AcceptsAllLengths) {
  EXPECT_EQ(FindNotUtf8(""), absl::string_view::npos);
  EXPECT_EQ(FindNotUtf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\xa6z"), absl::string_view::npos);
  EXPECT_EQ(FindNotUtf8("\xed\x9f\xbf\xf4\x8f\xbf\xbf"), absl::string_view::npos);
}

TEST(FindNotUtf8, SaysWhere) {
  for (const char* bad :
       {"\x80", "\xff", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x80\x80", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"}) {
    EXPECT_EQ(FindNotUtf8(std::string("ab") + bad), 2u);
  }
}

}  // namespace
}  // namespace starling
