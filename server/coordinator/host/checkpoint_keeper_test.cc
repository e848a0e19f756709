#include "server/coordinator/host/checkpoint_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/checkpoint/capture.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/names.h"
#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/store.h"
#include "common/checkpoint/testing/memory_disk.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kCluster = 0xc0ffee;
constexpr uint64_t kNonce = 77;
const CheckpointId kId = {kCluster, JobUid(1), 3};

// What comes; a default value, and a failure, if it does not.
template <typename T>
T Soon(std::promise<T>& promise) {
  std::future<T> future = promise.get_future();
  if (future.wait_for(std::chrono::seconds(60)) == std::future_status::ready) return future.get();
  ADD_FAILURE() << "nothing came within 60 s";
  return T();
}
template <>
void Soon(std::promise<void>& promise) {
  if (promise.get_future().wait_for(std::chrono::seconds(60)) != std::future_status::ready)
    ADD_FAILURE() << "nothing came within 60 s";
}

// Where it waits, the next file opens only once `go_on` is set.
class WaitingDisk : public MemoryDisk {
 public:
  absl::StatusOr<std::unique_ptr<Readable>> Open(const std::string& folder, const std::string& name,
                                                 bool from_disk) override {
    if (waits.exchange(false)) {
      begun.set_value();
      Soon(go_on);
    }
    return MemoryDisk::Open(folder, name, from_disk);
  }
  std::atomic<bool> waits = false;
  std::promise<void> begun, go_on;
};

class CheckpointKeeperTest : public testing::Test {
 protected:
  CheckpointKeeperTest() { EXPECT_TRUE(WriteRootNonce(*disk_, kCluster, kNonce).ok()); }

  // The answer of one call.
  template <typename T, typename Ask>
  T Await(const Ask& ask) {
    const auto answer = std::make_shared<std::promise<T>>();  // it may come late
    ask([answer](T value) { answer->set_value(std::move(value)); });
    return Soon(*answer);
  }
  absl::Status Make(const CheckpointId& id = kId) {
    return Await<absl::Status>([&](auto done) { keeper_.Make({id, kNonce}, done); });
  }
  absl::StatusOr<CheckpointInfo> Seal(const CheckpointManifest& manifest) {
    return Await<absl::StatusOr<CheckpointInfo>>([&](auto done) {
      keeper_.Seal({kId, manifest}, done);
    });
  }
  absl::Status Drop(const CheckpointId& id = kId) {
    return Await<absl::Status>([&](auto done) { keeper_.Drop({id}, done); });
  }
  absl::StatusOr<FoundCheckpoints> Find(bool first) {
    return Await<absl::StatusOr<FoundCheckpoints>>([&](auto done) {
      keeper_.List({kCluster, kNonce, first, /*known=*/!first}, done);
    });
  }
  absl::StatusOr<std::vector<CheckpointInfo>> List(bool first = false) {
    absl::StatusOr<FoundCheckpoints> found = Find(first);
    if (!found.ok()) return found.status();
    return std::move(found->whole);
  }
  absl::StatusOr<CheckpointManifest> Read(const CheckpointInfo& info) {
    return Await<absl::StatusOr<CheckpointManifest>>([&](auto done) { keeper_.Read(info, done); });
  }
  absl::StatusOr<CheckpointManifest> Verify(const CheckpointInfo& info) {
    return Await<absl::StatusOr<CheckpointManifest>>([&](auto done) {
      keeper_.Verify({info, kCluster, kNonce}, done);
    });
  }

  // What a shard writes, and the manifest that goes with it.
  CheckpointManifest Written() { return WrittenTo(*disk_); }
  static CheckpointManifest WrittenTo(CheckpointDisk& disk) {
    CheckpointManifest manifest;
    manifest.set_format(kManifestFormat);
    manifest.set_id(ToString(kId));
    manifest.set_step(5);
    JobDescription& job = *manifest.mutable_job();
    job.mutable_run()->set_job_uid(1);
    job.mutable_spec()->set_name("a");
    job.mutable_spec()->mutable_batch()->set_global(2);
    job.mutable_spec()->mutable_stop()->set_epochs(9);
    job.set_train_samples(4);
    Parameter& parameter = *job.mutable_spec()->mutable_model()->add_parameters();
    parameter.set_name("w");
    parameter.add_shape(4);
    parameter.set_kind(TRAINABLE);
    static const std::vector<float> values = {1, 2, 3, 4};
    CheckpointCapture capture;
    capture.Add({{{"w", 0, BlockPart::kValue}, values, nullptr}});
    const auto file = WriteShardFile(disk, kId, kNonce, 5, ShardId(2), capture, [](uint64_t) {});
    EXPECT_TRUE(file.ok()) << file.status();
    if (file.ok()) *manifest.add_files() = *file;
    return manifest;
  }

  std::shared_ptr<WaitingDisk> disk_ = std::make_shared<WaitingDisk>();
  CheckpointKeeper keeper_{disk_};
};

TEST_F(CheckpointKeeperTest, KeepsWhatWasWrittenAndSealed) {
  ASSERT_TRUE(Make().ok());
  EXPECT_THAT(*List(), IsEmpty()) << "it has no manifest";
  const CheckpointManifest manifest = Written();
  const auto info = Seal(manifest);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->id(), ToString(kId));
  EXPECT_EQ(info->job(), "a");
  EXPECT_EQ(info->step(), 5u);
  EXPECT_GT(info->bytes(), 16u);
  const auto listed = List();
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ(listed->front().SerializeAsString(), info->SerializeAsString())
      << "what is told at once is what the disk tells";
  const auto read = Read(*info);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SerializeAsString(), manifest.SerializeAsString());
}

TEST_F(CheckpointKeeperTest, AnIdIsMadeOnce) {
  ASSERT_TRUE(Make().ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Make())) << Make();
}

TEST_F(CheckpointKeeperTest, WhatIsIncompleteIsNotSealed) {
  ASSERT_TRUE(Make().ok());
  CheckpointManifest manifest = Written();
  manifest.mutable_files(0)->set_bytes(1);
  EXPECT_FALSE(Seal(manifest).ok());
  EXPECT_THAT(*List(), IsEmpty());
  EXPECT_TRUE(Drop().ok());
  keeper_.Stop();  // its room is free
  EXPECT_THAT(*disk_->List(""), Not(testing::Contains(HasSubstr(ToString(kId)))));
}

TEST_F(CheckpointKeeperTest, DropsWholeOnesToo) {
  ASSERT_TRUE(Make().ok());
  ASSERT_TRUE(Seal(Written()).ok());
  EXPECT_TRUE(Drop().ok());
  EXPECT_THAT(*List(), IsEmpty());
  EXPECT_TRUE(Drop().ok()) << "it is gone already";
}

TEST_F(CheckpointKeeperTest, TheFirstListRemovesWhatAnEarlierCoordinatorLeft) {
  ASSERT_TRUE(Make().ok());
  const CheckpointId other = {kCluster + 1, JobUid(1), 3};
  ASSERT_TRUE(Make(other).ok());
  EXPECT_THAT(*List(/*first=*/false), IsEmpty());
  EXPECT_THAT(*disk_->List(""), testing::Contains(ToString(kId) + ".partial"));
  ASSERT_TRUE(WriteRootNonce(*disk_, kCluster, kNonce - 1).ok());
  EXPECT_THAT(*List(/*first=*/true), IsEmpty());
  EXPECT_THAT(*disk_->List(""), UnorderedElementsAre(".starling", ToString(other) + ".partial"));
  EXPECT_EQ(*ReadRootNonce(*disk_, kCluster), kNonce);
}

TEST_F(CheckpointKeeperTest, AManifestThatIsNotTheListedOneIsRefused) {
  ASSERT_TRUE(Make().ok());
  CheckpointInfo info = *Seal(Written());
  info.set_manifest_digest(info.manifest_digest() + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(info).status())) << Read(info).status();
  ASSERT_TRUE(Drop().ok());
  EXPECT_TRUE(absl::IsNotFound(Read(info).status())) << Read(info).status();
}

TEST_F(CheckpointKeeperTest, WhoGoesBackToOneReadsEveryByte) {
  ASSERT_TRUE(Make().ok());
  const CheckpointManifest manifest = Written();
  const CheckpointInfo info = *Seal(manifest);
  const auto whole = Verify(info);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->SerializeAsString(), manifest.SerializeAsString());
  std::string file = *disk_->Get(ToString(kId), ShardFileName(ShardId(2)));
  file.back() ^= 1;
  disk_->Put(ToString(kId), ShardFileName(ShardId(2)), file);
  EXPECT_TRUE(Read(info).ok()) << "its values are not read";
  EXPECT_TRUE(absl::IsDataLoss(Verify(info).status())) << Verify(info).status();
  // It is the folder of another cluster, too, which began a job with it.
  ASSERT_TRUE(WriteRootNonce(*disk_, kCluster + 1, kNonce + 1).ok());
  const auto there = Await<absl::StatusOr<CheckpointManifest>>([&](auto done) {
    keeper_.Verify({info, kCluster + 1, kNonce + 1}, done);
  });
  EXPECT_TRUE(absl::IsDataLoss(there.status())) << there.status();
}

TEST_F(CheckpointKeeperTest, TheDisksErrorsComeThrough) {
  disk_->FaultAt(disk_->operations(), DiskFault::kNoSpace);
  EXPECT_TRUE(absl::IsResourceExhausted(Make()));
  disk_->FaultAt(disk_->operations(), DiskFault::kIoError);
  EXPECT_FALSE(List().ok());
  EXPECT_TRUE(List().ok());
}

TEST_F(CheckpointKeeperTest, WhatCannotBeRemovedIsNotInTheWay) {
  ASSERT_TRUE(Make().ok());
  ASSERT_TRUE(WriteRootNonce(*disk_, kCluster, kNonce - 1).ok());
  // It reads the nonce, lists what is whole, and then what is left.
  const uint64_t before = disk_->operations();
  ASSERT_TRUE(ReadRootNonce(*disk_, kCluster).ok());
  disk_->FaultAt(2 * disk_->operations() - before + 1, DiskFault::kIoError);
  const auto found = Find(/*first=*/true);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->marked.ok()) << found->marked;
  EXPECT_THAT(*disk_->List(""), testing::Contains(ToString(kId) + ".partial"));
  EXPECT_EQ(*ReadRootNonce(*disk_, kCluster), kNonce);
}

TEST_F(CheckpointKeeperTest, AFolderThatTakesNoNonceIsListed) {
  ASSERT_TRUE(Make().ok());
  ASSERT_TRUE(Seal(Written()).ok());
  // It lists the folder, reads the manifest, and looks for what is left.
  const uint64_t before = disk_->operations();
  ASSERT_TRUE(List(/*first=*/true).ok());
  disk_->FaultAt(disk_->operations() + (disk_->operations() - before) - 2, DiskFault::kNoSpace);
  const auto found = Find(/*first=*/true);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->whole.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(found->marked)) << found->marked;
}

// What is being taken stays.
TEST_F(CheckpointKeeperTest, ANonceThatAnEarlierCoordinatorWroteLateIsWrittenOver) {
  ASSERT_TRUE(Make().ok());
  EXPECT_FALSE(Find(/*first=*/false)->marked_now) << "it is there";
  ASSERT_TRUE(WriteRootNonce(*disk_, kCluster, kNonce + 1).ok());
  const auto found = Find(/*first=*/false);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->marked.ok()) << found->marked;
  EXPECT_TRUE(found->marked_now);
  EXPECT_EQ(*ReadRootNonce(*disk_, kCluster), kNonce);
  EXPECT_THAT(*disk_->List(""), testing::Contains(ToString(kId) + ".partial"));
}

TEST_F(CheckpointKeeperTest, AnotherFolderInItsPlaceIsNotListed) {
  ASSERT_TRUE(disk_->Remove(kRootNonceFolder, ToHex(kCluster)).ok());
  const absl::Status empty = List().status();
  EXPECT_TRUE(absl::IsUnavailable(empty)) << "an empty folder under the mount";
  EXPECT_THAT(std::string(empty.message()), HasSubstr("see whether the folder is mounted"));
  EXPECT_TRUE(absl::IsNotFound(ReadRootNonce(*disk_, kCluster).status())) << "it is not marked";
}

// It has the number of another coordinator, and is listed only if it lacks nothing.
TEST_F(CheckpointKeeperTest, AnOlderCopyOfTheFolderIsNotListed) {
  ASSERT_TRUE(WriteRootNonce(*disk_, kCluster, kNonce - 1).ok());
  const auto found = Await<absl::StatusOr<FoundCheckpoints>>([&](auto done) {
    keeper_.List({kCluster, kNonce, /*first=*/false, /*known=*/true, /*there=*/{kId}}, done);
  });
  EXPECT_TRUE(absl::IsUnavailable(found.status())) << found.status();
  EXPECT_THAT(std::string(found.status().message()), HasSubstr(ToString(kId)));
  EXPECT_EQ(*ReadRootNonce(*disk_, kCluster), kNonce - 1) << "it is not marked";
}

TEST_F(CheckpointKeeperTest, AFolderThatIsNotMountedIsNotOneWithoutCheckpoints) {
  namespace fs = std::filesystem;
  const std::string root = absl::StrCat(std::getenv("TEST_TMPDIR"), "/unmounted");
  fs::create_directory(root);
  const std::shared_ptr<CheckpointDisk> disk = *OpenCheckpointDisk(root);
  CheckpointKeeper keeper(disk);
  const auto list = [&](bool known) {
    return Await<absl::StatusOr<FoundCheckpoints>>([&](auto done) {
      keeper.List({kCluster, kNonce, /*first=*/true, known}, done);
    });
  };
  ASSERT_TRUE(list(/*known=*/false).ok()) << "a new one";
  ASSERT_TRUE(BeginCheckpoint(*disk, kId, kNonce).ok());
  const auto info = Await<absl::StatusOr<CheckpointInfo>>([&](auto done) {
    keeper.Seal({kId, WrittenTo(*disk)}, done);
  });
  ASSERT_TRUE(info.ok()) << info.status();
  const auto verify = [&](uint64_t nonce) {
    return Await<absl::StatusOr<CheckpointManifest>>([&](auto done) {
             keeper.Verify({*info, kCluster, nonce}, done);
           })
        .status();
  };
  EXPECT_TRUE(verify(kNonce).ok()) << verify(kNonce);

  fs::rename(root, root + ".away");
  fs::create_directory(root);
  EXPECT_TRUE(absl::IsAborted(verify(kNonce))) << verify(kNonce);
  EXPECT_TRUE(absl::IsNotFound(verify(0))) << verify(0);
  const absl::Status empty = list(/*known=*/true).status();
  EXPECT_TRUE(absl::IsUnavailable(empty)) << empty;
  EXPECT_THAT(std::string(empty.message()), AllOf(HasSubstr("see whether the folder is mounted"),
                                                  HasSubstr("make the folder .starling in it")));
  EXPECT_TRUE(fs::is_empty(root)) << "nothing is written beneath the mount";
  // Somebody means it.
  fs::create_directory(root + "/.starling");
  std::ofstream(absl::StrCat(root, "/.starling/", ToHex(kCluster)));
  EXPECT_TRUE(list(/*known=*/true).ok());

  fs::remove_all(root);
  fs::rename(root + ".away", root);
  EXPECT_TRUE(verify(kNonce).ok()) << verify(kNonce);
  EXPECT_EQ(list(/*known=*/true)->whole.size(), 1u);
}

TEST_F(CheckpointKeeperTest, ReadingEveryByteDelaysNothingElse) {
  ASSERT_TRUE(Make().ok());
  const CheckpointInfo info = *Seal(Written());
  std::promise<absl::Status> answer;
  disk_->waits = true;
  keeper_.Verify({info, kCluster, kNonce},
                 [&](const auto& read) { answer.set_value(read.status()); });
  Soon(disk_->begun);
  EXPECT_TRUE(Make({kCluster, JobUid(2), 1}).ok());
  disk_->go_on.set_value();
  EXPECT_TRUE(Soon(answer).ok());
}

TEST_F(CheckpointKeeperTest, ItsEndDoesNotWaitForEveryByte) {
  ASSERT_TRUE(Make().ok());
  const CheckpointInfo info = *Seal(Written());
  std::promise<absl::Status> under_way, waiting;
  const auto verify = [&](std::promise<absl::Status>& answer) {
    keeper_.Verify({info, kCluster, kNonce},
                   [&answer](const auto& read) { answer.set_value(read.status()); });
  };
  disk_->waits = true;
  verify(under_way);
  verify(waiting);
  Soon(disk_->begun);
  std::thread stop([&] { keeper_.Stop(); });
  // What is asked for now is refused once the end has begun.
  const absl::Time enough = absl::Now() + absl::Seconds(60);
  for (bool accepted = true; accepted && absl::Now() < enough;) {
    const auto asked = std::make_shared<int>();
    keeper_.Verify({info, kCluster, kNonce}, [asked](const auto&) {});
    accepted = asked.use_count() > 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(absl::Now(), enough) << "its end has not begun";
  disk_->go_on.set_value();
  stop.join();
  const absl::Status stopped = Soon(under_way);
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("stopped before its end"));
  const absl::Status unread = Soon(waiting);
  EXPECT_TRUE(absl::IsCancelled(unread)) << unread;
  EXPECT_THAT(std::string(unread.message()), HasSubstr("the coordinator stops"));
}

TEST_F(CheckpointKeeperTest, AfterItsEndNothingIsDone) {
  keeper_.Stop();
  keeper_.Drop({kId}, [](const absl::Status&) { FAIL() << "it was stopped"; });
}

TEST(CheckpointKeeper, WithoutADiskEverythingSaysSo) {
  CheckpointKeeper keeper(nullptr);
  std::promise<absl::Status> answer;
  keeper.Make({kId, kNonce}, [&](absl::Status status) { answer.set_value(std::move(status)); });
  EXPECT_THAT(std::string(Soon(answer).message()), HasSubstr("--checkpoint-root"));
}

}  // namespace
}  // namespace starling::coordinator
