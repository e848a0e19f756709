#include "worker/host/worker_host.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/daemon/daemon.h"
#include "common/defences.h"
#include "common/trace/flow.h"
#include "spdlog/spdlog.h"
#include "worker/host/payload_digest.h"

namespace starling {

namespace action = session::action;
namespace event = session::event;

namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kCallTimeout = absl::Seconds(2);
// The coordinator holds a registration while the name's previous owner may be alive.
constexpr absl::Duration kRegisterTimeout = absl::Seconds(12);
constexpr absl::Duration kComplaintInterval = absl::Seconds(5);
constexpr absl::Duration kMeterWindow = absl::Seconds(2);
constexpr session::Params kBothCopies[] = {session::Params::kLive, session::Params::kSnapshot};

// "push slice 3, repeats worker 2", "pull slice 3, 812 ms for one part".
std::string SpanName(const OpenRequests::Request& request, const FrameHeader& answer) {
  if (request.type != FrameType::kPush) {
    const uint32_t late_ms = answer.late_us / 1000;
    return absl::StrCat("pull slice ", request.slice.value,
                        late_ms == 0 ? "" : absl::StrCat(", ", late_ms, " ms for one part"));
  }
  const uint32_t repeats = request.repeats.value;
  return absl::StrCat("push slice ", request.slice.value,
                      repeats == 0 ? "" : absl::StrCat(", repeats worker ", repeats));
}

// Converts a time of the loop to SpanRing's clock.
uint64_t SpanMicros(absl::Time time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(ToSteady(time).time_since_epoch())
      .count();
}

}  // namespace

// Posts a stream's callbacks to the session's loop, tagged with their connection.
class WorkerHost::ShardStream : public StreamHandler {
 public:
  ShardStream(WorkerHost* host, ShardId shard, uint64_t connection)
      : host_(host), shard_(shard), connection_(connection) {}

  void OnUp() override {
    host_->loop_->Post([host = host_, shard = shard_, connection = connection_] {
      if (!host->IsCurrent(shard, connection)) return;
      host->links_.Up(shard);
      host->Step(event::StreamUp{shard});
    });
  }
  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    host_->loop_->Post([host = host_, shard = shard_, connection = connection_, header,
                        payload = std::move(payload)]() mutable {
      host->OnFrame(shard, connection, header, std::move(payload));
    });
  }
  void OnDown(const absl::Status& status) override {
    host_->loop_->Post([host = host_, shard = shard_, connection = connection_, status] {
      host->OnStreamDown(shard, connection, status);
    });
  }

  uint64_t connection() const { return connection_; }
  // The session's loop only.
  std::shared_ptr<FrameStream> stream;

 private:
  WorkerHost* const host_;
  const ShardId shard_;
  const uint64_t connection_;
};

WorkerHost::WorkerHost(WorkerHostOptions options, WorkerHostParts parts, SpanRing* spans,
                       std::function<void(absl::Status)> on_exit)
    : options_(std::move(options)),
      spans_(spans),
      watch_(parts.watch),
      on_exit_(std::move(on_exit)),
      session_(options_.session),
      meter_(kMeterWindow),
      readiness_(absl::StrCat("registers with the coordinator at ", options_.coordinator)),
      started_(parts.session->Now()),
      progress_([loop = parts.session.get()] { return SpanMicros(loop->Now()); }),
      loop_(std::move(parts.session)),
      runner_(parts.runner(this, &progress_)),
      stream_client_(std::move(parts.streams)),
      coordinator_(std::move(parts.coordinator)),
      opening_(loop_.get(), runner_.get(),
               [this](const JobDescription& description, OpenedJob opened) {
                 OnOpened(description, std::move(opened));
               }) {}

// After the loop has stopped, the session requests nothing and no answers reach it, so the parts
// can be destroyed.
WorkerHost::~WorkerHost() { loop_->Stop(); }

void WorkerHost::Start() {
  loop_->Post([this] { Tick(); });
}

void WorkerHost::Drain() {
  loop_->Post([this] { Step(event::Drain{}); });
}

void WorkerHost::ShowOn(admin::Admin* admin) {
  admin->health().Watch(loop_.get(), "session");
  admin->SetReadiness([this] { return readiness_.WhyNot(); });
  admin->AddMetricsOf([this](admin::MetricsText& metrics) { metrics_.AddMetrics(metrics); });
}

void WorkerHost::Tick() {
  if (exited_) return;
  Step(event::Tick{});
  loop_->PostAfter(kTick, [this] { Tick(); });
}

void WorkerHost::Step(session::Event event) {
  if (exited_) return;
  if (watch_ != nullptr) watch_->OnEvent(session_, event);
  session_.Step(event, loop_->Now(), actions_);
  for (session::Action& next : actions_) {
    if (watch_ != nullptr) watch_->OnAction(next);
    std::visit([this](auto& typed) { Do(std::move(typed)); }, next);
  }
  actions_.clear();
  activity_.Become(session_.activity(), loop_->Now());
}

// ---- Coordinator ----------------------------------------------------------------------------

void WorkerHost::Do(action::Register action) {
  if (registered_once_) {
    readiness_.Set(absl::StrCat("registers anew with the coordinator at ", options_.coordinator));
  }
  RegisterRequest request = options_.registration;
  request.set_nonce(request.nonce() + action.registration);
  coordinator_->Register(request, kRegisterTimeout, [this](absl::StatusOr<RegisterReply> reply) {
    loop_->Post([this, reply = std::move(reply)] {
      if (!reply.ok()) return OnRegisterFailed(reply.status());
      registered_once_ = true;
      last_answer_ = loop_->Now();
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
  const absl::Time now = loop_->Now();
  const std::string text = NoCoordinator(options_.coordinator, now - started_, status);
  if (!registered_once_ && now - started_ > options_.coordinator_timeout) {
    return Do(action::Exit{absl::UnavailableError(text)});
  }
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
      absl::IsUnimplemented(status)) {
    return Do(action::Exit{status});  // asking again is useless
  }
  spdlog::warn("{}", text);
  readiness_.Set(text);
  Step(event::RegisterFailed{status});
}

void WorkerHost::OnReportFailed(const absl::Status& status) {
  const absl::Time now = loop_->Now();
  // What is too large for a message will be too large the next time, too.
  if (absl::IsResourceExhausted(status)) {
    trouble_ = absl::StrCat("reports to the coordinator at ", options_.coordinator,
                            " or its orders do not get through: ", status.message());
    readiness_.Set(trouble_);
  }
  if (now - last_complaint_ < kComplaintInterval) return;
  last_complaint_ = now;
  spdlog::warn("{}; goes on with leased work",
               NoCoordinator(options_.coordinator, now - last_answer_, status));
}

void WorkerHost::Do(action::Report action) {
  const absl::Time now = loop_->Now();
  action.report.set_hidden_share(meter_.hidden_share(now));
  action.report.set_samples_per_second(meter_.samples_per_second(now));
  AddTimes(now, &action.report);
  action.report.set_trouble(trouble_);
  metrics_.Publish(action.report);
  const Incarnation incarnation(action.report.incarnation());
  coordinator_->ReportWorker(action.report, kCallTimeout,
                             [this, incarnation](absl::StatusOr<WorkerOrders> orders) {
                               loop_->Post([this, incarnation, orders = std::move(orders)] {
                                 if (orders.ok()) {
                                   last_answer_ = loop_->Now();
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
  *report->mutable_memory() = job_->memory();
  const ExecutorTimes spent = job_->times();
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

void WorkerHost::Do(action::Warn action) { spdlog::warn("{}", action.text); }

void WorkerHost::Do(action::Exit action) {
  exited_ = true;
  on_exit_(action.status);
}

// ---- Streams --------------------------------------------------------------------------------

void WorkerHost::Do(action::Connect action) {
  auto stream = std::make_shared<ShardStream>(this, action.shard, ++last_connection_);
  ConnectOptions connect;
  connect.address = action.address;
  connect.whom = absl::StrCat("shard ", action.shard.value);
  streams_[action.shard] = stream;
  links_.Connecting(action.shard, action.address);
  stream->stream = stream_client_->Connect(connect, stream);
}

void WorkerHost::Do(action::Disconnect action) {
  links_.Forget(action.shard);  // also where no stream is open, between two attempts
  const auto it = streams_.find(action.shard);
  if (it == streams_.end()) return;
  it->second->stream->Close(absl::CancelledError("the worker is done here"));
  streams_.erase(it);
  requests_.Forget(action.shard);
  MeterRequests();
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
  requests_.Forget(shard);
  MeterRequests();
  Step(event::StreamDown{shard, status});
}

void WorkerHost::OnFrame(ShardId shard, uint64_t connection, const FrameHeader& header,
                         ReceivedPayload payload) {
  if (!IsCurrent(shard, connection) && !DefenceMasked(Defence::kOpenStream)) return;
  event::Frame frame{shard, header, BufferId(), ""};
  const SliceArrival arrival = Answered(shard, header);
  if (header.type == FrameType::kValue) {
    if (PayloadDigest(payload, copies_) != header.digest) {
      streams_[shard]->stream->Close(absl::DataLossError("a value's digest was wrong"));
      return OnStreamDown(shard, connection,
                          absl::DataLossError(absl::StrCat("digest of ", FrameToString(header),
                                                           " differs from its bytes")));
    }
    frame.buffer = buffers_.Add(ArrivedValue{std::move(payload), arrival});
  } else if (header.kind == PayloadKind::kText) {
    frame.text.resize(payload.size());
    payload.CopyTo(frame.text.data());
  }
  Step(std::move(frame));
}

void WorkerHost::Do(action::Send action) {
  const auto it = streams_.find(action.shard);
  if (it == streams_.end()) return;  // its StreamDown is on its way to the session
  OutgoingPayload payload;
  if (action.buffer.value != 0) {
    const std::shared_ptr<GradientBuffer>& gradient = buffers_.Gradient(action.buffer);
    action.header.digest = gradient->digest;
    payload.bytes = absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(gradient->data),
                                        gradient->elements * sizeof(float));
    payload.keep = gradient;
  }
  Remember(action.shard, action.header);
  if (options_.push_delay <= absl::ZeroDuration() || action.header.type != FrameType::kPush) {
    return Transmit(action.shard, action.header, std::move(payload));
  }
  loop_->PostAfter(options_.push_delay,
                   [this, shard = action.shard, connection = it->second->connection(),
                    header = action.header, payload = std::move(payload)]() mutable {
                     if (IsCurrent(shard, connection)) Transmit(shard, header, std::move(payload));
                   });
}

// There must be a stream to the shard.
void WorkerHost::Transmit(ShardId shard, const FrameHeader& header, OutgoingPayload payload) {
  // Slices that forward needs first are the most urgent. A pull stays behind its slice's push.
  const auto& stream = streams_.at(shard);
  const absl::Status sent =
      stream->stream->Send(header, std::move(payload), header.key.slice.value);
  // A stream that has ended reports that itself. After any other error a frame is missing, so the
  // stream is closed and the next one sends the frame again.
  if (!sent.ok() && !absl::IsUnavailable(sent)) {
    stream->stream->Close(sent);
    // Posted, since the session must not be stepped from within a step.
    loop_->Post([this, shard, connection = stream->connection(), sent] {
      OnStreamDown(shard, connection, sent);
    });
  }
}

void WorkerHost::Remember(ShardId shard, const FrameHeader& header) {
  const uint64_t flow = header.type != FrameType::kPush || job_ == nullptr
                            ? 0
                            : FlowOf(header.key.run, header.key.slice, header.key.work,
                                     job_->description().spec().batch().micro_batches());
  const bool push = header.type == FrameType::kPush;
  requests_.Sent(shard, header, flow, push ? repeats_ : WorkerId(), loop_->Now());
  MeterRequests();
}

SliceArrival WorkerHost::Answered(ShardId shard, const FrameHeader& header) {
  const absl::Time now = loop_->Now();
  const uint64_t now_us = SpanMicros(now);
  const std::optional<OpenRequests::Request> request = requests_.Answered(shard, header.request_id);
  if (!request.has_value()) return {now_us, now_us, 0};
  MeterRequests();
  const uint64_t sent_us = SpanMicros(request->sent);
  if (header.type != FrameType::kError) {
    links_.Answered(shard, request->type, request->slice, now - request->sent,
                    absl::Microseconds(header.held_us), now);
  }
  if (request->type != FrameType::kClose) {
    const bool push = request->type == FrameType::kPush;
    spans_->Record(SpanName(*request, header), push ? SpanCategory::kPush : SpanCategory::kPull,
                   sent_us, now_us,
                   {.clock = request->clock, .slice = request->slice.value, .flow = request->flow});
  }
  return {sent_us, now_us, header.held_us};
}

void WorkerHost::MeterRequests() { meter_.InFlight(requests_.transferring(), loop_->Now()); }

// ---- Jobs and data --------------------------------------------------------------------------

void WorkerHost::Do(action::Prepare action) {
  progress_.BecomePreparing();
  opening_.Open(std::move(action.job));
}

void WorkerHost::OnOpened(const JobDescription& description, OpenedJob opened) {
  event::JobPrepared prepared;
  prepared.run = session::RunOf(description.run());
  if (opened.job.ok()) {
    BeginJob(*std::move(opened.job));
    prepared.slices = job_->SliceShapes();
  } else {
    prepared.status = opened.job.status();
    prepared.device_lost = opened.device_lost;
    spdlog::error("cannot serve job \"{}\"{}: {}", description.spec().name(),
                  opened.device_lost ? ", and leaves the cluster" : "", prepared.status.ToString());
  }
  Step(std::move(prepared));
}

void WorkerHost::BeginJob(std::shared_ptr<ServedJob> job) {
  job_ = std::move(job);
  progress_.BecomeServing();
  asked_.clear();
  units_ = samples_ = 0;
  const std::string& name = job_->description().spec().name();
  metrics_.BeginJob(name);
  activity_.Begin(session_.activity(), loop_->Now());
  const size_t slices = job_->layout().slices.size();
  const size_t requests = session::RequestsAtFirst(slices);
  requests_.Reserve(requests);
  buffers_.Reserve(requests);
  spdlog::info("prepared job \"{}\": {} slices, {} bytes planned", name, slices,
               job_->memory().planned_bytes());
  for (const std::string& line : job_->slower_operators()) {
    spdlog::warn("job \"{}\" could be faster here: {}", name, line);
  }
}

void WorkerHost::Do(action::CloseJob action) {
  opening_.Close();
  progress_.BecomeIdle();
  if (job_ != nullptr && job_->run() == action.run) {
    Do(action::ForgetValues{});  // drops values that wait for the unit
    runner_->Release();
    job_.reset();
    metrics_.EndJob();
  }
  requests_.Clear();
  MeterRequests();
  runner_->ReturnMemory();
}

void WorkerHost::Do(action::Inspect action) {
  runner_->Inspect(action.request.spec(), [this, request = action.request.request()](
                                              Inspection inspection) {
    inspection.set_request(request);
    loop_->Post([this, inspection = std::move(inspection)] { Step(event::Inspected{inspection}); });
  });
}

void WorkerHost::Do(action::Prefetch action) {
  if (job_ == nullptr) return;
  const auto wanted = [&](const WorkRange& range) {
    return absl::c_linear_search(action.ranges, range);
  };
  const bool stale = !absl::c_all_of(asked_, wanted);
  if (stale) {
    job_->ClearPrefetched();
    asked_.clear();
  }
  for (const WorkRange& range : action.ranges) {
    if (!asked_.insert(range).second) continue;
    const absl::Status status = job_->Prefetch(range);
    if (!status.ok()) spdlog::error("cannot stage batches: {}", status.ToString());
  }
}

// ---- Computing ------------------------------------------------------------------------------

void WorkerHost::Do(action::Compute action) {
  for (const WorkRange& range : action.ranges) asked_.erase(range);
  computing_ = action.purpose;
  repeats_ = action.repeats;
  job_->copy(action.params).BeginUnit(action.unit);
  job_->Start(std::move(action));
}

void WorkerHost::Do(action::Abandon action) {
  for (const session::Params params : kBothCopies) job_->copy(params).AbandonUnit(action.unit);
  runner_->Abandon(action.unit);
}

void WorkerHost::OnBegin() {
  loop_->Post([this] { meter_.UnitBegan(loop_->Now()); });
}

void WorkerHost::OnGradient(event::SliceGradient gradient, std::shared_ptr<GradientBuffer> buffer) {
  loop_->Post([this, gradient, buffer = std::move(buffer)]() mutable {
    using Buffer = std::shared_ptr<GradientBuffer>;
    // If masked, the memory is returned at the end of this function.
    gradient.buffer = buffers_.Add(DefenceMasked(Defence::kBufferUntilAck)
                                       ? Buffer(std::shared_ptr<void>(), buffer.get())
                                       : buffer);
    Step(gradient);
  });
}

void WorkerHost::OnComputed(event::UnitComputed unit, absl::Duration waited) {
  loop_->Post([this, unit = std::move(unit), waited]() mutable {
    uint64_t samples = 0;
    for (const event::RangeMetrics& range : unit.metrics) samples += range.samples;
    CountUnit(samples, waited);
    Step(std::move(unit));
  });
}

void WorkerHost::CountUnit(uint64_t samples, absl::Duration waited) {
  const bool train = computing_ == WorkPurpose::kTrain;
  meter_.UnitEnded(waited, train ? samples : 0, loop_->Now());
  if (!train) return;
  ++units_;
  samples_ += samples;
  if (job_ != nullptr) metrics_.Unit(job_->times(), samples);
}

void WorkerHost::OnFailed(event::UnitFailed unit, absl::Duration waited) {
  loop_->Post([this, unit = std::move(unit), waited]() mutable {
    meter_.UnitEnded(waited, 0, loop_->Now());
    if (unit.device_lost) spdlog::error("leaves the cluster: {}", unit.status.ToString());
    Step(std::move(unit));
  });
}

void WorkerHost::OnStopped(session::UnitId unit) {
  loop_->Post([this, unit] {
    if (job_ == nullptr) return;  // the unit's job has been closed
    for (const session::Params params : kBothCopies) job_->copy(params).EndUnit(unit);
  });
}

void WorkerHost::Do(action::InstallValue action) {
  ArrivedValue value = buffers_.TakeValue(action.buffer);
  job_->copy(action.params)
      .Install({action.slice, action.clock, action.loss_scale_log2, std::move(value.payload),
                value.arrival});
}

void WorkerHost::Do(action::ForgetValues action) {
  if (job_ == nullptr) return;
  job_->copy(session::Params::kLive).Forget();
  if (action.snapshot_too) job_->copy(session::Params::kSnapshot).Forget();
}

void WorkerHost::Do(action::ReleaseBuffer action) { buffers_.Release(action.buffer); }

}  // namespace starling
