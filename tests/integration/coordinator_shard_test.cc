// Pushes count once, and pulls return exactly what was pushed. A client that requests more than it
// reads is disconnected.
#include "tests/integration/hand_cluster.h"

namespace starling {
namespace {

class CoordinatorShardTest : public ClusterTest,
                             public testing::WithParamInterface<Policy::Kind> {};

TEST_P(CoordinatorShardTest, WhatIsPushedIsWhatIsPulledAndTheJobEnds) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(GetParam()));
  const Clock first = worker_->Enter();
  EXPECT_EQ(first, 0);
  const std::vector<float> before = worker_->PullAll(0);
  float energy = 0;
  for (const float value : before) energy += value * value;
  EXPECT_GT(energy, 0) << "weights are initialised";
  for (uint64_t step = 0; step < 2 * kSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(worker_->Step(step, static_cast<Clock>(step)));
    if (step % 5 == 4) {
      ASSERT_NO_FATAL_FAILURE(worker_->Report());
    }
  }
  const std::vector<float> after = worker_->PullAll(2 * kSteps);
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    float expected = before[i];
    for (uint64_t step = 0; step < 2 * kSteps; ++step) expected = expected - kRate * 1.0f;
    ASSERT_EQ(after[i], expected) << "element " << i;
  }

  const absl::Time deadline = absl::Now() + kLong;
  while (Status("job").state() == RUNNING && absl::Now() < deadline) worker_->Report();
  const JobStatus status = Status("job");
  EXPECT_EQ(status.state(), SUCCEEDED) << status.reason();
  EXPECT_EQ(status.coverage_min(), kSteps);
  EXPECT_EQ(status.coverage_max(), kSteps);

  // A finished job's parameters stay available to readers.
  HandWorker reader(server_->address(), {PeerRole::kClient, "reader"});
  reader.ReadAs(*worker_);
  EXPECT_EQ(reader.PullAll(0, frame_flags::kReader), after);
}

TEST_P(CoordinatorShardTest, WrongRequestsAreRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(GetParam()));
  worker_->Enter();
  const Slice& slice = worker_->layout().slices[0];
  const std::vector<float> gradient(slice.elements, 1.0f);
  OutgoingPayload payload;

  FrameHeader bad_digest = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  bad_digest.digest ^= 1;
  EXPECT_EQ(worker_->Ask(bad_digest, payload).header.answer, Answer::kBadDigest);

  FrameHeader elsewhere = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  elsewhere.partition = PartitionId(1'000'000);
  EXPECT_EQ(worker_->Ask(elsewhere, payload).header.answer, Answer::kNotHosted);

  FrameHeader other_run = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  other_run.key.run.era += 1;
  EXPECT_EQ(worker_->Ask(other_run, payload).header.answer, Answer::kStaleRun);

  FrameHeader zombie = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  zombie.origin.incarnation = Incarnation(zombie.origin.incarnation.value + 1000);
  EXPECT_EQ(worker_->Ask(zombie, payload).header.answer, Answer::kStaleIncarnation);

  ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
  const FrameHeader again = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  EXPECT_EQ(worker_->Ask(again, payload).header.answer, Answer::kAlreadyCounted);

  std::vector<float> spoiled = gradient;
  spoiled[slice.elements / 2] = std::nanf("");
  const FrameHeader non_finite = worker_->PushHeader(slice, 1, 1, spoiled, &payload);
  const Mailbox::Letter refused = worker_->Ask(non_finite, payload);
  EXPECT_EQ(refused.header.answer, Answer::kNonFinite);
  EXPECT_NE(refused.text.find(worker_->orders().job().spec().model().parameters(0).name()),
            std::string::npos)
      << refused.text;
  // It changed nothing: what is finite still counts.
  const FrameHeader finite = worker_->PushHeader(slice, 1, 1, gradient, &payload);
  EXPECT_EQ(worker_->Ask(finite, payload).header.answer, Answer::kCounted);
  EXPECT_EQ(Status("job").state(), RUNNING);
}

// Never answers and never releases a payload.
class Hoarder : public StreamHandler {
 public:
  void OnFrame(const FrameHeader&, ReceivedPayload payload) override {
    absl::MutexLock lock(&mutex_);
    kept_.push_back(std::move(payload));
  }
  void OnDown(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    down_ = status;
  }
  absl::Status AwaitDown() {
    absl::MutexLock lock(&mutex_);
    const auto over = [&] { return down_.has_value(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&over), kLong));
    return down_.value_or(absl::OkStatus());
  }

 private:
  absl::Mutex mutex_;
  std::vector<ReceivedPayload> kept_;
  std::optional<absl::Status> down_;
};

TEST_P(CoordinatorShardTest, WhoAsksForMoreThanItReadsIsCutOff) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(GetParam(), /*hidden=*/4000));
  worker_->Enter();
  const auto streams = MakeStreamClient({PeerRole::kClient, "hoarder"});
  const auto hoarder = std::make_shared<Hoarder>();
  const auto stream = streams->Connect(
      {.address = worker_->orders().views(0).primary_address(), .whom = "the shard"}, hoarder);
  const Slice& slice = worker_->layout().slices[0];
  FrameHeader pull = worker_->Header(FrameType::kPull, slice.partition, 0);
  pull.key.slice = slice.id;
  pull.flags = frame_flags::kReader;
  uint64_t values = 0;
  for (const Slice& each : worker_->layout().slices) values += each.elements * sizeof(float);
  // Clearly more than the window plus what may be queued.
  const uint64_t pulls =
      2 * (2 * limits::kStreamInFlightBytesMax + 2 * values) / (slice.elements * sizeof(float));
  for (uint64_t i = 0; i < pulls; ++i) {
    if (!stream->Send(pull).ok()) break;  // the stream has ended
  }
  const absl::Status status = hoarder->AwaitDown();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("asks for more than it reads"), absl::string_view::npos)
      << status;
  // The others continue.
  ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
}

INSTANTIATE_TEST_SUITE_P(Policies, CoordinatorShardTest,
                         testing::Values(Policy::BSP, Policy::SSP, Policy::ASYNC),
                         [](const auto& info) { return Policy::Kind_Name(info.param); });

}  // namespace
}  // namespace starling
