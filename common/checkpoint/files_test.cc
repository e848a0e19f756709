// G7 on one disk: whatever fails, and wherever a machine stops, each checkpoint that is listed is
// whole, an earlier one stays, and what is half done can be removed. Damage is always found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/disk.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/store.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "common/checkpoint/testing/tiny_checkpoint.h"
#include "common/defences.h"

namespace starling {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

constexpr uint64_t kFilesCluster = 0xc0ffee;
constexpr uint32_t kFilesShards = 2;

// The checkpoint of step 10 n has number n.
CheckpointId Nth(uint64_t number) { return {kFilesCluster, JobUid(12), number}; }

class CheckpointFilesTest : public ::testing::Test {
 protected:
  absl::Status Write(uint64_t number) {
    return WriteTinyCheckpoint(*disk_, Nth(number), 10 * number, kFilesShards);
  }
  // A new disk, with the first checkpoint.
  void Begin() {
    disk_ = std::make_shared<MemoryDisk>();
    ASSERT_TRUE(Write(1).ok());
  }
  // The numbers of those that are listed, all of which must be whole.
  std::vector<uint64_t> Whole() {
    std::vector<uint64_t> numbers;
    const auto list = ListCheckpoints(*disk_);
    EXPECT_TRUE(list.ok()) << list.status();
    if (!list.ok()) return numbers;
    EXPECT_TRUE(list->unreadable.empty());
    for (const CheckpointInfo& info : list->whole) {
      const uint64_t number = ParseCheckpointId(info.id())->number;
      const absl::Status status = CheckTinyCheckpoint(disk_, Nth(number), 10 * number);
      EXPECT_TRUE(status.ok()) << status;
      numbers.push_back(number);
    }
    return numbers;
  }
  // A new start of the coordinator leaves nothing but what is listed, and goes on.
  void ExpectToGoOn() {
    const std::vector<uint64_t> before = Whole();
    ASSERT_TRUE(RemoveLeftovers(*disk_, kFilesCluster).ok());
    EXPECT_EQ(disk_->List("")->size(), before.size());
    const absl::Status next = Write(3);
    EXPECT_TRUE(next.ok()) << next;
    EXPECT_THAT(Whole(), Contains(3));
  }

  std::shared_ptr<MemoryDisk> disk_;
};

std::vector<Survives> AllSurvivals() {
  std::vector<Survives> all;
  for (int i = 0; i < 8; ++i)
    all.push_back({.data = (i & 1) != 0, .files = (i & 2) != 0, .folders = (i & 4) != 0});
  return all;
}

std::string Words(uint64_t operation, const Survives& survives) {
  return absl::StrCat("operation ", operation, "; survive: data ", survives.data, ", files ",
                      survives.files, ", folders ", survives.folders);
}

TEST_F(CheckpointFilesTest, StoppedAtAnyOperationItIsThereOrNot) {
  for (const Survives& survives : AllSurvivals()) {
    bool done = false;
    uint64_t k = 0;
    for (; !done; ++k) {
      SCOPED_TRACE(Words(k, survives));
      ASSERT_NO_FATAL_FAILURE(Begin());
      disk_->FaultAt(disk_->operations() + k, DiskFault::kCrash);
      done = Write(2).ok();
      disk_->Restart(survives);
      const std::vector<uint64_t> whole = Whole();
      EXPECT_THAT(whole, Contains(1));
      if (done) {
        EXPECT_THAT(whole, ElementsAre(1, 2)) << "it is durable when the call returns";
      }
      ASSERT_NO_FATAL_FAILURE(ExpectToGoOn());
    }
    EXPECT_GT(k, 40u);
  }
}

TEST_F(CheckpointFilesTest, StoppedWhileOneIsDeletedItIsThereOrNot) {
  for (const Survives& survives : AllSurvivals()) {
    bool done = false;
    uint64_t k = 0;
    for (; !done; ++k) {
      SCOPED_TRACE(Words(k, survives));
      ASSERT_NO_FATAL_FAILURE(Begin());
      ASSERT_TRUE(Write(2).ok());
      disk_->FaultAt(disk_->operations() + k, DiskFault::kCrash);
      done = DropCheckpoint(*disk_, Nth(1)).ok() && RemoveDropped(*disk_, Nth(1)).ok();
      disk_->Restart(survives);
      const std::vector<uint64_t> whole = Whole();
      EXPECT_THAT(whole, Contains(2));
      if (done) {
        EXPECT_THAT(whole, ElementsAre(2));
      }
      ASSERT_NO_FATAL_FAILURE(ExpectToGoOn());
    }
    EXPECT_GT(k, 6u);
  }
}

TEST_F(CheckpointFilesTest, ADiskThatIsFullOrFailsLeavesTheEarlierOne) {
  for (const DiskFault fault : {DiskFault::kNoSpace, DiskFault::kIoError}) {
    bool done = false;
    uint64_t k = 0;
    for (; !done; ++k) {
      SCOPED_TRACE(absl::StrCat("operation ", k, " fault ", static_cast<int>(fault)));
      ASSERT_NO_FATAL_FAILURE(Begin());
      disk_->FaultAt(disk_->operations() + k, fault);
      const absl::Status status = Write(2);
      disk_->FaultAt(0, DiskFault::kNone);  // the last one is not reached
      done = status.ok();
      const absl::StatusCode code = fault == DiskFault::kNoSpace
                                        ? absl::StatusCode::kResourceExhausted
                                        : absl::StatusCode::kUnavailable;
      if (!done) {
        EXPECT_EQ(status.code(), code) << status;
        ASSERT_TRUE(DropCheckpoint(*disk_, Nth(2)).ok());
        ASSERT_TRUE(RemoveDropped(*disk_, Nth(2)).ok());
        EXPECT_THAT(*disk_->List(""), ElementsAre(ToString(Nth(1))));
      }
      EXPECT_THAT(Whole(), Contains(1));
      ASSERT_NO_FATAL_FAILURE(ExpectToGoOn());
    }
    EXPECT_GT(k, 40u);
  }
}

TEST_F(CheckpointFilesTest, WhatIsStoredWronglyIsNeverListed) {
  for (const DiskFault fault : {DiskFault::kFlipBit, DiskFault::kDropHalf}) {
    uint32_t found = 0;
    for (uint64_t k = 0;; ++k) {
      SCOPED_TRACE(absl::StrCat("operation ", k, " fault ", static_cast<int>(fault)));
      ASSERT_NO_FATAL_FAILURE(Begin());
      const uint64_t first = disk_->operations();
      disk_->FaultAt(first + k, fault);
      const absl::Status status = Write(2);
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
      if (!status.ok()) {
        ++found;
        ASSERT_TRUE(DropCheckpoint(*disk_, Nth(2)).ok());
        ASSERT_TRUE(RemoveDropped(*disk_, Nth(2)).ok());
      }
      const bool beyond = first + k >= disk_->operations();
      disk_->Restart(
          {.data = true, .files = true, .folders = true});  // what is stored is what is read now
      if (status.ok()) {
        EXPECT_THAT(Whole(), ElementsAre(1, 2));
      } else {
        EXPECT_THAT(Whole(), ElementsAre(1));
      }
      if (beyond) break;
    }
    EXPECT_GT(found, 20u) << "of entries, headers and the manifest";
  }
}

TEST_F(CheckpointFilesTest, EachBitAndEachLengthOfAFileIsChecked) {
  disk_ = std::make_shared<MemoryDisk>();
  ASSERT_TRUE(WriteTinyCheckpoint(*disk_, Nth(1), 10, 1).ok());
  const std::string folder = ToString(Nth(1));
  const auto detected = [&] { return !CheckTinyCheckpoint(disk_, Nth(1), 10).ok(); };
  size_t total = 0;
  const std::vector<std::string> names = *disk_->List(folder);
  for (const std::string& name : names) {
    const std::string whole = *disk_->Get(folder, name);
    total += whole.size();
    for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      disk_->Put(folder, name, damaged);
      ASSERT_TRUE(detected()) << name << ", bit " << bit;
    }
    for (size_t size = 0; size < whole.size(); ++size) {
      disk_->Put(folder, name, whole.substr(0, size));
      ASSERT_TRUE(detected()) << name << ", " << size << " bytes";
    }
    disk_->Put(folder, name, whole + '\0');
    ASSERT_TRUE(detected()) << name;
    disk_->Put(folder, name, whole);
    ASSERT_FALSE(detected());
  }
  EXPECT_LE(total, 8192u);
}

#ifdef STARLING_MUTANTS  // bazel test --config=mutants

// Whether some fault leaves a checkpoint that is listed, or was said to be there, and is not whole.
bool SomeFaultBreaksIt(Defence masked) {
  constexpr uint64_t kBeyondTheLast = 100;
  for (const DiskFault fault : {DiskFault::kCrash, DiskFault::kFlipBit, DiskFault::kDropHalf}) {
    for (const Survives& survives : AllSurvivals()) {
      for (uint64_t k = 0; k < kBeyondTheLast; ++k) {
        const auto disk = std::make_shared<MemoryDisk>();
        disk->FaultAt(k, fault);
        MaskDefence(masked);
        const bool done = WriteTinyCheckpoint(*disk, Nth(1), 10, kFilesShards).ok();
        MaskDefence(Defence::kCount);
        // A disk that stores wrongly keeps all that it stores.
        disk->Restart(fault == DiskFault::kCrash ? survives : AllSurvivals().back());
        const auto list = ListCheckpoints(*disk);
        if (!list.ok() || !list->unreadable.empty()) return true;
        if (done && list->whole.empty()) return true;
        if (!list->whole.empty() && !CheckTinyCheckpoint(disk, Nth(1), 10).ok()) return true;
      }
    }
  }
  return false;
}

TEST(CheckpointDefencesTest, EachIsNeeded) {
  EXPECT_FALSE(SomeFaultBreaksIt(Defence::kCount));
  for (const Defence defence : {Defence::kReadBack, Defence::kFileSync, Defence::kFolderSync})
    EXPECT_TRUE(SomeFaultBreaksIt(defence)) << DefenceName(defence);
}

#endif

// The same code on a real file system.
TEST(CheckpointFilesOnDiskTest, AreWrittenListedReadAndRemoved) {
  const std::shared_ptr<CheckpointDisk> disk = *OpenCheckpointDisk(std::getenv("TEST_TMPDIR"));
  for (const uint64_t number : {1, 2})
    ASSERT_TRUE(WriteTinyCheckpoint(*disk, Nth(number), 10 * number, 3).ok());
  ASSERT_TRUE(BeginCheckpoint(*disk, Nth(3), kTinyNonce).ok());
  const auto list = ListCheckpoints(*disk);
  ASSERT_TRUE(list.ok() && list->whole.size() == 2u);
  for (const uint64_t number : {1, 2}) {
    const absl::Status status = CheckTinyCheckpoint(disk, Nth(number), 10 * number);
    EXPECT_TRUE(status.ok()) << status;
  }
  ASSERT_TRUE(RemoveLeftovers(*disk, kFilesCluster).ok());
  ASSERT_TRUE(DropCheckpoint(*disk, Nth(1)).ok());
  ASSERT_TRUE(RemoveDropped(*disk, Nth(1)).ok());
  const auto left = ListCheckpoints(*disk);
  ASSERT_TRUE(left.ok() && left->whole.size() == 1u);
  EXPECT_EQ(left->whole.at(0).id(), ToString(Nth(2)));
  EXPECT_TRUE(absl::IsNotFound(disk->List(ToString(Nth(1))).status()));
  EXPECT_TRUE(absl::IsNotFound(disk->List(ToString(Nth(3)) + kPartialSuffix).status()));
}

}  // namespace
}  // namespace starling
