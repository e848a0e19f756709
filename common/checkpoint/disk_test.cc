// What every CheckpointDisk does alike, and what only the one in memory or the real one does.
#include "common/checkpoint/disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/testing/memory_disk.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

fs::path FreshRoot() {
  static int count = 0;
  const fs::path root = fs::path(std::getenv("TEST_TMPDIR")) / absl::StrCat("disk", count++);
  fs::create_directories(root);
  return root;
}

void WriteFile(CheckpointDisk& disk, const std::string& folder, const std::string& name,
               absl::string_view bytes) {
  const auto file = disk.Create(folder, name);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(bytes.substr(0, bytes.size() / 3)).ok());
  ASSERT_TRUE((*file)->Append(bytes.substr(bytes.size() / 3)).ok());
  ASSERT_TRUE((*file)->Sync().ok());
}

std::string ReadFile(CheckpointDisk& disk, const std::string& folder, const std::string& name,
                     bool from_disk = false) {
  const auto text = ReadWholeFile(disk, folder, name, 1000, from_disk);
  return text.ok() ? *text : text.status().ToString();
}

class AnyDiskTest : public ::testing::TestWithParam<bool> {
 protected:
  AnyDiskTest() {
    if (GetParam()) {
      disk_ = std::make_unique<MemoryDisk>();
    } else {
      disk_ = *OpenCheckpointDisk(FreshRoot().string());
    }
    EXPECT_TRUE(disk_->MakeFolder("a").ok());
  }
  std::unique_ptr<CheckpointDisk> disk_;
};

TEST_P(AnyDiskTest, AFileIsWrittenRenamedReadAndRemoved) {
  WriteFile(*disk_, "a", "one", "some text");
  EXPECT_TRUE(disk_->SyncFolder("a").ok());
  EXPECT_TRUE(disk_->SyncFolder("").ok());
  EXPECT_THAT(*disk_->List(""), ElementsAre("a"));
  EXPECT_THAT(*disk_->List("a"), ElementsAre("one"));
  EXPECT_EQ(ReadFile(*disk_, "a", "one"), "some text");
  EXPECT_EQ(ReadFile(*disk_, "a", "one", /*from_disk=*/true), "some text");
  WriteFile(*disk_, "a", "two", "other");
  ASSERT_TRUE(disk_->Rename("a", "two", "one").ok()) << "replaces the file";
  EXPECT_EQ(ReadFile(*disk_, "a", "one"), "other");
  ASSERT_TRUE(disk_->Remove("a", "one").ok());
  EXPECT_THAT(*disk_->List("a"), IsEmpty());
  ASSERT_TRUE(disk_->Remove("", "a").ok());
  EXPECT_THAT(*disk_->List(""), IsEmpty());
}

TEST_P(AnyDiskTest, WhatIsNotThereIsNotFound) {
  WriteFile(*disk_, "a", "one", "x");
  for (const absl::Status& status :
       {disk_->List("b").status(), disk_->Create("b", "one").status(),
        disk_->Open("b", "one").status(), disk_->Open("a", "two").status(),
        disk_->Rename("a", "two", "three"), disk_->Rename("", "b", "c"), disk_->Remove("a", "two"),
        disk_->Remove("", "b"), disk_->Remove("b", "one"), disk_->SyncFolder("b")}) {
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
  }
  EXPECT_THAT(*disk_->List(""), ElementsAre("a")) << "nothing makes folders by the way";
}

TEST_P(AnyDiskTest, FoldersAreNeitherMadeTwiceNorReplacedNorRemovedWithFiles) {
  WriteFile(*disk_, "a", "one", "x");
  EXPECT_TRUE(absl::IsAlreadyExists(disk_->MakeFolder("a")));
  ASSERT_TRUE(disk_->MakeFolder("b").ok());
  EXPECT_TRUE(absl::IsUnavailable(disk_->Rename("", "b", "a")));
  EXPECT_TRUE(absl::IsUnavailable(disk_->Remove("", "a")));
  ASSERT_TRUE(disk_->Rename("", "a", "c").ok());
  EXPECT_EQ(ReadFile(*disk_, "c", "one"), "x");
  EXPECT_THAT(*disk_->List(""), UnorderedElementsAre("b", "c"));
}

TEST_P(AnyDiskTest, NamesDoNotLeadAnywhereElse) {
  for (const std::string& bad :
       std::vector<std::string>{"..", ".", "a/b", "/a", std::string("a\0b", 3)}) {
    for (const absl::Status& status :
         {disk_->List(bad).status(), disk_->MakeFolder(bad), disk_->Create(bad, "x").status(),
          disk_->Create("a", bad).status(), disk_->Open(bad, "x").status(),
          disk_->Open("a", bad).status(), disk_->Rename("a", bad, "x"),
          disk_->Rename("a", "x", bad), disk_->Remove("a", bad), disk_->SyncFolder(bad)}) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad << " " << status;
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(disk_->Create("", "x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(disk_->Open("", "x").status()));
}

TEST_P(AnyDiskTest, AnOpenFileStaysAsItIs) {
  WriteFile(*disk_, "a", "one", "first");
  const auto open = disk_->Open("a", "one");
  ASSERT_TRUE(open.ok()) << open.status();
  WriteFile(*disk_, "a", "one", "the second");
  ASSERT_TRUE(disk_->Rename("", "a", "b").ok());
  ASSERT_TRUE(disk_->Remove("b", "one").ok());
  ASSERT_EQ((*open)->bytes(), 5u);
  std::vector<uint8_t> bytes(3);
  ASSERT_TRUE((*open)->ReadAt(2, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "rst");
  EXPECT_TRUE(absl::IsDataLoss((*open)->ReadAt(3, absl::MakeSpan(bytes))));
}

TEST_P(AnyDiskTest, WholeFilesHaveALimitAndLeaveNoPartOfThem) {
  ASSERT_TRUE(WriteWholeFile(*disk_, "a", "one", "0123456789").ok());
  EXPECT_THAT(*disk_->List("a"), ElementsAre("one"));
  EXPECT_EQ(*ReadWholeFile(*disk_, "a", "one", 10), "0123456789");
  EXPECT_TRUE(absl::IsDataLoss(ReadWholeFile(*disk_, "a", "one", 9).status()));
  ASSERT_TRUE(WriteWholeFile(*disk_, "a", "one", "").ok());
  EXPECT_EQ(*ReadWholeFile(*disk_, "a", "one", 10), "");
}

INSTANTIATE_TEST_SUITE_P(Disks, AnyDiskTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? std::string("Memory") : std::string("Posix");
});

TEST(PosixDiskTest, FollowsNoLinkAndWaitsForNoPipe) {
  const fs::path root = FreshRoot(), outside = FreshRoot();
  std::ofstream(outside / "file") << "x";
  fs::create_directory(root / "a");
  fs::create_directory_symlink(outside, root / "folder");
  fs::create_symlink(outside / "file", root / "a" / "link");
  ASSERT_EQ(mkfifo((root / "a" / "pipe").c_str(), 0600), 0);
  const auto disk = *OpenCheckpointDisk(root.string());
  EXPECT_TRUE(absl::IsInvalidArgument(disk->Open("folder", "file").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(disk->Create("folder", "new").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(disk->List("folder").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(disk->Open("a", "link").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(disk->Open("a", "pipe").status()));
  WriteFile(*disk, "a", "link", "y");  // the link is replaced, not followed
  std::string content;
  std::ifstream(outside / "file") >> content;
  EXPECT_EQ(content, "x");
  EXPECT_FALSE(fs::exists(outside / "new"));
  EXPECT_TRUE(disk->Remove("", "folder").ok()) << "the link, not what it leads to";
  EXPECT_FALSE(fs::is_symlink(root / "folder"));
  EXPECT_TRUE(fs::exists(outside / "file"));
}

TEST(PosixDiskTest, WhatMayNotBeOpenedIsNoFaultOfTheDisk) {
  if (geteuid() == 0) GTEST_SKIP() << "root may open everything";
  const fs::path root = FreshRoot();
  const auto disk = *OpenCheckpointDisk(root.string());
  for (const char* folder : {"mine", "others"}) {
    ASSERT_TRUE(disk->MakeFolder(folder).ok());
    WriteFile(*disk, folder, "file", "x");
  }
  fs::permissions(root / "others", fs::perms::none);
  fs::permissions(root / "mine" / "file", fs::perms::none);
  for (const absl::Status& status :
       {disk->List("others").status(), disk->Open("others", "file").status(),
        disk->Create("others", "new").status(), disk->Open("mine", "file").status()}) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  }
  fs::permissions(root, fs::perms::owner_exec);
  EXPECT_TRUE(absl::IsUnavailable(disk->List("").status())) << disk->List("").status();
  for (const fs::path& path : {root, root / "others", root / "mine" / "file"})
    fs::permissions(path, fs::perms::owner_all);
}

TEST(PosixDiskTest, ItsRootMayGoAndComeBack) {
  const fs::path root = FreshRoot();
  const auto disk = *OpenCheckpointDisk(root.string());
  fs::rename(root, root.string() + ".away");
  const absl::Status gone = disk->MakeFolder("a");
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr(root.string()));
  EXPECT_TRUE(absl::IsUnavailable(OpenCheckpointDisk(root.string()).status()));
  fs::rename(root.string() + ".away", root);
  EXPECT_TRUE(disk->MakeFolder("a").ok());
}

TEST(MemoryDiskTest, ACrashLosesWhatWasNotSynced) {
  for (const bool data : {false, true}) {
    for (const bool files : {false, true}) {
      const bool folders = data != files;
      MemoryDisk disk;
      disk.Put("a", "old", "old");
      const auto file = disk.Create("a", "new");
      ASSERT_TRUE((*file)->Append("synced ").ok());
      ASSERT_TRUE((*file)->Sync().ok());
      ASSERT_TRUE((*file)->Append("and not").ok());
      ASSERT_TRUE(disk.Rename("a", "new", "newer").ok());
      ASSERT_TRUE(disk.Remove("a", "old").ok());
      ASSERT_TRUE(disk.MakeFolder("b").ok());
      disk.FaultAt(disk.operations(), DiskFault::kCrash);
      EXPECT_TRUE(absl::IsUnavailable(disk.SyncFolder("a")));
      EXPECT_TRUE(absl::IsUnavailable(disk.SyncFolder("a"))) << "it stays down";
      disk.Restart({.data = data, .files = files, .folders = folders});
      EXPECT_TRUE(absl::IsUnavailable((*file)->Append("x"))) << "it is not open any more";
      EXPECT_EQ(disk.List("")->size(), folders ? 2u : 1u);
      if (!files) {
        EXPECT_THAT(*disk.List("a"), ElementsAre("old"));
      } else {
        EXPECT_THAT(*disk.List("a"), ElementsAre("newer"));
        EXPECT_EQ(ReadFile(disk, "a", "newer"), data ? "synced and not" : "synced ");
      }
    }
  }
}

TEST(MemoryDiskTest, WhatACrashWouldLeaveIsAnotherDisk) {
  MemoryDisk disk;
  disk.Put("a", "old", "old");
  const auto file = disk.Create("a", "new");
  ASSERT_TRUE((*file)->Append("text").ok());
  const auto without = disk.AfterCrash({});
  const auto with = disk.AfterCrash({.data = true, .files = true});
  EXPECT_THAT(*without->List("a"), ElementsAre("old"));
  EXPECT_THAT(*with->List("a"), ElementsAre("new", "old"));
  EXPECT_EQ(ReadFile(*with, "a", "new"), "text");
  ASSERT_TRUE(with->Remove("a", "old").ok());
  ASSERT_TRUE((*file)->Append(" and more").ok()) << "it is still open";
  EXPECT_EQ(ReadFile(disk, "a", "new"), "text and more");
  EXPECT_EQ(ReadFile(disk, "a", "old"), "old");
  EXPECT_EQ(ReadFile(*with, "a", "new"), "text");
}

TEST(MemoryDiskTest, FaultsComeWhenTheyAreAskedFor) {
  MemoryDisk disk;
  disk.Put("a", "x", "");
  disk.FaultAt(disk.operations() + 1, DiskFault::kNoSpace);
  const auto full = disk.Create("a", "full");
  EXPECT_TRUE(absl::IsResourceExhausted((*full)->Append("abcd")));
  EXPECT_EQ(*disk.Get("a", "full"), "ab");
  EXPECT_TRUE((*full)->Append("cd").ok()) << "once";

  disk.FaultAt(disk.operations(), DiskFault::kFlipBit);  // waits for the Append
  const auto flipped = disk.Create("a", "flipped");
  ASSERT_TRUE((*flipped)->Append("aaaa").ok());
  EXPECT_EQ(ReadFile(disk, "a", "flipped"), "aaaa") << "what is cached is whole";
  EXPECT_EQ(ReadFile(disk, "a", "flipped", /*from_disk=*/true), "aeaa");

  disk.FaultAt(disk.operations(), DiskFault::kDropHalf);
  const auto dropped = disk.Create("a", "dropped");
  ASSERT_TRUE((*dropped)->Append("aaaa").ok());
  EXPECT_EQ(ReadFile(disk, "a", "dropped", /*from_disk=*/true), "aa");
}

}  // namespace
}  // namespace starling
