#include "common/checkpoint/capture.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

CapturedBlock BlockOf(const std::string& parameter, std::shared_ptr<std::vector<float>> values) {
  return {{parameter, 0}, *values, values};
}

TEST(CheckpointCaptureTest, BlocksArePinnedUntilTheyAreReleased) {
  auto a = std::make_shared<std::vector<float>>(3, 1.0f);
  auto b = std::make_shared<std::vector<float>>(2, 2.0f);
  const std::weak_ptr<std::vector<float>> a_lives = a, b_lives = b;
  CheckpointCapture capture;
  capture.Add({BlockOf("b", std::move(b))});
  capture.Add({BlockOf("a", std::move(a))});
  const std::vector<BlockName> names = capture.Names();
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names[0].parameter, "a");
  {
    const auto block = capture.Borrow(names[0]);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(block->values.size(), 3u);
    capture.Release(names[0]);
    EXPECT_FALSE(a_lives.expired());
  }
  EXPECT_TRUE(a_lives.expired());
  EXPECT_FALSE(b_lives.expired());
  EXPECT_EQ(capture.Names().size(), 1u);
  EXPECT_TRUE(capture.status().ok());
}

TEST(CheckpointCaptureTest, GivenUpItKeepsOnlyWhatIsInUse) {
  auto a = std::make_shared<std::vector<float>>(3, 1.0f);
  auto b = std::make_shared<std::vector<float>>(2, 2.0f);
  const std::weak_ptr<std::vector<float>> a_lives = a, b_lives = b;
  CheckpointCapture capture;
  capture.Add({BlockOf("a", std::move(a)), BlockOf("b", std::move(b))});
  {
    const auto in_use = capture.Borrow({"a", 0});
    capture.GiveUp("no memory");
    capture.GiveUp("something else");
    EXPECT_TRUE(b_lives.expired());
    ASSERT_TRUE(in_use.ok());
    EXPECT_FALSE(a_lives.expired());
    EXPECT_EQ(in_use->values[2], 1.0f);
  }
  EXPECT_TRUE(a_lives.expired());
  capture.Add({BlockOf("c", std::make_shared<std::vector<float>>(1))});
  EXPECT_TRUE(capture.Names().empty());
  capture.Release({"a", 0});
  EXPECT_TRUE(absl::IsAborted(capture.Borrow({"a", 0}).status()));
  EXPECT_EQ(capture.status(), absl::AbortedError("no memory"));
}

}  // namespace
}  // namespace starling
