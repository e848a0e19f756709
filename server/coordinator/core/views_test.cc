#include "server/coordinator/core/views.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const ShardAt kA{1, 10, "a:1"}, kB{2, 20, "b:1"}, kOldA{1, 9, "a:1"};
constexpr uint32_t kMany = 1000;

View Replicated(bool learning) {
  View view = FirstView(3, kA);
  AddLearner(kB, view);
  if (!learning) view.clear_learning();
  return view;
}

PartitionStatus Whole(uint64_t view) {
  PartitionStatus status;
  status.set_view(view);
  status.set_backup_whole(true);
  return status;
}

TEST(Views, ALearnerIsWholeOnceThePrimaryOfItsViewSaysSo) {
  View view = Replicated(true);
  EXPECT_EQ(view.number(), 2u);
  EXPECT_TRUE(Leads(view, kA));
  EXPECT_TRUE(Backs(view, kB));
  EXPECT_FALSE(TakeWhole(Whole(1), view)) << "that was another backup";
  EXPECT_FALSE(TakeWhole(PartitionStatus(), view));
  EXPECT_TRUE(TakeWhole(Whole(2), view));
  EXPECT_FALSE(view.learning());
  EXPECT_EQ(view.number(), 2u) << "nobody has to hear of it";
  EXPECT_FALSE(TakeWhole(Whole(2), view));
}

TEST(Views, AWholeBackupTakesOver) {
  View view = Replicated(false);
  EXPECT_EQ(LoseShard(kA, true, view), Loss::kPromoted);
  EXPECT_EQ(view.number(), 3u);
  EXPECT_TRUE(Leads(view, kB));
  EXPECT_EQ(view.primary_address(), "b:1");
  EXPECT_EQ(view.backup(), 0u);
  EXPECT_EQ(view.partition(), 3u);
  EXPECT_EQ(LoseShard(kA, true, view), Loss::kNothing);
}

TEST(Views, ALearnerDoesNotTakeOver) {
  View view = Replicated(true);
  EXPECT_EQ(LoseShard(kA, true, view), Loss::kValues);
  EXPECT_EQ(view.SerializeAsString(), Replicated(true).SerializeAsString());
}

TEST(Views, ABackupThatIsGoneTooDoesNotTakeOver) {
  View view = Replicated(false);
  EXPECT_EQ(LoseShard(kA, false, view), Loss::kValues);
  EXPECT_TRUE(Leads(view, kA));
}

TEST(Views, WithoutItsBackupAPrimaryGoesOn) {
  for (const bool learning : {false, true}) {
    View view = Replicated(learning);
    EXPECT_EQ(LoseShard(kB, false, view), Loss::kBackup);
    EXPECT_EQ(view.number(), 3u);
    EXPECT_TRUE(Leads(view, kA));
    EXPECT_EQ(view.backup(), 0u);
    EXPECT_FALSE(view.learning());
  }
}

TEST(Views, AnEarlierIncarnationHasNoCopy) {
  View view = Replicated(false);
  EXPECT_EQ(LoseShard(kOldA, true, view), Loss::kNothing);
  EXPECT_EQ(view.number(), 2u);
}

TEST(PlaceBackups, GoesToTheLeastLoadedOtherShardWithRoom) {
  const std::vector<WantsBackup> wanting = {{0, ShardId(1), 10, 100},
                                            {1, ShardId(1), 10, 100},
                                            {2, ShardId(2), 10, 100},
                                            {3, ShardId(3), 10, 100}};
  const auto place = [&](uint64_t room) {
    return PlaceBackups(wanting, {{ShardId(1), 0, room}, {ShardId(2), 5, 1000}, {ShardId(3), 0}},
                        {}, kMany);
  };
  EXPECT_THAT(place(1000), ElementsAre(BackupPlace{0, ShardId(3)}, BackupPlace{1, ShardId(2)},
                                       BackupPlace{2, ShardId(1)}, BackupPlace{3, ShardId(1)}));
  EXPECT_THAT(place(100), ElementsAre(BackupPlace{0, ShardId(3)}, BackupPlace{1, ShardId(2)},
                                      BackupPlace{2, ShardId(1)}, BackupPlace{3, ShardId(2)}));
  EXPECT_THAT(PlaceBackups(wanting, {{ShardId(1)}}, {}, kMany),
              ElementsAre(BackupPlace{2, ShardId(1)}, BackupPlace{3, ShardId(1)}))
      << "never beside its primary";
  EXPECT_THAT(PlaceBackups(wanting, {}, {}, kMany), IsEmpty());
}

TEST(PlaceBackups, NotOnAShardThatIsUnfitForIt) {
  const std::vector<WantsBackup> wanting = {{0, ShardId(1), 10, 100, {ShardId(2)}},
                                            {1, ShardId(3), 10, 100}};
  EXPECT_THAT(PlaceBackups(wanting, {{ShardId(1), 9}, {ShardId(2)}, {ShardId(3), 99}}, {}, kMany),
              ElementsAre(BackupPlace{0, ShardId(3)}, BackupPlace{1, ShardId(2)}));
  EXPECT_THAT(PlaceBackups(wanting, {{ShardId(1)}, {ShardId(2)}}, {}, kMany),
              ElementsAre(BackupPlace{1, ShardId(1)}));
}

TEST(PlaceBackups, FewSnapshotsAtATimeOnAShard) {
  const std::vector<WantsBackup> wanting = {
      {0, ShardId(1), 10, 100}, {1, ShardId(1), 10, 100}, {2, ShardId(2), 10, 100}};
  const std::vector<ShardLoad> shards = {{ShardId(1)}, {ShardId(2)}, {ShardId(3)}};
  EXPECT_THAT(PlaceBackups(wanting, shards, {{ShardId(1), 1}}, 2),
              ElementsAre(BackupPlace{0, ShardId(2)}, BackupPlace{2, ShardId(3)}));
  EXPECT_THAT(PlaceBackups(wanting, shards, {{ShardId(3), 2}, {ShardId(2), 2}}, 2), IsEmpty());
}

TEST(ViewsTest, CopiesThatSwapKeepTheirPlaces) {
  View view = FirstView(3, {1, 10, "a:1"});
  AddLearner({2, 20, "b:1"}, view);
  view.clear_learning();
  SwapCopies(view);
  EXPECT_EQ(view.number(), 3u);
  EXPECT_TRUE(Leads(view, {2, 20, "b:1"}));
  EXPECT_TRUE(Backs(view, {1, 10, "a:1"}));
  EXPECT_TRUE(IsWhole(view));
  EXPECT_EQ(view.primary_address(), "b:1");
  EXPECT_EQ(view.backup_address(), "a:1");
}

}  // namespace
}  // namespace starling::coordinator
