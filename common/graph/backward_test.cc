#include "common/graph/backward.h"

#include "common/graph/builders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using testing::ElementsAre;
using Use = GradientUse;

TEST(BackwardTest, AChainIsReversedAndStopsAtTheFirstParameters) {
  // input 0; flatten -> 1; linear -> 2; relu -> 3; loss -> 4.
  const std::vector<DifferentiableNode> nodes = {
      {{0}, 1, false}, {{1}, 2, true}, {{2}, 3, false}, {{3}, 4, false}};
  EXPECT_THAT(DeriveBackward(nodes, 5),
              ElementsAre(BackwardStep{3, {Use::kWrite}}, BackwardStep{2, {Use::kWrite}},
                          BackwardStep{1, {Use::kNone}}));
}

TEST(BackwardTest, AValueUsedTwiceGetsTheSumOfItsGradients) {
  // linear -> 1; two branches of it -> 2, 3; their sum -> 4; loss -> 5.
  const std::vector<DifferentiableNode> nodes = {
      {{0}, 1, true}, {{1}, 2, false}, {{1}, 3, true}, {{2, 3}, 4, false}, {{4}, 5, false}};
  EXPECT_THAT(
      DeriveBackward(nodes, 6),
      ElementsAre(BackwardStep{4, {Use::kWrite}}, BackwardStep{3, {Use::kWrite, Use::kWrite}},
                  BackwardStep{2, {Use::kWrite}}, BackwardStep{1, {Use::kAdd}},
                  BackwardStep{0, {Use::kNone}}));
}

TEST(BackwardTest, ANodeThatReadsAValueTwiceAddsItsOwnGradients) {
  const std::vector<DifferentiableNode> nodes = {
      {{0}, 1, true}, {{1, 1}, 2, false}, {{2}, 3, false}};
  EXPECT_THAT(DeriveBackward(nodes, 4),
              ElementsAre(BackwardStep{2, {Use::kWrite}}, BackwardStep{1, {Use::kWrite, Use::kAdd}},
                          BackwardStep{0, {Use::kNone}}));
}

TEST(BackwardTest, BranchesWithoutAnythingToTrainAreSkipped) {
  // A branch from the input without parameters -> 1, linear -> 2, joined -> 3; one that the loss
  // does not read -> 4; loss -> 5.
  const std::vector<DifferentiableNode> nodes = {
      {{0}, 1, false}, {{0}, 2, true}, {{1, 2}, 3, false}, {{2}, 4, true}, {{3}, 5, false}};
  EXPECT_THAT(DeriveBackward(nodes, 6), ElementsAre(BackwardStep{4, {Use::kWrite}},
                                                    BackwardStep{2, {Use::kNone, Use::kWrite}},
                                                    BackwardStep{1, {Use::kNone}}));
}

TEST(BackwardTest, LabelsGetNoGradient) {
  const ResolvedGraph graph = Validate(BuildMlp({{4}, 3}, {.hidden = {5}}).value()).value();
  const std::vector<BackwardStep> steps =
      DeriveBackward(Differentiable(graph), static_cast<int>(graph.values.size()));
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0], (BackwardStep{3, {Use::kWrite, Use::kNone}}));
  EXPECT_EQ(steps[3], (BackwardStep{0, {Use::kNone}}));
}

}  // namespace
}  // namespace starling
