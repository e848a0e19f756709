#include "worker/host/worker_host.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/reserve_nodes.h"
#include "common/daemon/daemon.h"
#include "common/trace/flow.h"
#include "spdlog/spdlog.h"
#include "worker/data/data_set.h"
#include "worker/host/payload_digest.h"

namespace starling {

namespace action = session::action;
namespace event = session::event;

namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kCallTimeout = absl::Seconds(2);
// The coordinator holds a registration while the name's owner before may be alive.
constexpr absl::Duration kRegisterTimeout = absl::Seconds(12);
constexpr absl::Duration kComplaintInterval = absl::Seconds(5);
constexpr absl::Duration kMeterWindow = absl::Seconds(2);

session::SessionOptions MakeSessionOptions(const WorkerHostOptions& options) {
  session::SessionOptions session;
  session.name = options.name;
  return session;
}

}  // namespace

// Hands a stream's callbacks to the session's thread, tagged with the connection that they belong
// to.
class WorkerHost::ShardStream : public StreamHandler {
 public:
  ShardStream(WorkerHost* runtime, ShardId shard, uint64_t connection)
      : runtime_(runtime), shard_(shard), connection_(connection) {}

  void OnUp() override {
    runtime_->loop_.Post([runtime = runtime_, shard = shard_, connection = connection_] {
      if (!runtime->IsCurrent(shard, connection)) return;
      runtime->links_.Up(shard);
      runtime->Step(event::StreamUp{shard});
    });
  }
  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    runtime_->loop_.Post([runtime = runtime_, shard = shard_, connection = connection_, header,
                          payload = std::move(payload)]() mutable {
      runtime->OnFrame(shard, connection, header, std::move(payload));
    });
  }
  void OnDown(const absl::Status& status) override {
    runtime_->loop_.Post([runtime = runtime_, shard = shard_, connection = connection_, status] {
      runtime->OnStreamDown(shard, connection, status);
    });
  }

  uint64_t connection() const { return connection_; }
  // Session's thread.
  std::shared_ptr<FrameStream> stream;

 private:
  WorkerHost* const runtime_;
  const ShardId shard_;
  const uint64_t connection_;
};

WorkerHost::WorkerHost(WorkerHostOptions options, std::unique_ptr<CoordinatorClient> coordinator,
                       std::unique_ptr<StreamClient> streams, const WorkerDevices* devices,
                       SpanRing* spans, StepRecorder* recorder,
                       std::function<void(absl::Status)> on_exit)
    : options_(std::move(options)),
      devices_(devices),
      spans_(spans),
      recorder_(recorder),
      on_exit_(std::move(on_exit)),
      session_(MakeSessionOptions(options_)),
      meter_(kMeterWindow),
      readiness_(absl::StrCat("registers with the coordinator at ", options_.coordinator)),
      started_(MonotonicNow()),
      loop_("session"),
      background_("background"),
      coordinator_(std::move(coordinator)),
      stream_client_(std::move(streams)) {
  ComputeListener listener;
  listener.on_begin = [this](session::UnitId) {
    loop_.Post([this] { meter_.UnitBegan(MonotonicNow()); });
  };
  listener.on_gradient = [this](FinishedGradient gradient) {
    loop_.Post(
        [this, gradient = std::move(gradient)]() mutable { OnGradient(std::move(gradient)); });
  };
  listener.on_unit = [this](FinishedUnit unit) {
    loop_.Post([this, unit = std::move(unit)]() mutable { OnUnit(std::move(unit)); });
  };
  listener.on_stopped = [this](session::UnitId unit) {
    loop_.Post([this, unit] {
      for (const action::InstallValue& value : gate_.Stopped(unit)) Install(value);
    });
  };
  compute_ = std::make_unique<ComputeThread>(std::move(listener), recorder_, &progress_);
}

WorkerHost::~WorkerHost() {
  // From here on the session asks for nothing, so what it would ask may go.
  absl::Notification silent;
  loop_.Post([this, &silent] {
    exited_ = true;
    silent.Notify();
  });
  silent.WaitForNotification();
  coordinator_.reset();
  stream_client_.reset();
  background_.Stop();
  compute_.reset();
  loop_.Stop();
}

void WorkerHost::Start() {
  loop_.Post([this] { Tick(); });
}

void WorkerHost::Drain() {
  loop_.Post([this] { Step(event::Drain{}); });
}

void WorkerHost::ShowOn(admin::Admin* admin) {
  admin->health().Watch(&loop_, "session");
  admin->SetReadiness([this] { return readiness_.WhyNot(); });
  admin->AddMetricsOf([this](admin::MetricsText& metrics) { metrics_.AddMetrics(metrics); });
}

void WorkerHost::Tick() {
  if (exited_) return;
  Step(event::Tick{});
  loop_.PostAfter(kTick, [this] { Tick(); });
}

void WorkerHost::Step(session::Event event) {
  if (exited_) return;
  session_.Step(event, MonotonicNow(), [this](session::Action&& next) {
    std::visit([this](auto&& typed) { Carry(std::move(typed)); }, std::move(next));
  });
  activity_.Become(session_.activity(), MonotonicNow());
}

// ---- Coordinator ----------------------------------------------------------------------------

void WorkerHost::Carry(action::Register action) {
  if (registered_once_) {
    readiness_.Set(absl::StrCat("registers anew with the coordinator at ", options_.coordinator));
  }
  RegisterRequest request = options_.registration;
  request.set_nonce(request.nonce() + action.registration);
  coordinator_->Register(request, kRegisterTimeout, [this](absl::StatusOr<RegisterReply> reply) {
    loop_.Post([this, reply = std::move(reply)] {
      if (!reply.ok()) return OnRegisterFailed(reply.status());
      registered_once_ = true;
      last_answer_ = MonotonicNow();
      if (!reply->refused().empty()) {
        return Step(event::RegisterFailed{absl::FailedPreconditionError(reply->refused())});
      }
      readiness_.Set("");
      spdlog::info("registered as worker {}, incarnation {}, with generation {} of the coordinator",
                   reply->id(), reply->incarnation(), reply->generation());
      Step(event::Registered{WorkerId(reply->id()), Incarnation(reply->incarnation()),
                             Generation(reply->generation()), reply->cluster()});
    });
  });
}

void WorkerHost::OnRegisterFailed(const absl::Status& status) {
  const absl::Time now = MonotonicNow();
  const std::string text = NoCoordinator(options_.coordinator, now - started_, status);
  if (!registered_once_ && now - started_ > options_.coordinator_timeout) {
    return Carry(action::Exit{absl::UnavailableError(text)});
  }
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
      absl::IsUnimplemented(status)) {
    return Carry(action::Exit{status});  // asking again changes nothing
  }
  spdlog::warn("{}", text);
  readiness_.Set(text);
  Step(event::RegisterFailed{status});
}

void WorkerHost::OnReportFailed(const absl::Status& status) {
  const absl::Time now = MonotonicNow();
  // What does not fit into a message will not fit the next time.
  if (absl::IsResourceExhausted(status)) {
    trouble_ = absl::StrCat("reports to the coordinator at ", options_.coordinator,
                            " or its orders do not get through: ", status.message());
    readiness_.Set(trouble_);
  }
  if (now - last_complaint_ < kComplaintInterval) return;
  last_complaint_ = now;
  spdlog::warn("{}; going on with what was leased",
               NoCoordinator(options_.coordinator, now - last_answer_, status));
}

void WorkerHost::Carry(action::Report action) {
  const absl::Time now = MonotonicNow();
  action.report.set_hidden_share(meter_.hidden_share(now));
  action.report.set_samples_per_second(meter_.samples_per_second(now));
  AddTimes(now, &action.report);
  action.report.set_trouble(trouble_);
  metrics_.Publish(action.report);
  const Incarnation incarnation(action.report.incarnation());
  coordinator_->ReportWorker(action.report, kCallTimeout,
                             [this, incarnation](absl::StatusOr<WorkerOrders> orders) {
                               loop_.Post([this, incarnation, orders = std::move(orders)] {
                                 if (orders.ok()) {
                                   last_answer_ = MonotonicNow();
                                   if (!std::exchange(trouble_, "").empty()) readiness_.Set("");
                                   Step(event::Orders{incarnation, *orders});
                                 } else {
                                   OnReportFailed(orders.status());
                                   Step(event::ReportFailed{incarnation, orders.status()});
                                 }
                               });
                             });
}

void WorkerHost::AddTimes(absl::Time now, WorkerReport* report) {
  links_.Report(
      [this](ShardId shard) {
        const auto it = streams_.find(shard);
        return it == streams_.end() ? FrameStream::Stats() : it->second->stream->stats();
      },
      now, report);
  *report->mutable_activity() = progress_.Now();
  if (job_ == nullptr || !report->has_run()) return;
  if (report->prepared()) report->set_data_digest(job_->data_digest());
  MemoryUse& memory = *report->mutable_memory();
  memory.set_planned_bytes(job_->executor().planned_bytes());
  memory.set_activation_bytes(job_->executor().planned_activation_bytes());
  memory.set_peak_bytes(PeakResidentBytes());
  memory.set_device_peak_bytes(job_->executor().device_peak_bytes());
  const ExecutorTimes spent = job_->executor().times();
  StepTimes& times = *report->mutable_times();
  times.set_units(units_);
  times.set_samples(samples_);
  times.set_total(spent.total);
  times.set_data(spent.data);
  times.set_forward(spent.forward);
  times.set_backward(spent.backward);
  times.set_pull(spent.values);
  times.set_wait(spent.held);
  times.set_push(spent.push + activity_.seconds(session::Activity::kUnacked, now));
  times.set_idle(activity_.seconds(session::Activity::kIdle, now));
}

void WorkerHost::Carry(action::Exit action) {
  exited_ = true;
  on_exit_(action.status);
}

// ---- Streams --------------------------------------------------------------------------------

void WorkerHost::Carry(action::Connect action) {
  auto stream = std::make_shared<ShardStream>(this, action.shard, ++last_connection_);
  ConnectOptions connect;
  connect.address = action.address;
  connect.whom = absl::StrCat("shard ", action.shard.value);
  streams_[action.shard] = stream;
  links_.Connecting(action.shard, action.address);
  stream->stream = stream_client_->Connect(connect, stream);
}

void WorkerHost::Carry(action::Disconnect action) {
  const auto it = streams_.find(action.shard);
  if (it == streams_.end()) return;
  it->second->stream->Close(absl::CancelledError("the worker is done here"));
  streams_.erase(it);
  links_.Forget(action.shard);
  meter_.Forget(action.shard, MonotonicNow());
}

bool WorkerHost::IsCurrent(ShardId shard, uint64_t connection) const {
  const auto it = streams_.find(shard);
  return it != streams_.end() && it->second->connection() == connection;
}

void WorkerHost::OnStreamDown(ShardId shard, uint64_t connection, const absl::Status& status) {
  if (!IsCurrent(shard, connection)) return;
  spdlog::warn("stream to shard {} is down: {}", shard.value, status.ToString());
  links_.Down(shard, streams_.at(shard)->stream->stats(), status.ToString());
  streams_.erase(shard);
  meter_.Forget(shard, MonotonicNow());
  Step(event::StreamDown{shard, status});
}

void WorkerHost::OnFrame(ShardId shard, uint64_t connection, const FrameHeader& header,
                         ReceivedPayload payload) {
  if (!IsCurrent(shard, connection)) return;
  event::Frame frame{shard, header, BufferId(), ""};
  const SliceArrival arrival = Answered(shard, header);
  if (header.type == FrameType::kValue) {
    if (PayloadDigest(payload) != header.digest) {
      streams_[shard]->stream->Close(absl::DataLossError("a value's digest was wrong"));
      return OnStreamDown(shard, connection,
                          absl::DataLossError(absl::StrCat("digest of ", FrameToString(header),
                                                           " differs from its bytes")));
    }
    frame.buffer = buffers_.Add(HeldValue{std::move(payload), arrival});
  } else if (header.kind == PayloadKind::kText) {
    frame.text.resize(payload.size());
    payload.CopyTo(frame.text.data());
    spdlog::warn("shard {} answers: {}: {}", shard.value, FrameToString(header), frame.text);
  }
  Step(std::move(frame));
}

void WorkerHost::Carry(action::Send action) {
  const auto it = streams_.find(action.shard);
  if (it == streams_.end()) return;  // its StreamDown is on the way to the session
  OutgoingPayload payload;
  if (action.buffer.value != 0) {
    const auto* gradient = std::get_if<HeldGradient>(buffers_.Find(action.buffer));
    action.header.digest = gradient->digest;
    payload.bytes = absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(gradient->buffer->data),
                                        gradient->buffer->elements * sizeof(float));
    payload.keep = gradient->buffer;
  }
  Remember(action.shard, action.header);
  if (options_.push_delay <= absl::ZeroDuration() || action.header.type != FrameType::kPush) {
    return Transmit(action.shard, action.header, std::move(payload));
  }
  loop_.PostAfter(options_.push_delay,
                  [this, shard = action.shard, connection = it->second->connection(),
                   header = action.header, payload = std::move(payload)]() mutable {
                    if (IsCurrent(shard, connection)) Transmit(shard, header, std::move(payload));
                  });
}

// There is a stream to the shard.
void WorkerHost::Transmit(ShardId shard, const FrameHeader& header, OutgoingPayload payload) {
  // Slices that forward needs first are the most urgent; a pull stays behind its slice's push.
  const auto& stream = streams_.at(shard);
  const absl::Status sent =
      stream->stream->Send(header, std::move(payload), header.key.slice.value);
  // A stream that is over says so itself. After any other error a frame is missing: the next stream
  // has it.
  if (!sent.ok() && !absl::IsUnavailable(sent)) {
    stream->stream->Close(sent);
    // After the step that sent this: the session must not be stepped from within.
    loop_.Post([this, shard, connection = stream->connection(), sent] {
      OnStreamDown(shard, connection, sent);
    });
  }
}

void WorkerHost::Remember(ShardId shard, const FrameHeader& header) {
  const uint64_t flow = header.type != FrameType::kPush || job_ == nullptr
                            ? 0
                            : FlowOf(header.key.run, header.key.slice, header.key.work,
                                     job_->description().spec().batch().micro_batches());
  if (header.type == FrameType::kPull) {
    const bool evaluation = header.key.work.purpose == WorkPurpose::kEvaluate;
    const std::pair<ShardId, uint64_t> request(shard, header.request_id);
    auto& newest = newest_pull_[{header.key.slice, evaluation}];
    if (newest != request && open_requests_.erase(newest) > 0) {
      meter_.Answered(newest.first, newest.second, MonotonicNow());
    }
    newest = request;
  }
  open_requests_[{shard, header.request_id}] = {.type = header.type,
                                                .begin_us = SpanRing::NowMicros(),
                                                .clock = header.clock,
                                                .slice = header.key.slice,
                                                .flow = flow};
  if (header.type != FrameType::kClose) meter_.Sent(shard, header.request_id, MonotonicNow());
}

SliceArrival WorkerHost::Answered(ShardId shard, const FrameHeader& header) {
  const uint64_t now_us = SpanRing::NowMicros();
  const auto it = open_requests_.find({shard, header.request_id});
  if (it == open_requests_.end()) return {now_us, now_us, 0};
  const OpenRequest request = it->second;
  open_requests_.erase(it);
  if (header.type != FrameType::kError) {
    links_.Answered(shard, request.type, request.slice,
                    absl::Microseconds(now_us - request.begin_us),
                    absl::Microseconds(header.held_us), MonotonicNow());
  }
  if (request.type != FrameType::kClose) {
    const bool push = request.type == FrameType::kPush;
    spans_->Record(absl::StrCat(push ? "push slice " : "pull slice ", request.slice.value),
                   push ? SpanCategory::kPush : SpanCategory::kPull, request.begin_us, now_us,
                   {.clock = request.clock, .slice = request.slice.value, .flow = request.flow});
    meter_.Answered(shard, header.request_id, MonotonicNow());
  }
  return {request.begin_us, now_us, header.held_us};
}

// ---- Jobs and data --------------------------------------------------------------------------

void WorkerHost::Carry(action::Prepare action) {
  progress_.BecomePreparing();
  background_.Post([this, number = ++last_prepare_, description = std::move(action.job)] {
    compute_->WaitUntilStopped();  // the job before leaves its memory
    // So does one that was closed while it was prepared: the loop drops it before it comes to this.
    absl::Notification dropped;
    bool closed = false;
    if (!loop_.Post([&] {
          closed = number != last_prepare_;
          dropped.Notify();
        })) {
      return;
    }
    dropped.WaitForNotification();
    if (closed) return;
    ReturnFreedMemory();
    ForgetPeakResidentBytes();
    const absl::StatusOr<Device*> device = devices_->For(description.spec().device());
    const std::string shared = device.ok() ? SharedMemoryNotice(**device) : "";
    if (!shared.empty()) spdlog::warn("{}", shared);
    auto job = device.ok() ? ServedJob::Open(description, options_.job, *device, spans_)
                           : absl::StatusOr<std::shared_ptr<ServedJob>>(device.status());
    const bool lost = !job.ok() && device.ok() && IsLost(**device);
    loop_.Post([this, number, description, job = std::move(job), lost] {
      if (number != last_prepare_) return;  // closed meanwhile, and perhaps prepared anew
      event::JobPrepared prepared;
      prepared.run = {JobUid(description.run().job_uid()), description.run().era()};
      if (job.ok()) {
        job_ = *job;
        progress_.BecomeServing();
        asked_.clear();
        units_ = samples_ = 0;
        metrics_.BeginJob(description.spec().name());
        activity_.Begin(session_.activity(), MonotonicNow());
        prepared.slices = job_->SliceShapes();
        ReserveRequests(session::RequestsAtFirst(prepared.slices.size()));
        if (recorder_ != nullptr) recorder_->BeginJob(job_);
        spdlog::info("prepared job \"{}\": {} slices, {} bytes planned, and {} pinned",
                     description.spec().name(), prepared.slices.size(),
                     job_->executor().planned_bytes(), job_->executor().pinned_bytes());
        for (const std::string& line : job_->executor().slower_operators()) {
          spdlog::warn("job \"{}\" could be faster here: {}", description.spec().name(), line);
        }
      } else {
        prepared.status = job.status();
        prepared.device_lost = lost;
        spdlog::error("cannot serve job \"{}\"{}: {}", description.spec().name(),
                      lost ? ", and leaves the cluster" : "", job.status().ToString());
      }
      Step(std::move(prepared));
    });
  });
}

void WorkerHost::ReserveRequests(size_t requests) {
  ReserveNodes(
      requests, [](uint64_t i) { return std::pair(ShardId(), i); }, &open_requests_);
  meter_.Reserve(requests);
  buffers_.Reserve(requests);
}

void WorkerHost::Carry(action::CloseJob action) {
  ++last_prepare_;
  progress_.BecomeIdle();
  if (job_ != nullptr && job_->run() == action.run) {
    compute_->Release();
    job_.reset();
    if (recorder_ != nullptr) recorder_->BeginJob(nullptr);
    metrics_.EndJob();
  }
  open_requests_.clear();
  newest_pull_.clear();
  ReleaseForgotten(/*snapshot_too=*/true);
  compute_->ReturnMemory();
}

void WorkerHost::Carry(action::Inspect action) {
  background_.Post([this, request = std::move(action.request)] {
    Inspection inspection = InspectData(request.spec());
    inspection.set_request(request.request());
    loop_.Post([this, inspection = std::move(inspection)] { Step(event::Inspected{inspection}); });
  });
}

void WorkerHost::Carry(action::Prefetch action) {
  if (job_ == nullptr) return;
  const auto wanted = [&](const WorkRange& range) {
    return absl::c_linear_search(action.ranges, range);
  };
  const bool stale = !absl::c_all_of(asked_, wanted);
  if (stale) {
    job_->loader().Clear();
    asked_.clear();
  }
  for (const WorkRange& range : action.ranges) {
    if (!asked_.insert(range).second) continue;
    const absl::Status status = job_->loader().Prefetch(range);
    if (!status.ok()) spdlog::error("cannot stage batches: {}", status.ToString());
  }
}

// ---- Computing ------------------------------------------------------------------------------

void WorkerHost::Carry(action::Compute action) {
  for (const WorkRange& range : action.ranges) asked_.erase(range);
  computing_ = action;
  gate_.Started(action.unit, action.params);
  compute_->Start(job_, std::move(action));
}

void WorkerHost::Carry(action::Abandon action) {
  gate_.Abandoned(action.unit);
  compute_->Abandon(action.unit);
}

void WorkerHost::OnGradient(FinishedGradient gradient) {
  if (recorder_ != nullptr && gradient.unit == computing_.unit) {
    recorder_->Gradient(gradient.slice, computing_.clock,
                        absl::MakeConstSpan(gradient.buffer->data, gradient.buffer->elements));
  }
  event::SliceGradient ready;
  ready.unit = gradient.unit;
  ready.range = gradient.range;
  ready.slice = gradient.slice;
  ready.samples = gradient.samples;
  ready.loss_scale_log2 = static_cast<uint8_t>(gradient.loss_scale_log2);
  ready.skipped = gradient.skipped;
  ready.buffer = buffers_.Add(HeldGradient{std::move(gradient.buffer), gradient.digest});
  Step(ready);
}

void WorkerHost::OnUnit(FinishedUnit unit) {
  uint64_t samples = 0;
  for (const RangeResult& range : unit.result.ranges) samples += range.samples;
  const double waited = unit.result.slice_wait_seconds + unit.result.ack_wait_seconds;
  const bool train = computing_.purpose == WorkPurpose::kTrain;
  meter_.UnitEnded(absl::Seconds(waited), train ? samples : 0, MonotonicNow());
  if (!unit.status.ok()) {
    if (unit.device_lost) spdlog::error("leaves the cluster: {}", unit.status.ToString());
    return Step(event::UnitFailed{unit.unit, unit.status, unit.device_lost});
  }
  if (train) {
    ++units_;
    samples_ += samples;
    if (job_ != nullptr) metrics_.Unit(job_->executor().times(), samples);
  }
  event::UnitComputed computed;
  computed.unit = unit.unit;
  computed.finite = unit.result.finite;
  computed.bad_layer = unit.result.bad_layer;
  for (const RangeResult& range : unit.result.ranges) {
    computed.metrics.push_back({range.loss_sum, range.samples, range.correct});
  }
  Step(std::move(computed));
}

void WorkerHost::Carry(action::InstallValue action) {
  if (gate_.Admit(action)) Install(action);
}

void WorkerHost::ReleaseForgotten(bool snapshot_too) {
  for (const action::InstallValue& value : gate_.Forget(snapshot_too))
    buffers_.Release(value.buffer);
}

void WorkerHost::Install(const action::InstallValue& action) {
  const auto* value = std::get_if<HeldValue>(buffers_.Find(action.buffer));
  if (job_ != nullptr) {
    const Slice& slice = job_->layout().slices[action.slice.value];
    float* to = job_->parameters(action.params) + slice.flat_begin;
    value->payload.CopyTo(to);
    if (recorder_ != nullptr && action.params == session::Params::kLive) {
      recorder_->Value(action.slice, action.clock, absl::MakeConstSpan(to, slice.elements));
    }
    job_->versions(action.params)
        .Set(action.slice, action.clock, value->arrival, action.loss_scale_log2);
  }
  buffers_.Release(action.buffer);
}

void WorkerHost::Carry(action::ForgetValues action) {
  ReleaseForgotten(action.snapshot_too);
  if (job_ == nullptr) return;
  job_->versions(session::Params::kLive).Forget();
  if (action.snapshot_too) job_->versions(session::Params::kSnapshot).Forget();
}

void WorkerHost::Carry(action::ReleaseBuffer action) { buffers_.Release(action.buffer); }

}  // namespace starling
