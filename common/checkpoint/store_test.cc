#include "common/checkpoint/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/checkpoint/manifest.h"
#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "common/checkpoint/testing/tiny_checkpoint.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kCluster = 0xc0ffee;

CheckpointId Numbered(uint64_t number, uint64_t cluster = kCluster) {
  return {cluster, JobUid(12), number};
}

std::vector<std::string> Listed(CheckpointDisk& disk) {
  std::vector<std::string> ids;
  const auto list = ListCheckpoints(disk);
  EXPECT_TRUE(list.ok()) << list.status();
  for (const CheckpointInfo& info : list->whole) ids.push_back(info.id());
  return ids;
}

TEST(CheckpointStoreTest, ACheckpointIsThereFromItsSealToItsDeletion) {
  MemoryDisk disk;
  const CheckpointId id = Numbered(3);
  ASSERT_TRUE(BeginCheckpoint(disk, id, kTinyNonce).ok());
  EXPECT_THAT(Listed(disk), IsEmpty());
  CheckpointCapture capture;
  capture.Add(TinyBlocks(27, 0, 1));
  CheckpointManifest manifest = TinyManifest(id, 27);
  *manifest.add_files() =
      *WriteShardFile(disk, id, kTinyNonce, 27, ShardId(1), capture, [](uint64_t) {});
  EXPECT_THAT(Listed(disk), IsEmpty());
  const auto bytes = SealCheckpoint(disk, id, manifest);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, manifest.files(0).bytes() + EncodeManifest(manifest).size());
  EXPECT_THAT(*disk.List(ToString(id)),
              UnorderedElementsAre(kManifestFile, ShardFileName(ShardId(1))));
  const auto list = ListCheckpoints(disk);
  ASSERT_TRUE(list.ok() && list->whole.size() == 1u);
  EXPECT_EQ(list->whole[0].id(), ToString(id));
  EXPECT_EQ(list->whole[0].bytes(), *bytes);
  ASSERT_TRUE(DropCheckpoint(disk, id).ok());
  ASSERT_TRUE(RemoveDropped(disk, id).ok());
  EXPECT_THAT(*disk.List(""), IsEmpty());
  EXPECT_TRUE(DropCheckpoint(disk, id).ok()) << "nothing is there";
}

// In a folder that several share, anybody can make one.
TEST(CheckpointStoreTest, ALinkWithANameLikeAnIdHidesNoCheckpoint) {
  const std::filesystem::path root =
      std::filesystem::path(std::getenv("TEST_TMPDIR")) / "with_links";
  std::filesystem::create_directory(root);
  const auto disk = *OpenCheckpointDisk(root.string());
  const CheckpointId id = Numbered(3), link = Numbered(4), file = Numbered(5), inside = Numbered(6);
  ASSERT_TRUE(BeginCheckpoint(*disk, id, kTinyNonce).ok());
  CheckpointCapture capture;
  capture.Add(TinyBlocks(27, 0, 1));
  CheckpointManifest manifest = TinyManifest(id, 27);
  *manifest.add_files() =
      *WriteShardFile(*disk, id, kTinyNonce, 27, ShardId(1), capture, [](uint64_t) {});
  ASSERT_TRUE(SealCheckpoint(*disk, id, manifest).ok());
  std::filesystem::create_directory_symlink("/", root / ToString(link));
  std::ofstream(root / ToString(file)) << "x";
  std::filesystem::create_directory(root / ToString(inside));
  std::filesystem::create_symlink(root / ToString(id) / kManifestFile,
                                  root / ToString(inside) / kManifestFile);
  EXPECT_THAT(Listed(*disk), ElementsAre(ToString(id)));
  const auto list = ListCheckpoints(*disk);
  ASSERT_EQ(list->unreadable.size(), 3u);
  EXPECT_THAT(list->unreadable.at(link), HasSubstr("is a link"));
  EXPECT_THAT(list->unreadable.at(inside), HasSubstr(kManifestFile));
  // They can be deleted, and so can what is left of that.
  std::filesystem::create_directory_symlink(root / ToString(id),
                                            root / (ToString(link) + kDeletedSuffix));
  for (const CheckpointId& other : {link, file, inside}) {
    ASSERT_TRUE(DropCheckpoint(*disk, other).ok()) << ToString(other);
    ASSERT_TRUE(RemoveDropped(*disk, other).ok()) << ToString(other);
  }
  EXPECT_THAT(*disk->List(""), ElementsAre(ToString(id)));
  EXPECT_TRUE(std::filesystem::exists(root / ToString(id) / kManifestFile));
}

TEST(CheckpointStoreTest, AnIdIsNotBegunTwice) {
  MemoryDisk disk;
  ASSERT_TRUE(BeginCheckpoint(disk, Numbered(3), 1).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(BeginCheckpoint(disk, Numbered(3), 2)));
  EXPECT_EQ(*ReadNonce(disk, ToString(Numbered(3)) + kPartialSuffix, kNonceFile), 1u);
  ASSERT_TRUE(WriteTinyCheckpoint(disk, Numbered(4), 5, 1).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(BeginCheckpoint(disk, Numbered(4), 2))) << "it is whole";
  EXPECT_THAT(*disk.List(""),
              UnorderedElementsAre(ToString(Numbered(3)) + kPartialSuffix, ToString(Numbered(4))));
}

TEST(CheckpointStoreTest, WithoutAFileOrWithAnotherSizeItIsNotSealed) {
  for (const bool missing : {true, false}) {
    MemoryDisk disk;
    const CheckpointId id = Numbered(3);
    const std::string folder = ToString(id) + kPartialSuffix;
    ASSERT_TRUE(BeginCheckpoint(disk, id, kTinyNonce).ok());
    CheckpointManifest manifest = TinyManifest(id, 27);
    CheckpointFile* const file = manifest.add_files();
    file->set_name(ShardFileName(ShardId(1)));
    file->set_bytes(100);
    file->set_xxh3(std::string(16, 'x'));
    if (!missing) disk.Put(folder, file->name(), std::string(99, 'x'));
    const absl::Status status = SealCheckpoint(disk, id, manifest).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder), HasSubstr(file->name()),
                      HasSubstr(missing ? "" : "expected 100 bytes, got 99")));
    EXPECT_THAT(Listed(disk), IsEmpty());
    ASSERT_TRUE(DropCheckpoint(disk, id).ok());
    ASSERT_TRUE(RemoveDropped(disk, id).ok());
    EXPECT_THAT(*disk.List(""), IsEmpty());
  }
}

// The sizes are right, and each file is a good one.
TEST(CheckpointStoreTest, WhatNoReaderWouldOpenIsNotSealed) {
  struct Case {
    std::vector<uint32_t> of_three;  // the parts that the files have
    uint64_t step;
    std::string why;
  };
  for (const Case& c : {Case{{0, 1, 2}, 27, ""}, Case{{0, 1}, 27, "expected "},
                        Case{{0, 1, 2, 2}, 27, "another entry has its elements"},
                        Case{{0, 1, 2}, 28, "should have the step 27"}}) {
    MemoryDisk disk;
    const CheckpointId id = Numbered(3);
    ASSERT_TRUE(BeginCheckpoint(disk, id, kTinyNonce).ok());
    CheckpointManifest manifest = TinyManifest(id, 27);
    for (const uint32_t part : c.of_three) {
      CheckpointCapture capture;
      capture.Add(TinyBlocks(27, part, 3));
      const ShardId shard(static_cast<uint32_t>(manifest.files_size()) + 1);
      *manifest.add_files() =
          *WriteShardFile(disk, id, kTinyNonce, c.step, shard, capture, [](uint64_t) {});
    }
    const absl::Status status = SealCheckpoint(disk, id, manifest).status();
    EXPECT_EQ(status.ok(), c.why.empty()) << status;
    EXPECT_EQ(absl::IsDataLoss(status), !c.why.empty()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.why));
    EXPECT_EQ(Listed(disk).size(), c.why.empty() ? 1u : 0u);
  }
}

TEST(CheckpointStoreTest, AManifestOfAnotherCheckpointIsNotSealed) {
  MemoryDisk disk;
  ASSERT_TRUE(WriteTinyCheckpoint(disk, Numbered(1), 5, 1).ok());
  CheckpointManifest manifest = *ParseManifest(*disk.Get(ToString(Numbered(1)), kManifestFile));
  ASSERT_TRUE(BeginCheckpoint(disk, Numbered(2), kTinyNonce).ok());
  EXPECT_TRUE(absl::IsDataLoss(SealCheckpoint(disk, Numbered(2), manifest).status()));
  manifest.clear_files();
  manifest.set_id(ToString(Numbered(2)));
  EXPECT_TRUE(absl::IsDataLoss(SealCheckpoint(disk, Numbered(2), manifest).status()));
}

TEST(CheckpointStoreTest, AShardThatIsLateWritesNothingIntoASealedOne) {
  MemoryDisk disk;
  ASSERT_TRUE(WriteTinyCheckpoint(disk, Numbered(1), 5, 1).ok());
  CheckpointCapture capture;
  capture.Add(TinyBlocks(5, 0, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      WriteShardFile(disk, Numbered(1), kTinyNonce, 5, ShardId(1), capture, [](uint64_t) {
      }).status()));
  EXPECT_TRUE(CheckTinyCheckpoint(std::shared_ptr<CheckpointDisk>(&disk, [](CheckpointDisk*) {}),
                                  Numbered(1), 5)
                  .ok());
}

TEST(CheckpointStoreTest, WhatIsNoCheckpointIsNotListedAndHidesNone) {
  MemoryDisk disk;
  for (const uint64_t number : {10, 9, 1})
    ASSERT_TRUE(WriteTinyCheckpoint(disk, Numbered(number), 5, 2).ok());
  ASSERT_TRUE(WriteRootNonce(disk, kCluster, 7).ok());
  const std::string whole = *disk.Get(ToString(Numbered(1)), kManifestFile);
  disk.Put(ToString(Numbered(2)), kManifestFile, "damaged");
  disk.Put(ToString(Numbered(3)), kManifestFile, whole);  // of another one
  disk.Put(ToString(Numbered(4)), "other", whole);
  disk.Put(ToString(Numbered(5)) + kPartialSuffix, kManifestFile, whole);
  disk.Put(ToString(Numbered(6)) + kDeletedSuffix, kManifestFile, whole);
  disk.Put("backup", kManifestFile, whole);
  EXPECT_THAT(Listed(disk),
              ElementsAre(ToString(Numbered(1)), ToString(Numbered(9)), ToString(Numbered(10))));
}

TEST(CheckpointStoreTest, ADroppedOneIsGoneBeforeItsRoomIsFree) {
  MemoryDisk disk;
  ASSERT_TRUE(WriteTinyCheckpoint(disk, Numbered(1), 5, 2).ok());
  ASSERT_TRUE(DropCheckpoint(disk, Numbered(1)).ok());
  disk.Restart({});
  EXPECT_THAT(Listed(disk), IsEmpty());
  EXPECT_THAT(*disk.List(""), ElementsAre(ToString(Numbered(1)) + kDeletedSuffix));
  ASSERT_TRUE(RemoveDropped(disk, Numbered(1)).ok());
  EXPECT_THAT(*disk.List(""), IsEmpty());
}

TEST(CheckpointStoreTest, WhatCannotBeReadIsNamed) {
  MemoryDisk disk;
  ASSERT_TRUE(WriteTinyCheckpoint(disk, Numbered(1), 5, 1).ok());
  const std::string whole = *disk.Get(ToString(Numbered(1)), kManifestFile);
  disk.Put(ToString(Numbered(2)), kManifestFile, "damaged");
  disk.Put(ToString(Numbered(3)), kManifestFile, whole);
  disk.Put(ToString(Numbered(4)), "other", whole);
  const auto list = ListCheckpoints(disk);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->unreadable.size(), 3u);
  EXPECT_NE(list->unreadable.at(Numbered(2)), "");
  EXPECT_THAT(list->unreadable.at(Numbered(3)), HasSubstr("has the manifest of"));
  EXPECT_THAT(list->unreadable.at(Numbered(4)), HasSubstr(kManifestFile));
  disk.FaultAt(disk.operations() + 1, DiskFault::kIoError);
  EXPECT_TRUE(absl::IsUnavailable(ListCheckpoints(disk).status())) << "it may be a good one";
}

TEST(CheckpointStoreTest, LeftoversOfThisClusterAloneAreRemoved) {
  MemoryDisk disk;
  const CheckpointId whole = Numbered(1), other = Numbered(2, kCluster + 1);
  ASSERT_TRUE(WriteTinyCheckpoint(disk, whole, 5, 2).ok());
  disk.Put(ToString(whole) + kPartialSuffix, "x", "x");
  ASSERT_TRUE(BeginCheckpoint(disk, Numbered(2), 1).ok());
  ASSERT_TRUE(BeginCheckpoint(disk, other, 1).ok());
  disk.Put(ToString(Numbered(2)) + kDeletedSuffix, "x", "x");
  disk.Put(ToString(Numbered(3)) + kDeletedSuffix, "x", "x");
  disk.Put("notes.partial", "x", "x");
  ASSERT_TRUE(RemoveLeftovers(disk, kCluster).ok());
  EXPECT_THAT(
      *disk.List(""),
      UnorderedElementsAre(ToString(whole), ToString(other) + kPartialSuffix, "notes.partial"));
  ASSERT_TRUE(BeginCheckpoint(disk, Numbered(4), 1).ok());
  ASSERT_TRUE(BeginCheckpoint(disk, Numbered(5), 1).ok());
  disk.FaultAt(disk.operations() + 1, DiskFault::kIoError);
  EXPECT_TRUE(absl::IsUnavailable(RemoveLeftovers(disk, kCluster)));
  EXPECT_THAT(*disk.List(""),
              UnorderedElementsAre(ToString(whole), ToString(other) + kPartialSuffix,
                                   ToString(Numbered(4)) + kPartialSuffix, "notes.partial"))
      << "one that cannot be removed keeps none of the others";
}

TEST(CheckpointStoreTest, ShardsFindTheNonceOfTheirCoordinator) {
  MemoryDisk disk;
  EXPECT_TRUE(absl::IsNotFound(ReadRootNonce(disk, kCluster).status()));
  ASSERT_TRUE(WriteRootNonce(disk, kCluster, 7).ok());
  ASSERT_TRUE(WriteRootNonce(disk, kCluster + 1, 8).ok());
  disk.Restart({});
  EXPECT_EQ(*ReadRootNonce(disk, kCluster), 7u);
  EXPECT_EQ(*ReadRootNonce(disk, kCluster + 1), 8u);
  ASSERT_TRUE(WriteRootNonce(disk, kCluster, 9).ok());
  EXPECT_EQ(*ReadRootNonce(disk, kCluster), 9u);
  for (const absl::string_view bad : {"", "9", "00000000000000009", "000000000000000G"}) {
    disk.Put(kRootNonceFolder, ToHex(kCluster), bad);
    EXPECT_TRUE(absl::IsDataLoss(ReadRootNonce(disk, kCluster).status())) << bad;
  }
}

}  // namespace
}  // namespace starling
