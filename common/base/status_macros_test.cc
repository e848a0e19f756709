#include "common/base/status_macros.h"

#include <memory>

#include "gtest/gtest.h"

namespace starling {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::InvalidArgumentError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(int a, int b) {
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<int> left, Make(a));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<int> right, Make(b));
  return *left + *right;
}

absl::Status Check(int value) {
  STARLING_RETURN_IF_ERROR(Make(value).status());
  return absl::NotFoundError("went on");
}

TEST(StatusMacrosTest, AssignMovesTheValueOrReturnsTheError) {
  EXPECT_EQ(Sum(2, 3).value(), 5);
  EXPECT_EQ(Sum(2, -3).status(), absl::InvalidArgumentError("negative"));
  EXPECT_EQ(Sum(-2, 3).status(), absl::InvalidArgumentError("negative"));
}

TEST(StatusMacrosTest, ReturnIfErrorGoesOnOnlyWhenOk) {
  EXPECT_EQ(Check(-1), absl::InvalidArgumentError("negative"));
  EXPECT_EQ(Check(1), absl::NotFoundError("went on"));
}

}  // namespace
}  // namespace starling
