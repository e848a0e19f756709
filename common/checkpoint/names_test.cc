#include "common/checkpoint/names.h"

#include <gtest/gtest.h>

#include <limits>

namespace starling {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

TEST(CheckpointNames, AnIdIsOneTextAndBack) {
  EXPECT_EQ(ToString(CheckpointId{0xc0ffee, JobUid(12), 3}), "0000000000c0ffee-12-3");
  for (const CheckpointId& id :
       {CheckpointId{1, JobUid(2), 3}, CheckpointId{kMost, JobUid(kMost), kMost},
        CheckpointId{0, JobUid(0), 0}}) {
    EXPECT_EQ(ParseCheckpointId(ToString(id)), id);
  }
}

TEST(CheckpointNames, NoOtherTextIsAnId) {
  for (const absl::string_view bad :
       {"", "-", "0000000000c0ffee-12", "0000000000c0ffee-12-3-4", "0000000000c0ffee-12-3.partial",
        "0000000000C0FFEE-12-3", "c0ffee-12-3", "0x00000000c0ffee-12-3", "0000000000c0ffee-012-3",
        "0000000000c0ffee-+12-3", "0000000000c0ffee- 12-3", "0000000000c0ffee-12-",
        "0000000000c0ffee-12-18446744073709551616", "0000000000c0ffee-12--3", "../12-3"}) {
    EXPECT_FALSE(ParseCheckpointId(bad).has_value()) << bad;
  }
}

TEST(CheckpointNames, AShardsFileHasItsId) {
  EXPECT_EQ(ShardFileName(ShardId(3)), "shard-0000000003.safetensors");
  EXPECT_EQ(ParseShardFileName("shard-4294967295.safetensors"), ShardId(4294967295));
  for (const absl::string_view bad :
       {"", "shard-3.safetensors", "shard-0000000003", "shard-4294967296.safetensors",
        "shard-0000000003.safetensors.partial", "../shard-0000000003.safetensors",
        "shard-+000000003.safetensors"}) {
    EXPECT_FALSE(ParseShardFileName(bad).has_value()) << bad;
  }
}

TEST(CheckpointNames, ABlockIsReadFromTheLastAt) {
  EXPECT_EQ(ToString(BlockName{"conv1.weight", 262144}), "conv1.weight@262144");
  EXPECT_EQ(ToString(BlockName{"w", 0, BlockPart::kSlot1}), "w@0.slot1");
  for (const BlockPart part :
       {BlockPart::kValue, BlockPart::kSlot0, BlockPart::kSlot1, BlockPart::kEvaluation}) {
    for (const std::string parameter : {"a", "a@7", "a@7.slot0", "", "@", "é.x"}) {
      const BlockName name{parameter, 12, part};
      EXPECT_EQ(ParseBlockName(ToString(name)), name) << ToString(name);
    }
  }
  for (const absl::string_view bad : {"", "w", "w@", "w@x", "w@01", "w@-1", "w@1.", "w@1.slot2",
                                      "w@1.slot0.slot0", "w@.slot0", "w@1slot0", "w@1 "}) {
    EXPECT_FALSE(ParseBlockName(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace starling
