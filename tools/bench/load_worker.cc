#include "tools/bench/load_worker.h"

#include <algorithm>
#include <future>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/status_macros.h"
#include "common/base/xxh3.h"
#include "common/control/worker_orders.h"
#include "worker/host/payload_digest.h"

namespace starling {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
constexpr uint64_t kSamples = uint64_t{1} << 31;  // with one in a step: an epoch without end

// Requests are numbered by kind: push n is n + 1, others have one of these bits.
constexpr uint64_t kPullRequest = uint64_t{1} << 61;
constexpr uint64_t kCloseRequest = uint64_t{1} << 62;
constexpr uint64_t kEnterRequest = uint64_t{1} << 63;

WorkRange Item(uint64_t step) { return {WorkPurpose::kTrain, 0, step, 1}; }

}  // namespace

// What shards answered to pushes and pulls, as a window over their numbers, and to requests to
// enter. Thread-safe.
class LoadWorker::Answers : public StreamHandler {
 public:
  // Values of slices go to `values`, on `session`, which outlives the streams.
  Answers(const Layout& layout, std::shared_ptr<float> values, EventLoop* session)
      : layout_(layout),
        values_(std::move(values)),
        session_(session),
        awaited_(layout.slices.size()) {}

  // Call before the request, or the push and the pull, with this number: the one after the last.
  void Expect(uint64_t number, int answers) {
    MutexLock lock(&mutex_);
    awaited_[number % awaited_.size()] = answers;
    next_ = number + 1;
  }

  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    if (header.type == FrameType::kValue) {
      session_->Post([this, header, payload = std::move(payload)]() mutable {
        Install(header, std::move(payload));
      });
      return;
    }
    std::string text;
    if (header.kind == PayloadKind::kText) {
      text.resize(payload.size());
      payload.CopyTo(text.data());
    }
    MutexLock lock(&mutex_);
    changed_.SignalAll();
    if (header.request_id & kEnterRequest) {
      entered_[header.request_id] = header;
    } else if (header.type != FrameType::kAck) {
      Fail(absl::FailedPreconditionError(
          absl::StrCat("a shard answered ", FrameToString(header), ": ", text)));
    } else if ((header.request_id & kCloseRequest) == 0) {
      Answered(header.request_id - 1);
    }
  }

  void OnDown(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    changed_.SignalAll();
    Fail(absl::UnavailableError(absl::StrCat("a stream ended: ", status.ToString())));
  }

  // Blocks until all requests before `number` are answered.
  absl::Status Await(uint64_t number) {
    const absl::Time deadline = MonotonicNow() + kAnswerTimeout;
    MutexLock lock(&mutex_);
    while (status_.ok() && oldest_ < number) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat("no answer to request ", oldest_, " for ",
                                                        absl::FormatDuration(kAnswerTimeout)));
      }
    }
    return status_;
  }

  // Blocks until the request to enter is answered.
  absl::StatusOr<FrameHeader> AwaitEntered(uint64_t request) {
    const absl::Time deadline = MonotonicNow() + kAnswerTimeout;
    MutexLock lock(&mutex_);
    while (status_.ok() && entered_.count(request) == 0) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat("no answer to the request to enter for ",
                                                        absl::FormatDuration(kAnswerTimeout)));
      }
    }
    if (!status_.ok()) return status_;
    return entered_[request];
  }

 private:
  void Install(const FrameHeader& header, ReceivedPayload payload) {
    const bool right = PayloadDigest(payload, copies_) == header.digest;
    payload.CopyTo(values_.get() + layout_.slices[header.key.slice.value].flat_begin);
    MutexLock lock(&mutex_);
    changed_.SignalAll();
    if (!right) return Fail(absl::DataLossError("a value's digest was wrong"));
    Answered((header.request_id & ~kPullRequest) - 1);
  }

  void Answered(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t window = awaited_.size();
    if (number < oldest_ || number >= next_ || awaited_[number % window] == 0) {
      return Fail(absl::InternalError(absl::StrCat("an answer to request ", number, " of ", oldest_,
                                                   " to ", next_, " that wait for one")));
    }
    --awaited_[number % window];
    while (oldest_ < next_ && awaited_[oldest_ % window] == 0) ++oldest_;
  }

  void Fail(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status_.ok()) status_ = std::move(status);  // the first says why
  }

  const Layout& layout_;
  const std::shared_ptr<float> values_;  // written on the session's thread only
  EventLoop* const session_;
  PayloadCopies copies_;
  Mutex mutex_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  uint64_t oldest_ ABSL_GUARDED_BY(mutex_) = 0;  // all before it are answered
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int> awaited_ ABSL_GUARDED_BY(mutex_);  // answers, by number % its size
  std::map<uint64_t, FrameHeader> entered_ ABSL_GUARDED_BY(mutex_);  // by request
};

LoadWorker::LoadWorker(const Identity& self, const std::string& coordinator,
                       std::shared_ptr<const LinkSecurity> security, bool shared_memory)
    : self_(self),
      client_(MakeCoordinatorClient(coordinator, self, security)),
      streams_(MakeStreamClient(self, security, shared_memory)) {}

LoadWorker::~LoadWorker() {
  over_ = true;
  if (reports_.joinable()) reports_.join();
}

absl::Status LoadWorker::Join(absl::Duration patience) {
  STARLING_RETURN_IF_ERROR(Register());
  reports_ = std::thread([this] { KeepReporting(); });
  {
    const absl::Time deadline = MonotonicNow() + patience;
    MutexLock lock(&mutex_);
    while (report_status_.ok() && !IsMember()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return absl::DeadlineExceededError(
            absl::StrCat("not a member of any job after ", absl::FormatDuration(patience)));
      }
    }
    STARLING_RETURN_IF_ERROR(report_status_);
    job_ = orders_.job();
    views_.assign(orders_.views().begin(), orders_.views().end());
    roster_ = orders_.roster().number();
  }
  STARLING_RETURN_IF_ERROR(Connect());
  return Enter(patience);
}

absl::Status LoadWorker::Register() {
  std::promise<absl::StatusOr<RegisterReply>> done;
  // It serves nobody, so nobody needs to reach it.
  client_->Register(MakeRegisterRequest(self_, "127.0.0.1:1"), kCallTimeout,
                    [&](auto reply) { done.set_value(std::move(reply)); });
  STARLING_ASSIGN_OR_RETURN(registration_, done.get_future().get());
  if (registration_.refused().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("refused: ", registration_.refused()));
}

void LoadWorker::KeepReporting() {
  while (!over_) {
    const absl::Status status = Report();
    if (status.ok()) continue;
    MutexLock lock(&mutex_);
    report_status_ = status;
    changed_.SignalAll();
    return;
  }
}

absl::Status LoadWorker::Report() {
  WorkerReport report;
  report.set_worker(registration_.id());
  report.set_incarnation(registration_.incarnation());
  report.set_sequence(++sequence_);
  report.set_generation(registration_.generation());
  report.set_cluster(registration_.cluster());
  {
    MutexLock lock(&mutex_);
    report.set_orders_seen(orders_.version());
    if (orders_.has_job()) {
      *report.mutable_run() = orders_.job().run();
      report.set_prepared(true);
    }
    for (const Lease& lease : orders_.leases()) report.add_leases_held(lease.id());
    for (const InspectRequest& request : orders_.inspect()) {
      Inspection* const inspection = report.add_inspections();
      inspection->set_request(request.request());
      inspection->set_train_samples(kSamples);
      const auto hidden = request.spec().model_source().arguments().find("hidden");
      const bool known = hidden != request.spec().model_source().arguments().end() &&
                         hidden->second.ints().values_size() > 0;
      if (!known) inspection->set_error("expected builtin: mlp with hidden sizes");
      inspection->add_sample_shape(known ? hidden->second.ints().values(0) : 1);
      inspection->set_classes(2);
    }
  }
  std::promise<absl::StatusOr<WorkerOrders>> done;
  client_->ReportWorker(report, kCallTimeout,
                        [&](auto orders) { done.set_value(std::move(orders)); });
  STARLING_ASSIGN_OR_RETURN(WorkerOrders orders, done.get_future().get());
  if (orders.rejoin()) return absl::AbortedError("the coordinator has taken it for dead");
  if (orders.unchanged()) return absl::OkStatus();
  MutexLock lock(&mutex_);
  CompleteOrders(std::exchange(orders_, std::move(orders)), orders_);
  changed_.SignalAll();
  return absl::OkStatus();
}

bool LoadWorker::IsMember() {
  for (const Member& member : orders_.roster().members())
    if (member.worker() == registration_.id()) return true;
  return false;
}

absl::Status LoadWorker::Connect() {
  STARLING_ASSIGN_OR_RETURN(layout_, MakeLayout(job_.spec()));
  if (layout_.digest != job_.layout_digest()) {
    return absl::FailedPreconditionError("the coordinator is another build: layouts differ");
  }
  gradients_ = AllocateFloats(layout_.elements);
  std::shared_ptr<float> values = AllocateFloats(layout_.elements);
  if (gradients_ == nullptr || values == nullptr) {
    return absl::ResourceExhaustedError("no memory for a copy of the model and its gradients");
  }
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> value(-1e-3f, 1e-3f);
  for (uint64_t i = 0; i < layout_.elements; ++i) gradients_.get()[i] = value(random);
  std::fill_n(values.get(), layout_.elements, 0.0f);
  answers_ = std::make_shared<Answers>(layout_, std::move(values), &session_);
  for (const View& view : views_) {
    std::shared_ptr<FrameStream>& stream = stream_of_[view.primary_address()];
    if (stream == nullptr) {
      stream =
          streams_->Connect({.address = view.primary_address(), .whom = "the shard"}, answers_);
    }
  }
  return absl::OkStatus();
}

absl::Status LoadWorker::Enter(absl::Duration patience) {
  const absl::Time deadline = MonotonicNow() + patience;
  uint64_t request = kEnterRequest;
  for (uint32_t p = 0; p < layout_.partitions.size();) {
    FrameHeader enter = Header(FrameType::kClose, PartitionId(p), ++request);
    enter.flags = frame_flags::kEnter;
    STARLING_RETURN_IF_ERROR(Send(enter, {}, -1));
    STARLING_ASSIGN_OR_RETURN(const FrameHeader answer, answers_->AwaitEntered(request));
    if (answer.type == FrameType::kAck) {
      first_clock_ = std::max(first_clock_, answer.clock);
      ++p;
    } else if (answer.answer != Answer::kNotHosted || MonotonicNow() > deadline) {
      return absl::FailedPreconditionError(
          absl::StrCat("did not enter partition ", p, ": ", FrameToString(answer)));
    } else {
      absl::SleepFor(kRetryDelay);  // the shard learns of the job later than its worker
    }
  }
  return absl::OkStatus();
}

FrameHeader LoadWorker::Header(FrameType type, PartitionId partition, uint64_t request) const {
  FrameHeader header;
  header.type = type;
  header.key.run = {JobUid(job_.run().job_uid()), job_.run().era()};
  header.partition = partition;
  header.view = ViewNumber(views_[partition.value].number());
  header.roster = RosterNumber(roster_);
  header.origin = {ReplicaId(registration_.id()), WorkerId(registration_.id()),
                   Incarnation(registration_.incarnation()), 0};
  header.request_id = request;
  return header;
}

absl::Status LoadWorker::Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) {
  const std::string& address = views_[header.partition.value].primary_address();
  return stream_of_.at(address)->Send(header, std::move(payload), urgency);
}

absl::Status LoadWorker::SendPush(uint64_t number, uint64_t step, bool skipped) {
  const Slice& slice = layout_.slices[number % layout_.slices.size()];
  const auto* const values = reinterpret_cast<const uint8_t*>(gradients_.get() + slice.flat_begin);
  FrameHeader header = Header(FrameType::kPush, slice.partition, number + 1);
  header.kind = PayloadKind::kDense;
  if (skipped && slice.id != kLossScaleSlice) header.flags = frame_flags::kSkipped;
  header.key.slice = slice.id;
  header.key.work = Item(step);
  header.samples = 1;
  header.clock = first_clock_ + static_cast<Clock>(step);
  header.elements = slice.elements;
  header.payload_bytes = slice.elements * sizeof(float);
  header.digest = XXH3_64bits(values, header.payload_bytes);  // each time, as a worker has to
  return Send(header, {{values, header.payload_bytes}, gradients_}, static_cast<int64_t>(number));
}

absl::Status LoadWorker::SendPull(uint64_t number, uint64_t clock) {
  const Slice& slice = layout_.slices[number % layout_.slices.size()];
  FrameHeader header = Header(FrameType::kPull, slice.partition, kPullRequest | (number + 1));
  header.key.slice = slice.id;
  header.clock = first_clock_ + static_cast<Clock>(clock);
  return Send(header, {}, static_cast<int64_t>(number));
}

absl::Status LoadWorker::SendCloses(uint64_t step) {
  for (uint32_t p = 0; p < layout_.partitions.size(); ++p) {
    FrameHeader close = Header(FrameType::kClose, PartitionId(p), kCloseRequest + step);
    close.key.work = Item(step);
    close.clock = first_clock_ + static_cast<Clock>(step);
    STARLING_RETURN_IF_ERROR(Send(close, {}, -1));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadWorker::Turn> LoadWorker::Run(Traffic traffic, absl::Duration time) {
  {
    MutexLock lock(&mutex_);
    STARLING_RETURN_IF_ERROR(Prefixed("reports to the coordinator", report_status_));
  }
  const bool pushes = traffic != Traffic::kPull;
  const bool pulls = traffic == Traffic::kPull || traffic == Traffic::kBoth;
  const uint64_t slices = layout_.slices.size(), first = next_;
  const absl::Time begin = MonotonicNow();
  while (next_ % slices != 0 || MonotonicNow() - begin < time) {
    if (next_ >= slices) STARLING_RETURN_IF_ERROR(answers_->Await(next_ - slices + 1));
    answers_->Expect(next_, pushes && pulls ? 2 : 1);
    if (pushes) {
      STARLING_RETURN_IF_ERROR(SendPush(next_, steps_, traffic == Traffic::kSkipped));
    }
    if (pulls) STARLING_RETURN_IF_ERROR(SendPull(next_, pushes ? steps_ + 1 : steps_));
    if (++next_ % slices == 0 && pushes) STARLING_RETURN_IF_ERROR(SendCloses(steps_++));
  }
  STARLING_RETURN_IF_ERROR(answers_->Await(next_));
  const uint64_t steps = (next_ - first) / slices * (pushes && pulls ? 2 : 1);
  return Turn{steps * layout_.elements * sizeof(float), MonotonicNow() - begin};
}

}  // namespace starling
