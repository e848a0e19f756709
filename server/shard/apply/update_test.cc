#include "server/shard/apply/update.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/apply/testing/cut_payload.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

struct State {
  std::vector<float> value, slot0, slot1;
};

State RandomState(size_t count, std::mt19937* random) {
  std::normal_distribution<float> normal;
  State state{std::vector<float>(count), std::vector<float>(count), std::vector<float>(count)};
  for (size_t i = 0; i < count; ++i) {
    state.value[i] = normal(*random);
    state.slot0[i] = 0.1f * normal(*random);
    state.slot1[i] = std::abs(0.01f * normal(*random));
  }
  return state;
}

std::vector<float> RandomGradient(size_t count, std::mt19937* random) {
  std::normal_distribution<float> normal(0, 0.3f);
  std::vector<float> gradient(count);
  for (float& g : gradient) g = normal(*random);
  return gradient;
}

// The formulas of update.h, in double.
struct Reference {
  double w, s0, s1;

  void Step(const UpdateRule& rule, const UpdateScalars& c, double gradient) {
    double g = gradient * c.scale;
    switch (rule.kind) {
      case UpdateRule::kStatistic:
        w = (1 - rule.momentum) * w + rule.momentum * g;
        return;
      case UpdateRule::kSgd:
        w -= c.rate * (g + rule.weight_decay * w);
        return;
      case UpdateRule::kMomentum:
        s0 = rule.momentum * s0 + g + rule.weight_decay * w;
        w -= c.rate * s0;
        return;
      case UpdateRule::kAdam:
        g += rule.weight_decay * w;
        break;
      case UpdateRule::kAdamW:
        w -= c.rate * rule.weight_decay * w;
        break;
    }
    s0 = rule.beta1 * s0 + (1 - rule.beta1) * g;
    s1 = rule.beta2 * s1 + (1 - rule.beta2) * g * g;
    const double t = static_cast<double>(c.t);
    const double m = s0 / (1 - std::pow(rule.beta1, t));
    const double v = s1 / (1 - std::pow(rule.beta2, t));
    w -= c.rate * m / (std::sqrt(v) + rule.epsilon);
  }
};

std::vector<UpdateRule> AllRules() {
  return {
      {.kind = UpdateRule::kSgd, .weight_decay = 0.01},
      {.kind = UpdateRule::kSgd},
      {.kind = UpdateRule::kMomentum, .momentum = 0.9, .weight_decay = 0.01},
      {.kind = UpdateRule::kAdam,
       .beta1 = 0.9,
       .beta2 = 0.999,
       .epsilon = 1e-8,
       .weight_decay = 0.01},
      {.kind = UpdateRule::kAdamW,
       .beta1 = 0.9,
       .beta2 = 0.999,
       .epsilon = 1e-8,
       .weight_decay = 0.1},
      {.kind = UpdateRule::kStatistic, .momentum = 0.1},
  };
}

void Apply(const UpdateRule& rule, const UpdateScalars& scalars, Payload gradient, State* state,
           InstructionSet set) {
  ApplyUpdate(rule, scalars, gradient,
              {.in = state->value.data(),
               .out = state->value.data(),
               .slot0 = rule.slots() > 0 ? state->slot0.data() : nullptr,
               .slot1 = rule.slots() > 1 ? state->slot1.data() : nullptr,
               .elements = state->value.size()},
              set);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(UpdateTest, AgreesWithTheFormulasInDouble) {
  std::mt19937 random(1);
  const UpdateScalars scalars{.rate = 0.05f, .scale = 1.25f, .t = 3, .lag = 0};
  for (const UpdateRule& rule : AllRules()) {
    for (const InstructionSet set : UsableInstructionSets()) {
      const State before = RandomState(777, &random);
      const std::vector<float> gradient = RandomGradient(777, &random);
      State after = before;
      Apply(rule, scalars, CutPayload(gradient, 1, &random).payload(), &after, set);
      for (size_t i = 0; i < gradient.size(); ++i) {
        Reference reference{before.value[i], before.slot0[i], before.slot1[i]};
        reference.Step(rule, scalars, gradient[i]);
        EXPECT_NEAR(after.value[i], reference.w, 2e-6 * (1 + std::abs(reference.w)))
            << rule.kind << " element " << i;
        EXPECT_NEAR(after.slot0[i], reference.s0, 1e-6 * (1 + std::abs(reference.s0)));
        EXPECT_NEAR(after.slot1[i], reference.s1, 1e-6 * (1 + std::abs(reference.s1)));
      }
    }
  }
}

// Every tail, unaligned pieces, every instruction set, in and out of place: one result.
TEST(UpdateTest, AllPathsAreBitwiseEqual) {
  std::mt19937 random(2);
  for (const UpdateRule& rule : AllRules()) {
    for (const size_t count : {1, 2, 7, 15, 16, 17, 31, 33, 63, 100, 8191, 20'005}) {
      const UpdateScalars scalars{
          .rate = 0.01f, .scale = 1.0f / 3, .t = static_cast<int64_t>(1 + count), .lag = 0};
      const State before = RandomState(count, &random);
      const std::vector<float> gradient = RandomGradient(count, &random);
      State expected = before;
      Apply(rule, scalars, CutPayload(gradient, 1, &random).payload(), &expected,
            InstructionSet::kPortable);
      for (const InstructionSet set : UsableInstructionSets()) {
        for (const size_t pieces : {1, 3, 8}) {
          const CutPayload cut(gradient, pieces, &random);
          State in_place = before;
          Apply(rule, scalars, cut.payload(), &in_place, set);
          State other = before;
          std::vector<float> out(count, -1.0f);
          ApplyUpdate(rule, scalars, cut.payload(),
                      {.in = other.value.data(),
                       .out = out.data(),
                       .slot0 = other.slot0.data(),
                       .slot1 = other.slot1.data(),
                       .elements = count},
                      set);
          EXPECT_TRUE(SameBits(in_place.value, expected.value))
              << rule.kind << " " << InstructionSetName(set);
          EXPECT_TRUE(SameBits(in_place.slot0, expected.slot0));
          EXPECT_TRUE(SameBits(in_place.slot1, expected.slot1));
          EXPECT_TRUE(SameBits(out, expected.value));
          EXPECT_TRUE(SameBits(other.value, before.value));  // the old version stays
          EXPECT_TRUE(SameBits(other.slot0, expected.slot0));
        }
      }
    }
  }
}

TEST(UpdateTest, AddAndCopyTakePiecesAsTheyCome) {
  std::mt19937 random(3);
  for (const size_t count : {1, 5, 16, 1003, 9000}) {
    const std::vector<float> from = RandomGradient(count, &random);
    const std::vector<float> base = RandomGradient(count, &random);
    std::vector<float> expected = base;
    for (size_t i = 0; i < count; ++i) expected[i] += from[i];
    const CutPayload cut(from, 4, &random);
    for (const InstructionSet set : UsableInstructionSets()) {
      std::vector<float> sum = base;
      AddPayload(cut.payload(), sum.data(), set);
      EXPECT_TRUE(SameBits(sum, expected));
    }
    std::vector<float> copy(count);
    CopyPayload(cut.payload(), copy.data());
    EXPECT_TRUE(SameBits(copy, from));
  }
}

TEST(MakeUpdateRuleTest, StatisticsAreAveragedWhateverTheOptimizer) {
  Optimizer optimizer;
  optimizer.mutable_adam()->set_beta1(0.9);
  optimizer.set_weight_decay(0.1);
  Slice slice;
  slice.kind = STATISTIC;
  slice.statistic_momentum = 0.25;
  const UpdateRule rule = MakeUpdateRule(optimizer, slice).value();
  EXPECT_EQ(rule.kind, UpdateRule::kStatistic);
  EXPECT_EQ(rule.momentum, 0.25);
  EXPECT_EQ(rule.weight_decay, 0);
  EXPECT_EQ(rule.slots(), 0);
}

TEST(MakeUpdateRuleTest, BadOptimizersAreNamed) {
  Optimizer optimizer;
  EXPECT_THAT(MakeUpdateRule(optimizer, Slice()).status().message(),
              HasSubstr("one of sgd, momentum"));
  optimizer.mutable_momentum()->set_momentum(1);
  EXPECT_THAT(MakeUpdateRule(optimizer, Slice()).status().message(), HasSubstr("momentum is 1"));
  optimizer.mutable_adam()->set_beta1(0.9);
  optimizer.mutable_adam()->set_beta2(-0.5);
  EXPECT_THAT(MakeUpdateRule(optimizer, Slice()).status().message(), HasSubstr("beta2 is -0.5"));
  optimizer.mutable_adam()->set_beta2(0.9);
  EXPECT_THAT(MakeUpdateRule(optimizer, Slice()).status().message(), HasSubstr("epsilon is 0"));
  optimizer.mutable_sgd();
  optimizer.set_weight_decay(-1);
  EXPECT_THAT(MakeUpdateRule(optimizer, Slice()).status().message(),
              HasSubstr("weight_decay is -1"));
}

}  // namespace
}  // namespace starling
