#include "tools/bench/pusher.h"

#include <xxhash.h>

#include <future>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/control/worker_orders.h"

namespace starling {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
constexpr uint64_t kSamples = uint64_t{1} << 31;  // with one in a step: an epoch without end

// Requests are numbered by kind: push n is n + 1, others have one of these bits.
constexpr uint64_t kCloseRequest = uint64_t{1} << 62;
constexpr uint64_t kEnterRequest = uint64_t{1} << 63;

WorkRange Item(uint64_t step) { return {WorkPurpose::kTrain, 0, step, 1}; }

}  // namespace

// What shards answered to pushes, as a window over their numbers, and to requests to enter.
// Thread-safe.
class Pusher::Answers : public StreamHandler {
 public:
  explicit Answers(uint64_t window) : acknowledged_(window) {}

  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    std::string text;
    if (header.kind == PayloadKind::kText) {
      text.resize(payload.size());
      payload.CopyTo(text.data());
    }
    MutexLock lock(&mutex_);
    changed_.SignalAll();
    if (header.request_id & kEnterRequest) {
      entered_[header.request_id] = header;
      return;
    }
    if (header.type != FrameType::kAck) {
      return Fail(absl::FailedPreconditionError(
          absl::StrCat("a shard answered ", FrameToString(header), ": ", text)));
    }
    if (header.request_id & kCloseRequest) return;
    const uint64_t window = acknowledged_.size(), number = header.request_id - 1;
    if (number < oldest_ || number >= oldest_ + window || acknowledged_[number % window]) {
      return Fail(absl::InternalError(
          absl::StrCat("an ack of push ", number, "; the oldest without one is ", oldest_)));
    }
    acknowledged_[number % window] = true;
    for (; acknowledged_[oldest_ % window]; ++oldest_) acknowledged_[oldest_ % window] = false;
  }

  void OnDown(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    changed_.SignalAll();
    Fail(absl::UnavailableError(absl::StrCat("a stream ended: ", status.ToString())));
  }

  // Blocks until all pushes before `number` are acknowledged.
  absl::Status Await(uint64_t number) {
    const absl::Time deadline = MonotonicNow() + kAnswerTimeout;
    MutexLock lock(&mutex_);
    while (status_.ok() && oldest_ < number) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat("no ack of push ", oldest_, " for ",
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
  void Fail(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status_.ok()) status_ = std::move(status);  // the first says why
  }

  Mutex mutex_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  uint64_t oldest_ ABSL_GUARDED_BY(mutex_) = 0;             // all before it are acknowledged
  std::vector<bool> acknowledged_ ABSL_GUARDED_BY(mutex_);  // by number % its size
  std::map<uint64_t, FrameHeader> entered_ ABSL_GUARDED_BY(mutex_);  // by request
};

Pusher::Pusher(const Identity& self, const std::string& coordinator,
               std::shared_ptr<const LinkSecurity> security)
    : self_(self),
      client_(MakeCoordinatorClient(coordinator, self, security)),
      streams_(MakeStreamClient(self, security)) {}

Pusher::~Pusher() {
  over_ = true;
  if (reports_.joinable()) reports_.join();
}

absl::Status Pusher::Join(absl::Duration patience) {
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

absl::Status Pusher::Register() {
  std::promise<absl::StatusOr<RegisterReply>> done;
  // It serves nobody, so nobody needs to reach it.
  client_->Register(MakeRegisterRequest(self_, "127.0.0.1:1"), kCallTimeout,
                    [&](auto reply) { done.set_value(std::move(reply)); });
  STARLING_ASSIGN_OR_RETURN(registration_, done.get_future().get());
  if (registration_.refused().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("refused: ", registration_.refused()));
}

void Pusher::KeepReporting() {
  while (!over_) {
    const absl::Status status = Report();
    if (status.ok()) continue;
    MutexLock lock(&mutex_);
    report_status_ = status;
    changed_.SignalAll();
    return;
  }
}

absl::Status Pusher::Report() {
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

bool Pusher::IsMember() {
  for (const Member& member : orders_.roster().members())
    if (member.worker() == registration_.id()) return true;
  return false;
}

absl::Status Pusher::Connect() {
  STARLING_ASSIGN_OR_RETURN(layout_, MakeLayout(job_.spec()));
  if (layout_.digest != job_.layout_digest()) {
    return absl::FailedPreconditionError("the coordinator is another build: layouts differ");
  }
  gradients_ = std::make_shared<std::vector<float>>(layout_.elements);
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> value(-1e-3f, 1e-3f);
  for (float& gradient : *gradients_) gradient = value(random);
  answers_ = std::make_shared<Answers>(layout_.slices.size());
  for (const View& view : views_) {
    std::shared_ptr<FrameStream>& stream = stream_of_[view.primary_address()];
    if (stream == nullptr) {
      stream =
          streams_->Connect({.address = view.primary_address(), .whom = "the shard"}, answers_);
    }
  }
  return absl::OkStatus();
}

absl::Status Pusher::Enter(absl::Duration patience) {
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

FrameHeader Pusher::Header(FrameType type, PartitionId partition, uint64_t request) const {
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

absl::Status Pusher::Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) {
  const std::string& address = views_[header.partition.value].primary_address();
  return stream_of_.at(address)->Send(header, std::move(payload), urgency);
}

absl::Status Pusher::SendPush(uint64_t number) {
  const uint64_t step = number / layout_.slices.size();
  const Slice& slice = layout_.slices[number % layout_.slices.size()];
  const auto* const values =
      reinterpret_cast<const uint8_t*>(gradients_->data() + slice.flat_begin);
  FrameHeader header = Header(FrameType::kPush, slice.partition, number + 1);
  header.kind = PayloadKind::kDense;
  header.key.slice = slice.id;
  header.key.work = Item(step);
  header.samples = 1;
  header.clock = first_clock_ + static_cast<Clock>(step);
  header.elements = slice.elements;
  header.payload_bytes = slice.elements * sizeof(float);
  header.digest = XXH3_64bits(values, header.payload_bytes);  // each time, as a worker has to
  return Send(header, {{values, header.payload_bytes}, gradients_}, static_cast<int64_t>(number));
}

absl::Status Pusher::SendCloses(uint64_t step) {
  for (uint32_t p = 0; p < layout_.partitions.size(); ++p) {
    FrameHeader close = Header(FrameType::kClose, PartitionId(p), kCloseRequest + step);
    close.key.work = Item(step);
    close.clock = first_clock_ + static_cast<Clock>(step);
    STARLING_RETURN_IF_ERROR(Send(close, {}, -1));
  }
  return absl::OkStatus();
}

absl::StatusOr<Pusher::Turn> Pusher::Push(absl::Duration time) {
  {
    MutexLock lock(&mutex_);
    STARLING_RETURN_IF_ERROR(Prefixed("reports to the coordinator", report_status_));
  }
  const uint64_t slices = layout_.slices.size(), first = next_;
  const absl::Time begin = MonotonicNow();
  while (next_ % slices != 0 || MonotonicNow() - begin < time) {
    if (next_ >= slices) STARLING_RETURN_IF_ERROR(answers_->Await(next_ - slices + 1));
    STARLING_RETURN_IF_ERROR(SendPush(next_));
    if (++next_ % slices == 0) STARLING_RETURN_IF_ERROR(SendCloses(next_ / slices - 1));
  }
  STARLING_RETURN_IF_ERROR(answers_->Await(next_));
  const uint64_t steps = (next_ - first) / slices;
  return Turn{steps * layout_.elements * sizeof(float), MonotonicNow() - begin};
}

}  // namespace starling
