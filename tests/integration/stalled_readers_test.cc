// Readers that ask for values and do not read them, beside a job that trains and one that reads.
#include "absl/cleanup/cleanup.h"
#include "tests/integration/hand_cluster.h"

namespace starling {
namespace {

constexpr uint64_t kOldValuesBytesMax = 8 << 20;
constexpr size_t kReaders = 100;
static_assert(kReaders % (2 * kSteps) == 0);

class StalledReaders : public ClusterTest {
 protected:
  ShardInjections Injections() override { return {.old_values_bytes_max = kOldValuesBytesMax}; }
};

// With its first frame it holds up all streams of its client's thread, until it is told to read.
class Staller : public StreamHandler {
 public:
  struct Gate {
    absl::Mutex mutex;
    size_t up ABSL_GUARDED_BY(mutex) = 0;
    bool open ABSL_GUARDED_BY(mutex) = false;
    std::vector<absl::Status> ends ABSL_GUARDED_BY(mutex);
  };
  explicit Staller(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  void OnUp() override {
    absl::MutexLock lock(&gate_->mutex);
    ++gate_->up;
  }
  void OnFrame(const FrameHeader&, ReceivedPayload) override {
    absl::MutexLock lock(&gate_->mutex);
    gate_->mutex.Await(absl::Condition(&gate_->open));
  }
  void OnDown(const absl::Status& status) override {
    absl::MutexLock lock(&gate_->mutex);
    gate_->ends.push_back(status);
  }

 private:
  const std::shared_ptr<Gate> gate_;
};

// A hundred of them, each with the values of another step: the job, and a reader that reads, go on.
TEST_F(StalledReaders, TheWorstEndAndTheJobGoesOn) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::SSP, /*hidden=*/100'000));
  worker_->Enter();
  uint64_t values = 0;  // bytes of one version
  for (const Slice& slice : worker_->layout().slices) values += slice.elements * sizeof(float);
  const auto gate = std::make_shared<Staller::Gate>();
  std::vector<std::unique_ptr<StreamClient>> clients;  // each with a thread, and a connection
  for (int i = 0; i < 2; ++i) clients.push_back(MakeStreamClient({PeerRole::kClient, "staller"}));
  const auto read_all = [&] {
    absl::MutexLock lock(&gate->mutex);
    gate->open = true;
  };
  const absl::Cleanup read_at_last = read_all;  // else the clients' threads never end
  HandWorker reader(server_->address(), {PeerRole::kClient, "reader"});
  reader.ReadAs(*worker_);
  std::vector<std::shared_ptr<FrameStream>> streams;
  const std::string address = worker_->orders().views(0).primary_address();
  for (size_t i = 0; i < kReaders; ++i) {
    streams.push_back(clients[i % 2]->Connect({.address = address, .whom = "the shard"},
                                              std::make_shared<Staller>(gate)));
  }
  {
    absl::MutexLock lock(&gate->mutex);
    const auto all_up = [&] { return gate->up == kReaders; };
    ASSERT_TRUE(gate->mutex.AwaitWithTimeout(absl::Condition(&all_up), kLong));
  }
  const size_t a_step = kReaders / (2 * kSteps);
  for (uint64_t step = 0; step < 2 * kSteps; ++step) {
    for (size_t i = step * a_step; i < (step + 1) * a_step; ++i) {
      // A client's gRPC takes a first value, whoever reads it; those behind it stay with the shard.
      for (const Slice& slice : worker_->layout().slices) {
        FrameHeader pull = worker_->Header(FrameType::kPull, slice.partition, 0);
        pull.key.slice = slice.id;
        pull.flags = frame_flags::kReader;
        (void)streams[i]->Send(pull);  // it may have been closed already
      }
    }
    if (step == kSteps) {  // the next epoch opens when all have heard of it
      const absl::Time deadline = absl::Now() + kLong;
      while (worker_->orders().epoch() == 0 && absl::Now() < deadline) worker_->Report();
    }
    ASSERT_NO_FATAL_FAILURE(worker_->Step(step, static_cast<Clock>(step)));
    EXPECT_EQ(reader.PullAll(0, frame_flags::kReader).size() * sizeof(float), values);
  }
  read_all();
  // Some at least have ended, and were told why.
  const auto enough = [&] { return !gate->ends.empty(); };
  absl::MutexLock lock(&gate->mutex);
  ASSERT_TRUE(gate->mutex.AwaitWithTimeout(absl::Condition(&enough), kLong));
  for (const absl::Status& end : gate->ends) {
    if (end.code() == absl::StatusCode::kCancelled) continue;  // in the middle of a frame: see FrameStream
    EXPECT_EQ(end.code(), absl::StatusCode::kResourceExhausted) << end;
    EXPECT_NE(end.message().find("the shard needs the memory"), absl::string_view::npos) << end;
  }
}

}  // namespace
}  // namespace starling
