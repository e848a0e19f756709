#include "common/checkpoint/shard_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/store.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "common/checkpoint/testing/tiny_checkpoint.h"
#include "common/protocol/limits.h"
#include "common/safetensors/safetensors.h"

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const CheckpointId kFileId{0xc0ffee, JobUid(12), 3};
const std::string kFileFolder = ToString(kFileId) + kPartialSuffix;
const std::string kFileName = "shard-0000000001.safetensors";

class ShardFileTest : public ::testing::Test {
 protected:
  ShardFileTest() {
    EXPECT_TRUE(BeginCheckpoint(disk_, kFileId, kTinyNonce).ok());
    capture_.Add(TinyBlocks(27, 0, 1));
  }
  absl::StatusOr<CheckpointFile> Write(uint64_t nonce = kTinyNonce) {
    return WriteShardFile(disk_, kFileId, nonce, 27, ShardId(1), capture_, [this](uint64_t bytes) {
      EXPECT_GT(bytes, progress_);
      progress_ = bytes;
      if (++calls_ == give_up_after_) capture_.GiveUp("an update needs it");
    });
  }
  std::vector<std::string> Files() { return *disk_.List(kFileFolder); }

  MemoryDisk disk_;
  CheckpointCapture capture_;
  uint64_t progress_ = 0;
  int calls_ = 0, give_up_after_ = 0;
};

TEST_F(ShardFileTest, AnyReaderOfTheFormatFindsItsEntries) {
  const auto file = Write();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name(), kFileName);
  EXPECT_THAT(Files(), ElementsAre("nonce", kFileName));
  EXPECT_EQ(progress_, 2 * file->bytes()) << "written and read back";
  EXPECT_TRUE(capture_.Names().empty()) << "what is written is released";
  const std::string bytes = *disk_.Get(kFileFolder, kFileName);
  ASSERT_EQ(bytes.size(), file->bytes());
  const auto header =
      safetensors::ReadHeader(bytes.size(), [&](uint64_t offset, absl::Span<uint8_t> out) {
        std::copy_n(bytes.begin() + offset, out.size(), out.begin());
        return absl::OkStatus();
      });
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->metadata.at("starling"), "checkpoint/1");
  EXPECT_EQ(header->metadata.at("id"), "0000000000c0ffee-12-3");
  EXPECT_EQ(header->metadata.at("step"), "27");
  std::vector<std::string> names;
  for (const safetensors::TensorInfo& entry : header->tensors) {
    const auto name = *ParseBlockName(entry.name);
    names.push_back(entry.name);
    for (uint64_t i = 0; i < entry.shape.at(0); ++i) {
      float value;
      std::memcpy(&value, bytes.data() + header->data_begin + entry.begin + 4 * i, 4);
      EXPECT_EQ(value, TinyValue(27, name.parameter, name.part, name.begin + i)) << entry.name;
    }
  }
  EXPECT_THAT(names, ElementsAre("conv.weight@0", "conv.weight@0.slot0", "conv.weight@7",
                                 "conv.weight@7.slot0", "conv.weight@14", "conv.weight@14.slot0",
                                 "conv@2@0", "conv@2@0.slot0", "norm.mean@0", "table@0"));
}

TEST_F(ShardFileTest, ItIsDurableBeforeAnyoneElseSyncsTheFolder) {
  const auto file = Write();
  ASSERT_TRUE(file.ok()) << file.status();
  disk_.Restart({});
  const auto bytes = disk_.Get(kFileFolder, kFileName);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->size(), file->bytes());
}

TEST_F(ShardFileTest, AnotherRootIsNotWrittenTo) {
  const absl::Status other = Write(kTinyNonce + 1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("expected 000000000000feee, got 000000000000feed"));
  EXPECT_THAT(Files(), ElementsAre("nonce"));
  ASSERT_TRUE(DropCheckpoint(disk_, kFileId).ok());
  ASSERT_TRUE(RemoveDropped(disk_, kFileId).ok());
  const absl::Status gone = Write().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(gone)) << gone;
  EXPECT_TRUE(disk_.List("")->empty()) << "no folder is made";
}

// It may count already: the one before it had this shard's id, too.
TEST_F(ShardFileTest, AFileThatIsThereStays) {
  const auto first = Write();
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string bytes = *disk_.Get(kFileFolder, kFileName);
  CheckpointCapture again;
  again.Add(TinyBlocks(27, 0, 2));
  const absl::Status status =
      WriteShardFile(disk_, kFileId, kTinyNonce, 27, ShardId(1), again, [](uint64_t) {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("it is written once"));
  EXPECT_EQ(*disk_.Get(kFileFolder, kFileName), bytes);
}

TEST_F(ShardFileTest, GivenUpItLeavesNoFile) {
  give_up_after_ = 3;
  EXPECT_EQ(Write().status(), absl::AbortedError("an update needs it"));
  EXPECT_EQ(calls_, 3) << "it stops with the next block";
  EXPECT_THAT(Files(), ElementsAre("nonce"));
  EXPECT_TRUE(absl::IsAborted(Write().status())) << "before the first";
  EXPECT_EQ(calls_, 3);
  EXPECT_THAT(Files(), ElementsAre("nonce"));
}

TEST_F(ShardFileTest, ValuesThatAreNotFiniteAreNotWritten) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    const auto values = std::make_shared<std::vector<float>>(4, 1.0f);
    (*values)[2] = bad;
    CheckpointCapture capture;
    capture.Add({CapturedBlock{BlockName{"a", 8, BlockPart::kSlot1}, *values, values}});
    const absl::Status status =
        WriteShardFile(disk_, kFileId, kTinyNonce, 27, ShardId(1), capture, [](uint64_t) {
        }).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("element 2 of a@8.slot1 is "));
    EXPECT_THAT(Files(), ElementsAre("nonce"));
  }
}

TEST_F(ShardFileTest, WhatTheDiskStoresWronglyIsFoundWhenItIsReadBack) {
  for (const DiskFault fault : {DiskFault::kFlipBit, DiskFault::kDropHalf}) {
    for (const int append : {0, 1, 7}) {  // the header, values
      CheckpointCapture capture;
      capture.Add(TinyBlocks(27, 0, 1));
      const uint64_t before = 4;  // open and read the nonce, look for the file, create
      disk_.FaultAt(disk_.operations() + before + append, fault);
      const absl::Status status =
          WriteShardFile(disk_, kFileId, kTinyNonce, 27, ShardId(1), capture, [](uint64_t) {
          }).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(kFileName, ", read back")));
      EXPECT_THAT(Files(), ElementsAre("nonce"));
    }
  }
}

TEST_F(ShardFileTest, ABlockThatChangesWhileItIsWrittenIsFound) {
  auto values = std::make_shared<std::vector<float>>(4, 1.0f);
  CheckpointCapture capture;
  for (const std::string parameter : {"a", "b"})
    capture.Add({CapturedBlock{BlockName{parameter, 0}, *values, values}});
  const absl::Status status =
      WriteShardFile(disk_, kFileId, kTinyNonce, 27, ShardId(1), capture, [&](uint64_t) {
        (*values)[0] = 2;
      }).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("entry a@0: expected the digest"));
}

TEST_F(ShardFileTest, ALargeFileIsSyncedWhileItIsWritten) {
  const auto values = std::make_shared<std::vector<float>>(limits::kSliceElementsMax, 1.0f);
  CheckpointCapture capture;
  std::vector<CapturedBlock> blocks;
  for (uint64_t i = 0; i < 66; ++i)  // of 1 MiB
    blocks.push_back({BlockName{"w", i * limits::kSliceElementsMax}, *values, values});
  capture.Add(std::move(blocks));
  // The nonce, whether the file is there, the file; the header, blocks and a sync.
  const uint64_t before = 3 + 1 + 1 + 64 + 1;
  disk_.FaultAt(disk_.operations() + before, DiskFault::kCrash);
  EXPECT_FALSE(
      WriteShardFile(disk_, kFileId, kTinyNonce, 27, ShardId(1), capture, [](uint64_t) {}).ok());
  disk_.Restart({.data = false, .files = true, .folders = true});
  EXPECT_GE(disk_.Get(kFileFolder, kFileName + kPartialSuffix)->size(), 64u << 20);
}

TEST_F(ShardFileTest, AFileOfAnotherCheckpointIsRefused) {
  ASSERT_TRUE(Write().ok());
  const auto file = *disk_.Open(kFileFolder, kFileName);
  EXPECT_TRUE(ReadShardFileHeader(*file, kFileId, 27).ok());
  const absl::Status step = ReadShardFileHeader(*file, kFileId, 28).status();
  EXPECT_TRUE(absl::IsDataLoss(step));
  EXPECT_THAT(std::string(step.message()), HasSubstr("the step 28, not 27"));
  const absl::Status id = ReadShardFileHeader(*file, {1, JobUid(12), 3}, 27).status();
  EXPECT_THAT(std::string(id.message()), HasSubstr("the id 0000000000000001-12-3, not"));
}

// A file with these entries and metadata, whatever they are.
absl::Status HeaderOf(std::vector<safetensors::TensorInfo> entries,
                      const std::map<std::string, std::string>& change) {
  std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"starling", "checkpoint/1"}, {"id", ToString(kFileId)}, {"step", "27"}};
  metadata["digests"] = std::string(16 * entries.size(), '0');
  for (const auto& [key, value] : change) metadata[key] = value;
  std::string bytes = *safetensors::EncodeHeader(&entries, metadata);
  if (!entries.empty()) bytes.resize(bytes.size() + entries.back().end);
  MemoryDisk disk;
  disk.Put("a", "b", bytes);
  return ReadShardFileHeader(**disk.Open("a", "b"), kFileId, 27).status();
}

TEST(ShardFileHeaderTest, WhatNoShardWritesIsRefused) {
  using safetensors::DType;
  EXPECT_TRUE(HeaderOf({{.name = "a@0", .shape = {2}}}, {}).ok());
  EXPECT_TRUE(HeaderOf({}, {}).ok());
  const auto refused = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused(HeaderOf({{.name = "a", .shape = {2}}}, {})), HasSubstr("entry a: "));
  EXPECT_THAT(refused(HeaderOf({{.name = "a@0", .dtype = DType::kF16, .shape = {2}}}, {})),
              HasSubstr("got F16[2]"));
  EXPECT_THAT(refused(HeaderOf({{.name = "a@0", .shape = {2, 1}}}, {})), HasSubstr("F32[2,1]"));
  EXPECT_THAT(refused(HeaderOf({{.name = "a@0", .shape = {0}}}, {})), HasSubstr("F32[0]"));
  EXPECT_THAT(refused(HeaderOf({{.name = "a@0", .shape = {limits::kSliceElementsMax + 1}}}, {})),
              HasSubstr("F32[262145]"));
  EXPECT_THAT(refused(HeaderOf({{.name = "a@0", .shape = {2}}}, {{"digests", "00"}})),
              HasSubstr("expected 1 digests of 16 digits, got 2 digits"));
  EXPECT_THAT(refused(HeaderOf({{.name = "a@0", .shape = {2}}}, {{"digests", "000000000000000G"}})),
              HasSubstr("and a digest"));
  EXPECT_THAT(refused(HeaderOf({}, {{"starling", "checkpoint/2"}})),
              HasSubstr("checkpoint/1, not checkpoint/2"));
  MemoryDisk disk;
  disk.Put("a", "b", "1234567");
  EXPECT_THAT(refused(ReadShardFileHeader(**disk.Open("a", "b"), kFileId, 27).status()),
              HasSubstr("truncated"));
  disk.Put("a", "b", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(refused(ReadShardFileHeader(**disk.Open("a", "b"), kFileId, 27).status()),
              HasSubstr("its header has no digests"));
}

}  // namespace
}  // namespace starling
