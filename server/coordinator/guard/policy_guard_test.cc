#include "server/coordinator/guard/policy_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/guard/testing/loss_curves.h"

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBatch = 128;

Guard Options() {
  Guard options;
  options.set_loss_factor(2.5);
  options.set_window(16);
  options.set_staleness(1);
  return options;
}

Policy Of(Policy::Kind kind, uint32_t staleness = 0) {
  Policy policy;
  policy.set_kind(kind);
  policy.set_staleness(staleness);
  return policy;
}

const Policy kAsync = Of(Policy::ASYNC);
const Policy kBsp = Of(Policy::BSP);

void See(PolicyGuard& guard, double loss) { guard.Observe(loss * kBatch, kBatch); }

// The batch after which the guard first acts.
std::optional<size_t> SpeaksAt(PolicyGuard& guard, const std::vector<double>& losses,
                               const Policy& policy = kAsync) {
  for (size_t i = 0; i < losses.size(); ++i) {
    See(guard, losses[i]);
    if (guard.Judge(policy).has_value()) return i;
  }
  return std::nullopt;
}

std::vector<double> Flat(double loss, size_t batches) { return std::vector<double>(batches, loss); }

TEST(PolicyGuard, IsQuietWhereARealRunIsHealthy) {
  for (const auto* curve :
       {&loss_curves::kAsync, &loss_curves::kNoisyAsync, &loss_curves::kSsp, &loss_curves::kBsp}) {
    PolicyGuard guard(Options(), kBatch);
    const auto at = SpeaksAt(guard, *curve);
    EXPECT_EQ(at, std::nullopt) << "at batch " << *at << ": " << guard.Judge(kAsync)->reason;
  }
}

TEST(PolicyGuard, TightensWhereARealRunDivergesBeforeItIsLost) {
  PolicyGuard fast(Options(), kBatch);
  const auto at = SpeaksAt(fast, loss_curves::kDiverging);
  ASSERT_TRUE(at.has_value());
  EXPECT_GE(*at, 40u);  // nothing is visible before
  EXPECT_LE(*at, 60u);  // its units die after batch 140
  const Tightening tightening = *fast.Judge(kAsync);
  EXPECT_EQ(tightening.policy.kind(), Policy::SSP);
  EXPECT_EQ(tightening.policy.staleness(), 1u);
  EXPECT_THAT(tightening.reason,
              HasSubstr("the median train loss of the last 16 batches, 3.7800, is above 3.65"));
  EXPECT_THAT(tightening.reason, HasSubstr("2.5 times its level of 1.46"));

  PolicyGuard slow(Options(), kBatch);
  const auto later = SpeaksAt(slow, loss_curves::kDivergingSlowly);
  ASSERT_TRUE(later.has_value());
  EXPECT_LE(*later, 80u);
}

TEST(PolicyGuard, GoesOneStepAtATimeAndJudgesEachPolicyByItself) {
  PolicyGuard guard(Options(), kBatch);
  ASSERT_TRUE(SpeaksAt(guard, loss_curves::kDiverging).has_value());
  EXPECT_EQ(guard.Judge(Of(Policy::SSP, 4))->policy.staleness(), 1u);
  EXPECT_EQ(guard.Judge(Of(Policy::SSP, 1))->policy.kind(), Policy::BSP);
  EXPECT_FALSE(guard.Judge(kBsp).has_value());
  guard.PolicyChanged();
  EXPECT_FALSE(guard.Judge(Of(Policy::SSP, 1)).has_value()) << "nothing of the new policy was seen";
  EXPECT_EQ(SpeaksAt(guard, Flat(20, 15), Of(Policy::SSP, 1)), std::nullopt);
  EXPECT_EQ(SpeaksAt(guard, Flat(20, 1), Of(Policy::SSP, 1)), 0u);
}

TEST(PolicyGuard, LeavesALossAloneThatFallsAgain) {
  PolicyGuard guard(Options(), kBatch);
  ASSERT_TRUE(SpeaksAt(guard, loss_curves::kDiverging).has_value());
  guard.PolicyChanged();
  std::vector<double> recovery;
  for (double loss = 40; loss > 0.5; loss *= 0.95) recovery.push_back(loss);
  EXPECT_EQ(SpeaksAt(guard, recovery, Of(Policy::SSP, 1)), std::nullopt);
}

TEST(PolicyGuard, OddBatchesDoNotMoveIt) {
  PolicyGuard guard(Options(), kBatch);
  std::vector<double> losses = Flat(1, 300);
  for (size_t i = 20; i < losses.size(); i += 3) losses[i] = 1000;
  EXPECT_EQ(SpeaksAt(guard, losses), std::nullopt);
}

TEST(PolicyGuard, ASmallLossMayJump) {
  PolicyGuard guard(Options(), kBatch);
  std::vector<double> losses = Flat(2.3, 50);
  for (int i = 0; i < 10; ++i) {
    for (const double loss : Flat(0.01, 50)) losses.push_back(loss);
    for (const double loss : Flat(0.2, 50)) losses.push_back(loss);
  }
  EXPECT_EQ(SpeaksAt(guard, losses), std::nullopt);
  EXPECT_TRUE(SpeaksAt(guard, Flat(1.5, 50)).has_value()) << "most of what was learned is lost";
}

TEST(PolicyGuard, TheScaleOfTheLossDoesNotMatter) {
  for (const double scale : {1e-6, 1e6}) {
    std::vector<double> losses = loss_curves::kDiverging;
    for (double& loss : losses) loss *= scale;
    PolicyGuard guard(Options(), kBatch);
    PolicyGuard same(Options(), kBatch);
    EXPECT_EQ(SpeaksAt(guard, losses), SpeaksAt(same, loss_curves::kDiverging));
  }
}

TEST(PolicyGuard, TheLevelFollowsARiseSlowly) {
  PolicyGuard guard(Options(), kBatch);
  std::vector<double> losses = Flat(1, 100);
  for (int i = 0; i < 4000; ++i) losses.push_back(1 + i * 0.001);  // to 5: other data, or decay
  EXPECT_EQ(SpeaksAt(guard, losses), std::nullopt);
  EXPECT_GT(guard.trend().level, 3);
}

TEST(PolicyGuard, AnExplosionDoesNotBecomeUsual) {
  PolicyGuard guard(Options(), kBatch);
  EXPECT_TRUE(SpeaksAt(guard, Flat(1, 50)) == std::nullopt);
  for (int i = 0; i < 100; ++i) See(guard, 1e30);
  EXPECT_LT(guard.trend().level, 1.2);
  guard.PolicyChanged();
  EXPECT_TRUE(SpeaksAt(guard, Flat(4, 50)).has_value());
}

TEST(PolicyGuard, AShortJobIsNotJudged) {
  PolicyGuard guard(Options(), kBatch);
  EXPECT_EQ(SpeaksAt(guard, {1, 1, 1, 1, 50, 90, 200, 4000}), std::nullopt);
}

TEST(PolicyGuard, FactorAndWindowDecide) {
  Guard options = Options();
  options.set_loss_factor(20);
  PolicyGuard tolerant(options, kBatch);
  PolicyGuard plain(Options(), kBatch);
  EXPECT_GT(SpeaksAt(tolerant, loss_curves::kDiverging), SpeaksAt(plain, loss_curves::kDiverging));
  options = Options();
  options.set_window(8);
  PolicyGuard quick(options, kBatch);
  PolicyGuard again(Options(), kBatch);
  EXPECT_LT(SpeaksAt(quick, loss_curves::kDiverging), SpeaksAt(again, loss_curves::kDiverging));
}

TEST(PolicyGuard, PutsThePartsOfABatchTogether) {
  PolicyGuard parts(Options(), kBatch);
  PolicyGuard whole(Options(), kBatch);
  for (const double loss : loss_curves::kDiverging) {
    for (int i = 0; i < 4; ++i) parts.Observe(loss * 32, 32);
    See(whole, loss);
    EXPECT_EQ(parts.Judge(kAsync).has_value(), whole.Judge(kAsync).has_value());
  }
  EXPECT_EQ(parts.trend().level, whole.trend().level);
}

TEST(PolicyGuard, TheTrendSurvivesARestart) {
  PolicyGuard before(Options(), kBatch);
  SpeaksAt(before, loss_curves::kSsp);
  PolicyGuard after(Options(), kBatch, before.trend());
  EXPECT_EQ(SpeaksAt(after, Flat(before.trend().level, 50)), std::nullopt);
  PolicyGuard diverged(Options(), kBatch, before.trend());
  EXPECT_EQ(SpeaksAt(diverged, Flat(5, 50)), 15u) << "the first whole window";
  PolicyGuard forgot(Options(), kBatch);
  EXPECT_EQ(SpeaksAt(forgot, Flat(5, 50)), std::nullopt);
}

TEST(PolicyGuard, ALagAboveTheLimitTightens) {
  Guard options = Options();
  options.set_lag(8);
  PolicyGuard guard(options, kBatch);
  guard.ObserveLag(8);
  EXPECT_EQ(SpeaksAt(guard, Flat(1, 500)), std::nullopt);
  guard.ObserveLag(9);
  EXPECT_EQ(SpeaksAt(guard, Flat(1, 79)), std::nullopt) << "perhaps it was one update alone";
  guard.ObserveLag(3);
  EXPECT_EQ(SpeaksAt(guard, Flat(1, 10)), std::nullopt);
  guard.ObserveLag(31);
  EXPECT_EQ(SpeaksAt(guard, Flat(1, 500)), 79u);
  EXPECT_EQ(guard.Judge(kAsync)->reason,
            "updates came up to 31 updates late for 80 batches on end; the limit is 8");
  guard.PolicyChanged();
  EXPECT_EQ(SpeaksAt(guard, Flat(1, 79)), std::nullopt);

  PolicyGuard unlimited(Options(), kBatch);
  unlimited.ObserveLag(1000);
  EXPECT_EQ(SpeaksAt(unlimited, Flat(1, 500)), std::nullopt);
}

}  // namespace
}  // namespace starling::coordinator
