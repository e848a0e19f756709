#include "common/checkpoint/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/store.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "common/checkpoint/testing/tiny_checkpoint.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

const CheckpointId kReadId{0xc0ffee, JobUid(12), 3};
constexpr uint64_t kReadStep = 27;

// A block of three elements.
std::vector<CapturedBlock> Three(const BlockName& name) {
  const auto values = std::make_shared<std::vector<float>>(3);
  return {CapturedBlock{name, *values, values}};
}

class CheckpointReaderTest : public ::testing::Test {
 protected:
  // Shards with these blocks, which need not be those of the job.
  void Write(const std::vector<std::vector<CapturedBlock>>& shards) {
    ASSERT_TRUE(BeginCheckpoint(*disk_, kReadId, kTinyNonce).ok());
    CheckpointManifest manifest = TinyManifest(kReadId, kReadStep);
    for (uint32_t shard = 1; shard <= shards.size(); ++shard) {
      CheckpointCapture capture;
      capture.Add(shards[shard - 1]);
      *manifest.add_files() = *WriteShardFile(*disk_, kReadId, kTinyNonce, kReadStep,
                                              ShardId(shard), capture, [](uint64_t) {});
    }
    // Not by SealCheckpoint, which would refuse what is wrong here.
    const std::string partial = ToString(kReadId) + kPartialSuffix;
    ASSERT_TRUE(WriteWholeFile(*disk_, partial, kManifestFile, EncodeManifest(manifest)).ok());
    ASSERT_TRUE(disk_->Rename("", partial, ToString(kReadId)).ok());
  }
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(std::optional<uint64_t> digest = {}) {
    return CheckpointReader::Open(disk_, kReadId, digest);
  }
  std::string WhyNotOpen() {
    const absl::Status status = Open().status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }
  void FlipLastBit(const std::string& name) {
    std::string bytes = *disk_->Get(ToString(kReadId), name);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    disk_->Put(ToString(kReadId), name, bytes);
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
};

TEST_F(CheckpointReaderTest, AnyCutIsReadFromAnyNumberOfShards) {
  for (const uint32_t shards : {1, 2, 5}) {
    const CheckpointId id{0xc0ffee, JobUid(12), shards};
    ASSERT_TRUE(WriteTinyCheckpoint(*disk_, id, kReadStep, shards).ok());
    const auto reader = CheckpointReader::Open(disk_, id, std::nullopt);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->manifest().step(), kReadStep);
    for (const BlockPart part : {BlockPart::kValue, BlockPart::kSlot0}) {
      for (uint64_t begin = 0; begin <= 16; ++begin) {
        for (uint64_t count = 0; count <= 16 - begin; ++count) {
          std::vector<float> out(count);
          ASSERT_TRUE((*reader)->Read("conv.weight", begin, part, absl::MakeSpan(out)).ok());
          for (uint64_t i = 0; i < count; ++i)
            ASSERT_EQ(out[i], TinyValue(kReadStep, "conv.weight", part, begin + i));
        }
      }
    }
  }
}

TEST_F(CheckpointReaderTest, WhatIsNotInItIsNotFound) {
  ASSERT_TRUE(WriteTinyCheckpoint(*disk_, kReadId, kReadStep, 2).ok());
  const auto reader = *Open();
  std::vector<float> out(2);
  const auto read = [&](absl::string_view parameter, uint64_t begin, BlockPart part) {
    return reader->Read(parameter, begin, part, absl::MakeSpan(out));
  };
  EXPECT_TRUE(read("norm.mean", 3, BlockPart::kValue).ok());
  const absl::Status behind = read("norm.mean", 4, BlockPart::kValue);
  EXPECT_TRUE(absl::IsNotFound(behind));
  EXPECT_THAT(std::string(behind.message()), HasSubstr("no entry for norm.mean@5"));
  EXPECT_TRUE(absl::IsNotFound(read("norm.mean", 0, BlockPart::kSlot0)));
  EXPECT_TRUE(absl::IsNotFound(read("conv.weight", 0, BlockPart::kSlot1)));
  EXPECT_TRUE(absl::IsNotFound(read("conv.weight", 0, BlockPart::kEvaluation)));
  EXPECT_TRUE(absl::IsNotFound(read("nothing", 0, BlockPart::kValue)));
  EXPECT_TRUE(absl::IsNotFound(read("norm.mean", ~uint64_t{0}, BlockPart::kValue)));
  EXPECT_TRUE(
      absl::IsNotFound(CheckpointReader::Open(disk_, {1, JobUid(12), 3}, std::nullopt).status()));
}

TEST_F(CheckpointReaderTest, OnlyTheManifestThatWasChosenIsTaken) {
  ASSERT_TRUE(WriteTinyCheckpoint(*disk_, kReadId, kReadStep, 2).ok());
  const uint64_t digest = ListCheckpoints(*disk_)->whole.at(0).manifest_digest();
  EXPECT_TRUE(Open(digest).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(digest + 1).status()));
}

TEST_F(CheckpointReaderTest, DamageIsNamedWithItsFileAndEntry) {
  ASSERT_TRUE(WriteTinyCheckpoint(*disk_, kReadId, kReadStep, 2).ok());
  FlipLastBit("shard-0000000001.safetensors");  // its entries end with norm.mean@0
  const auto reader = *Open();
  const absl::Status all = reader->VerifyAll([](uint64_t) { return true; });
  EXPECT_TRUE(absl::IsDataLoss(all));
  std::vector<float> out(1);
  EXPECT_TRUE(reader->Read("table", 0, BlockPart::kValue, absl::MakeSpan(out)).ok());
  const absl::Status read = reader->Read("norm.mean", 1, BlockPart::kValue, absl::MakeSpan(out));
  EXPECT_EQ(read, all);
  EXPECT_THAT(std::string(read.message()),
              HasSubstr("0000000000c0ffee-12-3/shard-0000000001.safetensors: entry norm.mean@0: "
                        "expected the digest "));
}

TEST_F(CheckpointReaderTest, VerifyingCountsEveryByteAndFindsAnExchangedFile) {
  ASSERT_TRUE(WriteTinyCheckpoint(*disk_, kReadId, kReadStep, 2).ok());
  const auto reader = *Open();
  uint64_t bytes = 0;
  const auto note = [&](uint64_t read) {
    bytes = read;
    return true;
  };
  ASSERT_TRUE(reader->VerifyAll(note).ok());
  EXPECT_EQ(bytes, reader->manifest().files(0).bytes() + reader->manifest().files(1).bytes());
  int blocks = 0;
  const absl::Status stopped = reader->VerifyAll([&](uint64_t) { return ++blocks < 2; });
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  EXPECT_EQ(blocks, 2);

  // The same entries with other values, and digests that are right for them.
  const std::string one = "shard-0000000001.safetensors";
  MemoryDisk changed;
  ASSERT_TRUE(BeginCheckpoint(changed, kReadId, kTinyNonce).ok());
  CheckpointCapture capture;
  capture.Add(TinyBlocks(kReadStep + 1, 0, 2));
  ASSERT_TRUE(
      WriteShardFile(changed, kReadId, kTinyNonce, kReadStep, ShardId(1), capture, [](uint64_t) {
      }).ok());
  disk_->Put(ToString(kReadId), one, *changed.Get(ToString(kReadId) + kPartialSuffix, one));
  const absl::Status status = (*Open())->VerifyAll([](uint64_t) { return true; });
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(one, ": expected the digest ")));
}

TEST_F(CheckpointReaderTest, AFileThatIsGoneOrShorterIsNamed) {
  ASSERT_TRUE(WriteTinyCheckpoint(*disk_, kReadId, kReadStep, 2).ok());
  const std::string two = "shard-0000000002.safetensors";
  const std::string bytes = *disk_->Get(ToString(kReadId), two);
  disk_->Put(ToString(kReadId), two, bytes.substr(1));
  EXPECT_THAT(WhyNotOpen(), HasSubstr(absl::StrCat(two, ": expected ", bytes.size(), " bytes, got ",
                                                   bytes.size() - 1)));
  ASSERT_TRUE(disk_->Remove(ToString(kReadId), two).ok());
  EXPECT_THAT(WhyNotOpen(), HasSubstr(two));
}

TEST_F(CheckpointReaderTest, ADiskThatFailsIsNoDamage) {
  ASSERT_TRUE(WriteTinyCheckpoint(*disk_, kReadId, kReadStep, 1).ok());
  const uint64_t before = disk_->operations();
  ASSERT_TRUE(Open().ok());
  const uint64_t operations = disk_->operations() - before;
  for (uint64_t k = 0; k < operations; ++k) {
    disk_->FaultAt(disk_->operations() + k, DiskFault::kIoError);
    EXPECT_TRUE(absl::IsUnavailable(Open().status())) << k;
  }
}

TEST_F(CheckpointReaderTest, ValuesThatAreMissingAreNamed) {
  std::vector<CapturedBlock> blocks = TinyBlocks(kReadStep, 0, 1);
  std::erase_if(blocks, [](const CapturedBlock& block) {
    return block.name == BlockName{"conv.weight", 7, BlockPart::kValue};
  });
  Write({blocks});
  EXPECT_THAT(WhyNotOpen(), HasSubstr("parameter conv.weight: expected 16 values"));
}

TEST_F(CheckpointReaderTest, ValuesThatAreThereTwiceAreNamed) {
  Write({TinyBlocks(kReadStep, 0, 1), Three({"conv.weight", 6})});
  EXPECT_THAT(WhyNotOpen(), HasSubstr("another entry has its elements, too"));
}

TEST_F(CheckpointReaderTest, ValuesOfNoParameterAreNamed) {
  Write({TinyBlocks(kReadStep, 0, 1), Three({"stranger", 0})});
  EXPECT_THAT(WhyNotOpen(), HasSubstr("entry stranger@0 has 3 elements"));
}

TEST_F(CheckpointReaderTest, ValuesBehindAParametersEndAreNamed) {
  Write({TinyBlocks(kReadStep, 0, 1), Three({"conv.weight", 14, BlockPart::kSlot1})});
  EXPECT_THAT(WhyNotOpen(), HasSubstr("entry conv.weight@14.slot1 has 3 elements"));
}

}  // namespace
}  // namespace starling
