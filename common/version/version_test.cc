#include "common/version/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace starling {
namespace {

TEST(Version, IsThreeNumbers) {
  EXPECT_THAT(std::string(ReleaseVersion()), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace starling
