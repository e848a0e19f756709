#include "tests/sim/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/defences.h"

namespace starling::sim {
namespace {

std::vector<FaultId> Faults(std::initializer_list<uint64_t> numbers) {
  std::vector<FaultId> faults;
  for (const uint64_t number : numbers) faults.push_back({"fault", number});
  return faults;
}

// Whether all of these are among them.
auto Needs(std::vector<FaultId> needed) {
  return [needed = std::move(needed)](const std::vector<FaultId>& faults) {
    return std::all_of(needed.begin(), needed.end(), [&](const FaultId& id) {
      return std::find(faults.begin(), faults.end(), id) != faults.end();
    });
  };
}

TEST(FewestFaultsTest, LeavesWhatIsNeeded) {
  for (const auto& needed : {Faults({}), Faults({4}), Faults({1, 9}), Faults({0, 5, 6})}) {
    uint64_t runs = 1000;
    bool fewest = false;
    EXPECT_EQ(FewestFaults(Faults({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), Needs(needed), &runs, &fewest),
              needed);
    EXPECT_TRUE(fewest);
  }
}

TEST(FewestFaultsTest, LooksAgainAtWhatWasNeededBefore) {
  // 1 is needed as long as 2 is there.
  const auto shows = [](const std::vector<FaultId>& faults) {
    return Needs(Faults({3}))(faults) &&
           (Needs(Faults({1}))(faults) || !Needs(Faults({2}))(faults));
  };
  uint64_t runs = 1000;
  bool fewest = false;
  EXPECT_EQ(FewestFaults(Faults({1, 2, 3}), shows, &runs, &fewest), Faults({3}));
  EXPECT_TRUE(fewest);
}

TEST(FewestFaultsTest, StopsAfterItsRuns) {
  uint64_t runs = 3;
  bool fewest = true;
  const auto left =
      FewestFaults(Faults({0, 1, 2, 3, 4, 5, 6, 7}), Needs(Faults({2, 7})), &runs, &fewest);
  EXPECT_EQ(runs, 3u);
  EXPECT_FALSE(fewest);
  EXPECT_TRUE(Needs(Faults({2, 7}))(left));
}

std::set<FaultId> IdsOf(const SeedResult& result) {
  std::set<FaultId> ids;
  for (const Fault& fault : result.faults) ids.insert(fault.id);
  return ids;
}

// What is left happens, and shows what was asked for.
void ExpectFewer(const Shrunk& shrunk, const std::function<bool(const SeedResult&)>& shows) {
  EXPECT_TRUE(shows(shrunk.result));
  const std::set<FaultId> ids = IdsOf(shrunk.result);
  EXPECT_FALSE(ids.empty());
  EXPECT_LT(ids.size(), shrunk.faults_before);
  EXPECT_TRUE(shows(RunSeed(shrunk.result.seed, &ids)));
  const std::string text = ShrunkToString(shrunk);
  for (const FaultId& id : ids) EXPECT_TRUE(absl::StrContains(text, id.kind)) << text;
  EXPECT_TRUE(absl::StrContains(text, FaultsToText(shrunk.result.faults))) << text;
  EXPECT_EQ(ParseFaults(FaultsToText(shrunk.result.faults)), ids);
}

// The first seed for which it is true.
SeedResult FirstThat(const std::function<bool(const SeedResult&)>& shows) {
  constexpr uint64_t kSeedsMost = 500;
  for (uint64_t seed = 1; seed <= kSeedsMost; ++seed) {
    SeedResult result = RunSeed(seed);
    if (shows(result)) return result;
  }
  ADD_FAILURE() << "no seed shows it";
  return {};
}

TEST(ParseFaultsTest, TakesWhatIsPrintedAndNothingElse) {
  EXPECT_EQ(ParseFaults(""), std::set<FaultId>());
  EXPECT_EQ(ParseFaults("after it: worker crash#3,shard crash#0"),
            (std::set<FaultId>{{"after it: worker crash", 3}, {"shard crash", 0}}));
  for (const char* text : {"shard crash", "shard crash#", "shard crash#x", "a#1#2"})
    EXPECT_EQ(ParseFaults(text), std::nullopt) << text;
}

TEST(ShrinkTest, WithoutFaultsNothingIsMissed) {
  const std::set<FaultId> none;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const SeedResult result = RunSeed(seed, &none);
    EXPECT_TRUE(result.faults.empty());
    EXPECT_TRUE(result.violations.empty()) << result.violations.front().what;
  }
}

TEST(ShrinkTest, FindsTheFaultsThatARunNeeds) {
  const auto shows = [](const SeedResult& result) {
    const auto promotions = result.counts.find("promotions");
    return promotions != result.counts.end() && promotions->second > 0;
  };
  constexpr uint64_t kRuns = 20;  // each takes a good part of a second under sanitizers
  const Shrunk shrunk = Shrink(FirstThat(shows), shows, kRuns);
  EXPECT_LE(shrunk.runs, kRuns);
  ExpectFewer(shrunk, shows);
}

#ifdef STARLING_MUTANTS  // bazel test --config=mutants

TEST(ShrinkTest, FindsTheFaultsForAMaskedDefence) {
  const auto shows = [](const SeedResult& result) {
    return result.violated.contains(Promise::kG1);
  };
  MaskDefence(Defence::kDigest);
  const Shrunk shrunk = Shrink(FirstThat(shows), shows, 1000);
  MaskDefence(Defence::kCount);
  EXPECT_TRUE(shrunk.fewest);
  // A value that was changed on its way.
  EXPECT_EQ(shrunk.result.faults.size(), 1u) << ShrunkToString(shrunk);
  EXPECT_TRUE(absl::StrContains(ShrunkToString(shrunk), "violates G1 exactly once"));
}

#endif

}  // namespace
}  // namespace starling::sim
