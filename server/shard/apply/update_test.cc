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

// The formulas of update.h, in double. For lamb, `ratio` is |w| / |r|.
struct Reference {
  double w, s0, s1;

  void Step(const UpdateRule& rule, const UpdateScalars& c, double gradient, double ratio = 1) {
    double g = gradient * c.scale;
    switch (rule.kind) {
      case UpdateRule::kStatistic: w = (1 - rule.momentum) * w + rule.momentum * g; return;
      case UpdateRule::kSgd: w -= c.rate * (g + c.decay * w); return;
      case UpdateRule::kMomentum:
        s0 = rule.momentum * s0 + g + c.decay * w;
        w -= c.rate * s0;
        return;
      case UpdateRule::kNesterov:
        g += c.decay * w;
        s0 = rule.momentum * s0 + g;
        w -= c.rate * (g + rule.momentum * s0);
        return;
      case UpdateRule::kAdagrad:
        g += c.decay * w;
        s0 += g * g;
        w -= c.rate * g / (std::sqrt(s0) + rule.epsilon);
        return;
      case UpdateRule::kLamb: w -= c.rate * ratio * Direction(rule, c, gradient); return;
      case UpdateRule::kAdam: g += c.decay * w; break;
      case UpdateRule::kAdamW: w -= c.rate * c.decay * w; break;
    }
    w -= c.rate * AdamStep(rule, c, g);
  }

  // lamb's r; updates the moments.
  double Direction(const UpdateRule& rule, const UpdateScalars& c, double gradient) {
    return AdamStep(rule, c, gradient * c.scale) + c.decay * w;
  }

 private:
  double AdamStep(const UpdateRule& rule, const UpdateScalars& c, double g) {
    s0 = rule.beta1 * s0 + (1 - rule.beta1) * g;
    s1 = rule.beta2 * s1 + (1 - rule.beta2) * g * g;
    const double t = static_cast<double>(c.t);
    const double m = s0 / (1 - std::pow(rule.beta1, t));
    const double v = s1 / (1 - std::pow(rule.beta2, t));
    return m / (std::sqrt(v) + rule.epsilon);
  }
};

// Splits `count` elements into blocks.
std::vector<uint32_t> Blocks(size_t count) {
  std::vector<uint32_t> blocks;
  for (const size_t size : {3, 40, 100, 5000}) {
    if (count <= size) break;
    blocks.push_back(static_cast<uint32_t>(size));
    count -= size;
  }
  blocks.push_back(static_cast<uint32_t>(count));
  return blocks;
}

constexpr double kDecays[] = {0, 0.01};

std::vector<UpdateRule> AllRules(size_t count) {
  const UpdateRule adam = {
      .kind = UpdateRule::kAdam, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
  UpdateRule adamw = adam;
  adamw.kind = UpdateRule::kAdamW;
  UpdateRule lamb = adam;
  lamb.kind = UpdateRule::kLamb;
  std::vector<UpdateRule> rules = {
      {.kind = UpdateRule::kSgd},
      {.kind = UpdateRule::kMomentum, .momentum = 0.9},
      {.kind = UpdateRule::kNesterov, .momentum = 0.9},
      {.kind = UpdateRule::kAdagrad, .epsilon = 1e-10},
      adam,
      adamw,
      lamb,  // without trust ratio
      {.kind = UpdateRule::kStatistic, .momentum = 0.1},
  };
  for (UpdateRule& rule : rules) rule.blocks = Blocks(count);
  return rules;
}

// Rules that need norms over blocks.
std::vector<UpdateRule> BlockRules(size_t count) {
  std::vector<UpdateRule> rules;
  for (UpdateRule rule : AllRules(count)) {
    rule.trust_ratio = rule.kind == UpdateRule::kLamb;
    if (rule.trust_ratio) rules.push_back(rule);
    rule.clip_norm = 0.9;  // below the norms of some blocks, above that of the first
    if (rule.kind != UpdateRule::kStatistic) rules.push_back(rule);
  }
  return rules;
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

// An infinite v of adam makes no value infinite, and lets none change any more.
TEST(UpdateTest, NamesTheFirstElementThatIsNotFinite) {
  constexpr size_t kCount = 20'000;  // some runs
  for (const UpdateRule& rule : AllRules(kCount)) {
    for (const size_t bad : {size_t{0}, size_t{9'001}, kCount - 1}) {
      State state;
      state.value.assign(kCount, 1.0f);
      state.slot0.assign(kCount, rule.first_slot0);
      state.slot1.assign(kCount, 0.0f);
      std::vector<float> gradient(kCount, 0.5f);
      const absl::Span<const uint8_t> piece(reinterpret_cast<const uint8_t*>(gradient.data()),
                                            kCount * sizeof(float));
      const auto apply = [&](bool looks) {
        return ApplyUpdate(rule, {.rate = 0.1f, .scale = 1, .t = 10, .lag = 0}, Payload(&piece, 1),
                           {.in = state.value.data(),
                            .out = state.value.data(),
                            .slot0 = rule.slots() > 0 ? state.slot0.data() : nullptr,
                            .slot1 = rule.slots() > 1 ? state.slot1.data() : nullptr,
                            .elements = kCount},
                           BestInstructionSet(), looks);
      };
      ASSERT_EQ(apply(/*looks=*/true), -1);
      state.value[bad] = rule.kind == UpdateRule::kLamb ? 1.0f : -3e38f;
      gradient[bad] = rule.kind == UpdateRule::kStatistic ? -INFINITY : 3e38f;
      if (rule.slots() > 0) state.slot0[bad] = 3e38f;
      int64_t found = -1;
      for (int step = 0; step < 20 && found < 0; ++step) found = apply(/*looks=*/true);
      EXPECT_EQ(found, static_cast<int64_t>(bad)) << rule.kind;
      EXPECT_EQ(apply(/*looks=*/false), -1);
    }
  }
}

TEST(UpdateTest, AgreesWithTheFormulasInDouble) {
  std::mt19937 random(1);
  for (const UpdateRule& rule : AllRules(777)) {
    for (const InstructionSet set : UsableInstructionSets()) {
      const double decay = kDecays[random() % 2];
      const UpdateScalars scalars{.rate = 0.05f, .scale = 1.25f, .decay = decay, .t = 3, .lag = 0};
      State before = RandomState(777, &random);
      if (rule.kind == UpdateRule::kAdagrad) {
        for (float& h : before.slot0) h = std::abs(h);
      }
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
  for (const size_t count : {1, 2, 7, 15, 16, 17, 31, 33, 63, 100, 8191, 20'005}) {
    std::vector<UpdateRule> rules = AllRules(count);
    for (UpdateRule& rule : BlockRules(count)) rules.push_back(std::move(rule));
    for (const UpdateRule& rule : rules) {
      const UpdateScalars scalars{.rate = 0.01f,
                                  .scale = 1.0f / 3,
                                  .decay = kDecays[random() % 2],
                                  .t = static_cast<int64_t>(1 + count),
                                  .lag = 0};
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
          EXPECT_TRUE(SameBits(other.value, before.value));  // the old version is unchanged
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
      EXPECT_EQ(AddPayload(cut.payload(), sum.data(), set), -1);
      EXPECT_TRUE(SameBits(sum, expected));
    }
  }
}

TEST(UpdateTest, AddNamesTheFirstSumThatOverflows) {
  std::mt19937 random(4);
  for (const size_t at : {0, 17, 8999}) {
    std::vector<float> from(9000, 1.0f);
    from[at] = from.back() = 3e38f;
    const CutPayload cut(from, 4, &random);
    for (const InstructionSet set : UsableInstructionSets()) {
      std::vector<float> sum = from;
      EXPECT_EQ(AddPayload(cut.payload(), sum.data(), set), static_cast<int64_t>(at));
    }
  }
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// lamb's update of one block, elements [begin, begin + count).
std::vector<double> LambInDouble(const UpdateRule& rule, const UpdateScalars& scalars,
                                 const State& before, const std::vector<float>& gradient,
                                 size_t begin, size_t count) {
  std::vector<double> value, direction;
  for (size_t i = begin; i < begin + count; ++i) {
    Reference element{before.value[i], before.slot0[i], before.slot1[i]};
    value.push_back(element.w);
    direction.push_back(element.Direction(rule, scalars, gradient[i]));
  }
  const double ratio = Norm(value) == 0 ? 1 : Norm(value) / Norm(direction);
  for (size_t i = begin; i < begin + count; ++i) {
    Reference element{before.value[i], before.slot0[i], before.slot1[i]};
    element.Step(rule, scalars, gradient[i], ratio);
    value[i - begin] = element.w;
  }
  return value;
}

TEST(UpdateTest, LambStepsAsFarAsEachParameterIsLong) {
  std::mt19937 random(4);
  constexpr size_t kCount = 777;
  UpdateRule rule = {.kind = UpdateRule::kLamb, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6};
  rule.trust_ratio = true;
  rule.blocks = Blocks(kCount);
  const UpdateScalars scalars{.rate = 0.05f, .scale = 1.25f, .decay = 0.02, .t = 3, .lag = 0};
  State before = RandomState(kCount, &random);
  for (size_t i = 0; i < rule.blocks[0]; ++i) before.value[i] = 0;  // norm 0: ratio 1
  for (size_t i = rule.blocks[0]; i < rule.blocks[0] + rule.blocks[1]; ++i)
    before.value[i] *= 100;  // blocks do not share their ratios
  const std::vector<float> gradient = RandomGradient(kCount, &random);
  State after = before;
  Apply(rule, scalars, CutPayload(gradient, 5, &random).payload(), &after, BestInstructionSet());
  size_t begin = 0;
  for (const uint32_t count : rule.blocks) {
    const std::vector<double> expected =
        LambInDouble(rule, scalars, before, gradient, begin, count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(after.value[begin + i], expected[i], 4e-6 * (1 + std::abs(expected[i])))
          << "element " << begin + i;
    }
    begin += count;
  }
}

TEST(UpdateTest, EachParameterIsClippedByItself) {
  const UpdateRule rule = {.kind = UpdateRule::kSgd, .clip_norm = 5, .blocks = {2, 3, 1}};
  State state{std::vector<float>(6, 0), {}, {}};
  // After the scale the norms are 10, 2 and 5: one is halved, the others are unchanged.
  const std::vector<float> gradient = {3, 4, 1, 0, 0, -2.5f};
  std::mt19937 random(5);
  Apply(rule, {.rate = 1, .scale = 2}, CutPayload(gradient, 3, &random).payload(), &state,
        BestInstructionSet());
  EXPECT_THAT(state.value, testing::ElementsAre(-3, -4, -2, 0, 0, 5));
}

TEST(UpdateTest, AdagradCountsFromItsFirstAccumulator) {
  JobSpec spec;
  spec.mutable_optimizer()->mutable_adagrad()->set_epsilon(1e-10);
  spec.mutable_optimizer()->mutable_adagrad()->set_initial_accumulator(3);
  Slice slice;
  slice.segments = {{0, 0, 0, 1}};
  const UpdateRule rule = MakeUpdateRule(spec, slice).value();
  State state{{0}, {rule.first_slot0}, {}};
  std::mt19937 random(6);
  Apply(rule, {.rate = 1}, CutPayload({1}, 1, &random).payload(), &state, BestInstructionSet());
  EXPECT_EQ(state.slot0[0], 4);
  EXPECT_EQ(state.value[0], -0.5f);
}

TEST(MakeUpdateRuleTest, StatisticsAreAveragedWhateverTheOptimizer) {
  JobSpec spec;
  spec.mutable_optimizer()->mutable_adam()->set_beta1(0.9);
  spec.mutable_clip()->set_scope(Clip::PARAMETER);
  spec.mutable_clip()->set_norm(1);
  Slice slice;
  slice.kind = STATISTIC;
  slice.statistic_momentum = 0.25;
  const UpdateRule rule = MakeUpdateRule(spec, slice).value();
  EXPECT_EQ(rule.kind, UpdateRule::kStatistic);
  EXPECT_EQ(rule.momentum, 0.25);
  EXPECT_EQ(rule.clip_norm, 0);
  EXPECT_EQ(rule.slots(), 0);
}

TEST(MakeUpdateRuleTest, BlocksAreTheParametersParts) {
  JobSpec spec;
  spec.mutable_optimizer()->mutable_lamb()->set_epsilon(1e-6);
  spec.mutable_optimizer()->add_groups()->set_no_trust_ratio(true);
  Slice slice;
  slice.segments = {{4, 100, 0, 7}, {5, 0, 7, 9}};
  UpdateRule rule = MakeUpdateRule(spec, slice).value();
  EXPECT_THAT(rule.blocks, testing::ElementsAre(7, 9));
  EXPECT_TRUE(rule.trust_ratio);
  slice.group = 0;
  EXPECT_FALSE(MakeUpdateRule(spec, slice).value().trust_ratio);
}

TEST(MakeUpdateRuleTest, BadOptimizersAreNamed) {
  JobSpec spec;
  Optimizer& optimizer = *spec.mutable_optimizer();
  const auto refusal = [&] {
    return std::string(MakeUpdateRule(spec, Slice()).status().message());
  };
  EXPECT_THAT(refusal(), HasSubstr("one of sgd, momentum"));
  optimizer.mutable_momentum()->set_momentum(1);
  EXPECT_THAT(refusal(), HasSubstr("momentum is 1"));
  optimizer.mutable_nesterov()->set_momentum(-0.5);
  EXPECT_THAT(refusal(), HasSubstr("momentum is -0.5"));
  optimizer.mutable_adam()->set_beta1(0.9);
  optimizer.mutable_adam()->set_beta2(-0.5);
  EXPECT_THAT(refusal(), HasSubstr("beta2 is -0.5"));
  optimizer.mutable_lamb()->set_beta2(0.9);
  EXPECT_THAT(refusal(), HasSubstr("epsilon is 0"));
  optimizer.mutable_adagrad()->set_epsilon(1);
  optimizer.mutable_adagrad()->set_initial_accumulator(-1);
  EXPECT_THAT(refusal(), HasSubstr("initial_accumulator is -1"));
  optimizer.mutable_sgd();
  optimizer.set_weight_decay(-1);
  EXPECT_THAT(refusal(), HasSubstr("weight_decay is -1"));
  optimizer.set_weight_decay(0);
  spec.mutable_clip()->set_scope(Clip::PARAMETER);
  EXPECT_THAT(refusal(), HasSubstr("norm is 0"));
}

}  // namespace
}  // namespace starling
