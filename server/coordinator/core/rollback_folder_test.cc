// The folder of checkpoints while a job goes back: a disk that fails, a mount that is not there,
// the coordinator's number in it, and which shards see it.
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/rollback_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(RollbackTest, AShardThatDoesNotSeeTheFolderGetsNothing) {
  Submit(Job("a"));
  RunBeyond(1);
  MiniCluster::MiniShard& blind = cluster.shards["ps-1"];
  const auto led = [&] {
    const JobReply job = cluster.Get("a");
    return std::count_if(job.views().begin(), job.views().end(),
                         [&](const View& view) { return view.primary() == blind.identity.id(); });
  };
  ASSERT_GT(led(), 0);
  blind.checkpoint_error = "no such folder";
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(led(), 0);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, WaitsForAShardThatSeesTheFolder) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.shards["ps-1"].checkpoint_error = "no such folder";
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  cluster.shards["ps-0"].checkpoint_error = "no such folder";
  cluster.RunFor(absl::Seconds(20));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("which too few shards can read: shard ps-0 does not see"),
                              HasSubstr("shard ps-1 does not see"), HasSubstr("no such folder")));
  cluster.shards["ps-0"].checkpoint_error.clear();
  ASSERT_TRUE(GoesBack()) << Reason();
}

// A copy of the folder that was made earlier takes its place while the coordinator runs.
TEST_F(RollbackTest, BeforeItEndsTheFolderIsListedAgain) {
  Submit(Job("a"));
  RunBeyond(1);
  const auto older = cluster.checkpoints;
  RunBeyond(older.rbegin()->first.number + 2);
  cluster.checkpoints = older;
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), ToString(older.rbegin()->first));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, ADiskThatFailsIsAskedAgain) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.reads = absl::UnavailableError("the mount is gone");
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(25));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("cannot be read: the mount is gone; tries again in 10s"));
  EXPECT_GE(cluster.read.size(), 3u);
  cluster.reads = absl::OkStatus();
  ASSERT_TRUE(GoesBack());
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, ADiskThatFailsForAMomentCostsNoProgress) {
  Submit(Job("a"));
  RunBeyond(2);
  const CheckpointInfo newest = Last();
  const CheckpointId id = *ParseCheckpointId(newest.id());
  cluster.damaged[id] = absl::PermissionDeniedError("an error of the disk");
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("an error of the disk; tries again in 10s"));
  cluster.damaged.clear();
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), newest.id());
  EXPECT_THAT(cluster.read, ElementsAre(id.number, id.number));
}

TEST_F(RollbackTest, TheOlderOneIfTheDiskFailsWithTheNewestForLong) {
  Submit(Job("a"));
  RunBeyond(2);
  const CheckpointId id = *ParseCheckpointId(Last().id());
  cluster.damaged[id] = absl::UnavailableError("an error of the disk");
  Replace("ps-0");
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("a", RUNNING); }, absl::Minutes(1))) << Reason();
  EXPECT_THAT(cluster.read, ElementsAre(id.number, id.number, id.number, id.number - 1));
}

TEST_F(RollbackTest, AFolderThatIsNotMountedIsWaitedFor) {
  Submit(Job("a"));
  RunBeyond(2);
  const std::string last = Last().id();
  cluster.mounted = false;
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(25));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("cannot be read: its nonce is missing; tries again in 10s"));
  const std::string log = cluster.JobLog("a"), line = "cannot be read: its nonce is missing";
  EXPECT_EQ(log.find(line), log.rfind(line)) << "it is said once: " << log;
  cluster.mounted = true;
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), last);
}

TEST_F(RollbackTest, AFolderThatIsNotMountedAtAStartIsWaitedFor) {
  Submit(Job("a"));
  RunBeyond(1);
  const std::string last = Last().id();
  cluster.mounted = false;
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  Replace("ps-0");
  cluster.RunFor(absl::Seconds(25));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("its nonce is missing"));
  cluster.mounted = true;
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_EQ(cluster.Status("a").restored_from(), last);
}

// Its shards cannot know the folder before that has its nonce.
TEST_F(RollbackTest, AStartWithoutTheMountKeepsAJobThatCameBackWaiting) {
  ASSERT_NO_FATAL_FAILURE(ComeBackWithoutTheMount());
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("are not listed yet: its nonce is missing"),
                              Not(HasSubstr("does not see"))));
  cluster.mounted = true;
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AStartWithoutTheMountDoesNotMarkWhatLiesBeneathIt) {
  Submit(Job("a"));
  RunBeyond(1);
  const std::string last = Last().id();
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  KillShards();
  cluster.RunFor(absl::Minutes(1));
  ASSERT_TRUE(SubmitFrom(last, "b").ok());
  cluster.mounted = false;
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  cluster.mounted = true;
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  ASSERT_TRUE(Comes([&] { return cluster.IsIn("b", RUNNING); })) << cluster.Status("b").reason();
  EXPECT_TRUE(Ends("b", SUCCEEDED));
}

// Shards that read the nonce late are not passed over.
TEST_F(RollbackTest, AShardThatWasThereBeforeTheMountMayStillLook) {
  ASSERT_NO_FATAL_FAILURE(ComeBackWithoutTheMount());
  cluster.shards["ps-1"].checkpoint_looks = false;
  cluster.mounted = true;
  ASSERT_TRUE(Comes([&] { return !absl::StrContains(Reason(), "are not listed yet"); }));
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("a", PENDING));
  EXPECT_THAT(Reason(), HasSubstr("shard ps-1 does not see"));
  cluster.shards["ps-1"].checkpoint_looks = true;
  ASSERT_TRUE(GoesBack()) << Reason();
  std::set<uint32_t> primaries;
  const JobReply job = cluster.Get("a");
  for (const View& view : job.views()) primaries.insert(view.primary());
  EXPECT_EQ(primaries.size(), 2u);
}

TEST_F(RollbackTest, ANonceThatAnEarlierCoordinatorWroteLateIsWrittenOver) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.RunFor(absl::Seconds(11));  // after its own was written
  cluster.root_nonce = 999;
  Replace("ps-0");  // it sees that one, and so does who reads
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_NE(cluster.root_nonce, 999u);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AReadThatMissesItsNonceIsEnoughToWriteItAgain) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.RunFor(absl::Seconds(11));
  for (auto& [name, shard] : cluster.shards) shard.checkpoint_looks = false;
  cluster.root_nonce = 999;
  cluster.shards["ps-0"].drained = true;
  ASSERT_TRUE(Comes([&] { return cluster.root_nonce != 999; })) << Reason();
  cluster.shards["ps-0"].alive = false;
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AShardThatSeesAnothersNonceIsEnoughToWriteItAgain) {
  Submit(Job("a", /*every_steps=*/0));
  cluster.RunFor(absl::Seconds(1));
  CreateCheckpointRequest request;
  request.set_name("a");
  for (auto& [name, shard] : cluster.shards) shard.checkpoint_waits = true;
  const CallId call = cluster.NewCall();
  cluster.Step(event::CreateCheckpoint{call, request});
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").checkpoint().stage() == "cutting"; }));
  ASSERT_FALSE(cluster.folders.empty());
  cluster.root_nonce = 999;
  ASSERT_TRUE(Comes([&] { return cluster.root_nonce != 999; }));
  EXPECT_FALSE(cluster.folders.empty()) << "what is being taken stays";
  for (auto& [name, shard] : cluster.shards) shard.checkpoint_waits = false;
  const CallReply reply = cluster.Await(call);
  EXPECT_TRUE(std::holds_alternative<CreateCheckpointReply>(reply));
}

// A folder that takes nothing new can be read all the same.
TEST_F(RollbackTest, WithoutRoomForTheNonceWhatIsThereIsRead) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.RunFor(absl::Seconds(11));
  cluster.root_nonce = 999;
  cluster.marks = absl::ResourceExhaustedError("no space");
  Replace("ps-0");
  ASSERT_TRUE(GoesBack()) << Reason();
  cluster.RunFor(absl::Seconds(1));
  CreateCheckpointRequest request;
  request.set_name("a");
  const CallReply refused = cluster.Ask<event::CreateCheckpoint>(request);
  EXPECT_THAT(std::string(std::get<absl::Status>(refused).message()), HasSubstr("no space"));
  cluster.marks = absl::OkStatus();
  ASSERT_TRUE(Comes([&] { return cluster.root_nonce != 999; }));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(RollbackTest, AStartWithoutAFolderEndsWhatWaitsForIt) {
  Submit(Job("a"));
  RunBeyond(1);
  cluster.disk_hangs = true;
  Replace("ps-0");
  CoordinatorOptions options;
  options.checkpoint_root = "";
  cluster.UseOptions(options);
  cluster.StartCoordinator();
  ASSERT_TRUE(Ends("a", FAILED));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("lost partition"), HasSubstr("--checkpoint-root")));
}

// Shards may see the checkpoints all the same, and say so if they do not.
TEST_F(RollbackTest, AStartWithoutAFolderStartsWhatHasGoneBack) {
  Submit(Job("a"));
  RunBeyond(1);
  KillShards();
  ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
  CoordinatorOptions options;
  options.checkpoint_root = "";
  cluster.UseOptions(options);
  cluster.StartCoordinator();
  for (const char* name : {"ps-0", "ps-1"}) Replace(name);
  ASSERT_TRUE(GoesBack()) << Reason();
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

}  // namespace
}  // namespace starling::coordinator
