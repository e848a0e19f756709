#include "server/shard/host/ended_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "server/shard/apply/verify.h"

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const RunId kRun{JobUid(7), 1};

class ReaderConnection : public ShardConnection {
 public:
  ConnectionId id() const override { return ConnectionId(1); }
  void Send(const FrameHeader& header, OutgoingPayload payload, int64_t) override {
    answer = header;
    values.assign(reinterpret_cast<const float*>(payload.bytes.data()),
                  reinterpret_cast<const float*>(payload.bytes.data() + payload.bytes.size()));
  }
  FrameHeader answer;
  std::vector<float> values;
};

class EndedReaderTest : public ::testing::Test {
 protected:
  static shard::action::CopyEnded Orders(uint32_t slices) {
    shard::action::CopyEnded orders{.run = kRun,
                                    .key = {kRun.job, PartitionId(3)},
                                    .instance = shard::InstanceId(1),
                                    .address = "ps-9",
                                    .view = ViewNumber(2),
                                    .version = 4};
    for (uint32_t i = 0; i < slices; ++i) orders.values.push_back({SliceId(10 + i), 2});
    return orders;
  }
  explicit EndedReaderTest(uint64_t bytes_max = 1 << 20)
      : memory_(std::make_shared<ShardMemory>(ShardMemory::Options{.bytes_max = bytes_max})) {}

  void Start(uint32_t slices) {
    reader_ = std::make_unique<EndedReader>(
        Orders(slices), memory_, [this](const std::string& address, const FrameHeader& pull) {
          EXPECT_EQ(address, "ps-9");
          pulls_.push_back(pull);
        });
    reader_->Start(now_);
  }
  // The primary's answer to a pull.
  void Answer(const FrameHeader& pull, std::vector<float> values, bool damaged = false) {
    FrameHeader header = pull;
    header.type = FrameType::kValue;
    header.view = ViewNumber(1);  // as when the job ended
    header.base_lsn = Lsn(55);
    const PayloadPiece piece(reinterpret_cast<const uint8_t*>(values.data()),
                             values.size() * sizeof(float));
    header.digest = VerifyPayload(Payload(&piece, 1)).digest + damaged;
    reader_->OnValue(header, ReceivedPayload(absl::MakeConstSpan(&piece, 1), nullptr), now_);
  }
  std::vector<uint32_t> Pulled() {
    std::vector<uint32_t> slices;
    for (const FrameHeader& pull : std::exchange(pulls_, {}))
      slices.push_back(pull.key.slice.value);
    return slices;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  const std::shared_ptr<ShardMemory> memory_;
  std::vector<FrameHeader> pulls_;
  std::unique_ptr<EndedReader> reader_;
};

TEST_F(EndedReaderTest, ReadsAllSlicesInTurnAndServesThem) {
  Start(3);
  ASSERT_EQ(pulls_.size(), 1u);
  const FrameHeader first = pulls_[0];
  EXPECT_EQ(first.type, FrameType::kPull);
  EXPECT_EQ(first.flags, frame_flags::kReader | frame_flags::kVersion);
  EXPECT_EQ(first.clock, 4);
  EXPECT_EQ(first.key.run, kRun);
  EXPECT_EQ(first.partition, PartitionId(3));
  EXPECT_THAT(Pulled(), ElementsAre(10));
  Answer(first, {1, 2});
  const FrameHeader second = pulls_.at(0);
  EXPECT_THAT(Pulled(), ElementsAre(11));
  Answer(first, {10, 20});  // a second answer changes nothing
  Answer(second, {3, 4});
  EXPECT_FALSE(reader_->over());
  Answer(FrameHeader(pulls_.at(0)), {5, 6});
  ASSERT_TRUE(reader_->over());
  EXPECT_EQ(reader_->fault(), "");
  const std::unique_ptr<EndedPartition> ended = reader_->Take();
  EXPECT_EQ(ended->value_bytes(), 24u);
  EXPECT_EQ(memory_->ended(), 24u);
  ReaderConnection reader;
  ended->OnFrame(reader, second);
  EXPECT_EQ(reader.answer.type, FrameType::kValue);
  EXPECT_EQ(reader.answer.base_lsn, Lsn(55));
  EXPECT_THAT(reader.values, ElementsAre(3, 4));
  FrameHeader other = second;
  other.clock = 3;
  ended->OnFrame(reader, other);
  EXPECT_EQ(reader.answer.answer, Answer::kStaleClock) << "only that version is kept";
}

TEST_F(EndedReaderTest, AsksAgainAfterARefusalAndWhenTheLinkBreaks) {
  Start(2);
  const FrameHeader first = pulls_[0];
  Pulled();
  const auto again = [&](absl::Duration after) {
    now_ += after;
    reader_->OnTick(now_);
    return Pulled();
  };
  EXPECT_THAT(again(absl::Seconds(1)), ElementsAre()) << "the answer may be under way";
  reader_->OnDown("ps-9", "reset", now_);
  EXPECT_THAT(again(absl::ZeroDuration()), ElementsAre()) << "not at once";
  EXPECT_THAT(again(absl::Seconds(1)), ElementsAre(10));
  Answer(first, {1, 2}, /*damaged=*/true);
  EXPECT_THAT(again(absl::Seconds(1)), ElementsAre(10));
  FrameHeader refusal = first;
  refusal.type = FrameType::kError;
  refusal.view = ViewNumber(1);
  reader_->OnRefused(refusal, "of an earlier view", now_);
  EXPECT_THAT(again(absl::Seconds(1)), ElementsAre());
  refusal.view = ViewNumber(2);
  reader_->OnRefused(refusal, "is not hosted here", now_);
  EXPECT_THAT(again(absl::Seconds(1)), ElementsAre(10));
  Answer(first, {1, 2});
  EXPECT_THAT(Pulled(), ElementsAre(11));
  EXPECT_EQ(reader_->fault(), "");
}

TEST_F(EndedReaderTest, GivesUpWhenNothingComes) {
  Start(2);
  reader_->OnDown("ps-9", "connection refused", now_);
  now_ += EndedReader::kPatience;
  reader_->OnTick(now_);
  EXPECT_TRUE(reader_->over());
  EXPECT_FALSE(reader_->no_memory());
  EXPECT_THAT(reader_->fault(), HasSubstr("ps-9 for 10s: connection refused"));
}

TEST_F(EndedReaderTest, FailsOnAnotherSize) {
  Start(2);
  Answer(FrameHeader(pulls_[0]), {1, 2, 3});
  EXPECT_THAT(reader_->fault(), HasSubstr("came with 12 bytes, expected 8"));
}

class SmallMemoryTest : public EndedReaderTest {
 protected:
  SmallMemoryTest() : EndedReaderTest(8) {}
};

TEST_F(SmallMemoryTest, FailsWithoutMemoryAndFreesWhatItHad) {
  Start(2);
  Answer(FrameHeader(pulls_[0]), {1, 2});
  EXPECT_EQ(memory_->allocated(), 8u);
  Answer(FrameHeader(pulls_[1]), {3, 4});
  EXPECT_THAT(reader_->fault(), HasSubstr("no memory"));
  EXPECT_TRUE(reader_->no_memory());
  reader_.reset();
  EXPECT_EQ(memory_->allocated(), 0u);
}

}  // namespace
}  // namespace starling
