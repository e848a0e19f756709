#include "server/shard/host/shard_links.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace starling {
namespace {

constexpr absl::Duration kAnswerDeadline = absl::Seconds(60);  // only ever reached by a failure
const Identity kSelf{PeerRole::kShard, "ps-0"};
const Identity kDecider{PeerRole::kShard, "ps-1"};

FrameHeader Report(uint32_t partition, Clock step) {
  FrameHeader header;
  header.type = FrameType::kDecision;
  header.key.run = {JobUid(7), 0};
  header.reporter = PartitionId(partition);
  header.clock = step;
  header.scalar = 9;
  return header;
}

// What comes back, and what stays here.
class Answers {
 public:
  struct Answer {
    FrameHeader header;
    std::string text;
  };

  ShardLinks::Callbacks Callbacks() {
    return {[this](const FrameHeader& header, std::string text) {
              absl::MutexLock lock(&mutex_);
              answers_.push_back({header, std::move(text)});
            },
            [this](const FrameHeader& report) {
              absl::MutexLock lock(&mutex_);
              answers_.push_back({report, "local"});
            },
            [this](const FrameHeader& header, std::string text) {
              absl::MutexLock lock(&mutex_);
              answers_.push_back({header, absl::StrCat("backup: ", text)});
            },
            [this](JobUid, PartitionId partition, const std::string& address, std::string) {
              absl::MutexLock lock(&mutex_);
              FrameHeader header;
              header.partition = partition;
              answers_.push_back({header, absl::StrCat("down: ", address)});
            }};
  }
  Answer Await(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto here = [&] { return answers_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&here), kAnswerDeadline))
        << "answer " << count;
    return answers_.size() < count ? Answer() : answers_[count - 1];
  }

 private:
  absl::Mutex mutex_;
  std::vector<Answer> answers_;
};

// A shard that decides 0.5 for even steps and refuses odd ones; step 4 ends the stream.
class Decider {
 public:
  Decider() {
    RpcServer::Options options;
    options.listen = "127.0.0.1:0";
    options.self = kDecider;
    options.accept =
        [](std::shared_ptr<FrameStream> stream,
           const PeerIdentity& peer) -> absl::StatusOr<std::shared_ptr<StreamHandler>> {
      EXPECT_EQ(peer.identity, kSelf);
      return std::make_shared<Handler>(std::move(stream));
    };
    server_ = *StartRpcServer(std::move(options));
  }
  std::string address() const { return server_->address(); }
  void Shutdown() { server_.reset(); }

 private:
  class Handler : public StreamHandler {
   public:
    explicit Handler(std::shared_ptr<FrameStream> stream) : stream_(std::move(stream)) {}
    void OnFrame(const FrameHeader& header, ReceivedPayload) override {
      if (header.clock == 4) return stream_->Close(absl::UnavailableError("gone for a while"));
      if (header.type == FrameType::kReplicate) {
        FrameHeader ack = header;
        ack.type = FrameType::kAck;
        ack.kind = PayloadKind::kNone;
        ack.elements = ack.payload_bytes = 0;
        ack.digest = 0;
        return (void)stream_->Send(ack);
      }
      FrameHeader answer = header;
      answer.answer = Answer::kCounted;
      answer.scalar = 0.5;
      if (header.clock % 2 == 0) return (void)stream_->Send(answer);
      answer.type = FrameType::kError;
      answer.answer = Answer::kStaleView;
      answer.scalar = 0;
      answer.kind = PayloadKind::kText;
      static const std::string text = "view 1; here is 2";
      answer.payload_bytes = static_cast<uint32_t>(text.size());
      const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
      (void)stream_->Send(answer, {absl::MakeConstSpan(bytes, text.size()), nullptr}, -1);
    }
    void OnDown(const absl::Status&) override {}

   private:
    const std::shared_ptr<FrameStream> stream_;
  };

  std::unique_ptr<RpcServer> server_;
};

TEST(ShardLinksTest, ReportsGoOutAndAnswersComeBack) {
  Decider decider;
  Answers answers;
  ShardLinks links(MakeStreamClient(kSelf), answers.Callbacks());
  links.Send(Report(3, 0));  // nobody knows where to: lost
  links.SetDeciders({{JobUid(7), decider.address()}});
  links.Send(Report(3, 2));
  const Answers::Answer decided = answers.Await(1);
  EXPECT_EQ(decided.header.type, FrameType::kDecision);
  EXPECT_EQ(decided.header.reporter, PartitionId(3));
  EXPECT_EQ(decided.header.clock, 2);
  EXPECT_EQ(decided.header.scalar, 0.5);
  links.Send(Report(4, 3));
  const Answers::Answer refused = answers.Await(2);
  EXPECT_EQ(refused.header.type, FrameType::kError);
  EXPECT_EQ(refused.header.reporter, PartitionId(4));
  EXPECT_EQ(refused.text, "view 1; here is 2");
}

TEST(ShardLinksTest, ABrokenStreamIsToldAndOpenedAgain) {
  Decider decider;
  Answers answers;
  ShardLinks links(MakeStreamClient(kSelf), answers.Callbacks());
  links.SetDeciders({{JobUid(7), decider.address()}});
  links.Send(Report(3, 4));
  const Answers::Answer broken = answers.Await(1);
  EXPECT_EQ(broken.header.type, FrameType::kError);
  EXPECT_EQ(broken.header.reporter, PartitionId(3));
  EXPECT_NE(broken.text.find("gone for a while"), std::string::npos) << broken.text;
  links.Send(Report(3, 6));
  EXPECT_EQ(answers.Await(2).header.scalar, 0.5);
  links.Stop();
  links.Send(Report(3, 8));
  EXPECT_EQ(answers.Await(2).header.clock, 6);
}

constexpr absl::string_view kRecord = "a record";

OutgoingPayload RecordPayload() {
  return {absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(kRecord.data()), kRecord.size()),
          nullptr};
}

FrameHeader Record(uint32_t partition, Clock clock) {
  FrameHeader header;
  header.type = FrameType::kReplicate;
  header.kind = PayloadKind::kRecord;
  header.key.run = {JobUid(7), 0};
  header.partition = PartitionId(partition);
  header.request_id = 1;
  header.clock = clock;
  header.payload_bytes = static_cast<uint32_t>(kRecord.size());
  return header;
}

TEST(ShardLinksTest, RecordsGoToTheBackupInOrderAndABreakIsTold) {
  Decider backup;
  Answers answers;
  ShardLinks links(MakeStreamClient(kSelf), answers.Callbacks());
  for (const Clock clock : {1, 2, 3, 5})
    links.Replicate(backup.address(), Record(3, clock), RecordPayload());
  const std::vector<Clock> clocks = {1, 2, 3, 5};
  for (size_t i = 0; i < clocks.size(); ++i) {
    const Answers::Answer ack = answers.Await(i + 1);
    EXPECT_EQ(ack.header.type, FrameType::kAck);
    EXPECT_EQ(ack.header.partition, PartitionId(3));
    EXPECT_EQ(ack.header.clock, clocks[i]);
    EXPECT_EQ(ack.text, "backup: ");
  }
  links.Replicate(backup.address(), Record(9, 4), RecordPayload());
  const std::string down = absl::StrCat("down: ", backup.address());
  EXPECT_EQ(answers.Await(5).text, down);
  EXPECT_EQ(answers.Await(6).text, down);
  links.Replicate(backup.address(), Record(3, 6), RecordPayload());
  EXPECT_EQ(answers.Await(7).header.clock, 6);
}

TEST(ShardLinksTest, AJobThatIsOverHearsOfNoBreak) {
  Decider backup;
  Answers answers;
  ShardLinks links(MakeStreamClient(kSelf), answers.Callbacks());
  FrameHeader other = Record(9, 1);
  other.key.run.job = JobUid(8);
  links.Replicate(backup.address(), Record(3, 1), RecordPayload());
  links.Replicate(backup.address(), other, RecordPayload());
  answers.Await(2);
  links.Forget(JobUid(7));
  other.clock = 4;  // ends the stream
  links.Replicate(backup.address(), other, RecordPayload());
  EXPECT_EQ(answers.Await(3).header.partition, PartitionId(9));
  other.clock = 5;
  links.Replicate(backup.address(), other, RecordPayload());
  EXPECT_EQ(answers.Await(4).header.clock, 5) << "nothing else came before";
}

TEST(ShardLinksTest, WhoDoesNotAnswerIsNamed) {
  std::string address;
  {
    Decider decider;
    address = decider.address();
  }
  Answers answers;
  ShardLinks links(MakeStreamClient(kSelf), answers.Callbacks());
  links.SetDeciders({{JobUid(7), address}});
  links.Send(Report(3, 0));
  const Answers::Answer answer = answers.Await(1);
  EXPECT_EQ(answer.header.answer, Answer::kNotHosted);
  EXPECT_NE(answer.text.find(absl::StrCat("another shard at ", address)), std::string::npos)
      << answer.text;
  EXPECT_NE(answer.text.find("last error"), std::string::npos) << answer.text;
}

TEST(ShardLinksTest, ItsOwnReportsStayHere) {
  Answers answers;
  ShardLinks links(MakeStreamClient(kSelf), answers.Callbacks());
  links.SetOwnAddress("127.0.0.1:1");
  links.SetDeciders({{JobUid(7), "127.0.0.1:1"}});
  links.Send(Report(3, 5));
  const Answers::Answer answer = answers.Await(1);
  EXPECT_EQ(answer.text, "local");
  EXPECT_EQ(answer.header, Report(3, 5));
}

}  // namespace
}  // namespace starling
