#include "common/base/glob.h"

#include <string>

#include "gtest/gtest.h"

namespace starling {
namespace {

TEST(GlobTest, StarsAndQuestionMarks) {
  EXPECT_TRUE(MatchesGlob("*.bias", "block1.conv.bias"));
  EXPECT_FALSE(MatchesGlob("*.bias", "block1.conv.bias2"));
  EXPECT_FALSE(MatchesGlob("*.bias", "bias"));
  EXPECT_TRUE(MatchesGlob("h*.ln?.*", "h11.ln2.weight"));
  EXPECT_FALSE(MatchesGlob("h*.ln?.*", "h11.ln.weight"));
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_TRUE(MatchesGlob("**", "anything"));
  EXPECT_TRUE(MatchesGlob("", ""));
  EXPECT_FALSE(MatchesGlob("", "a"));
  EXPECT_FALSE(MatchesGlob("?", ""));
  EXPECT_TRUE(MatchesGlob("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(MatchesGlob("a.b", "axb"));
}

TEST(GlobTest, ManyStarsEndSoon) {
  const std::string text(20'000, 'a');
  EXPECT_FALSE(MatchesGlob("*a*a*a*a*a*a*a*a*a*a*b", text));
}

}  // namespace
}  // namespace starling
