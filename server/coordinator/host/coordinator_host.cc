#include "server/coordinator/host/coordinator_host.h"

#include <spdlog/spdlog.h>

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kDiskDeadline = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorHost>> CoordinatorHost::Start(
    const CoordinatorOptions& options, Parts parts) {
  STARLING_ASSIGN_OR_RETURN(const StoreSnapshot snapshot, parts.store->Load());
  STARLING_ASSIGN_OR_RETURN(std::unique_ptr<Coordinator> core,
                            Coordinator::Create(options, snapshot));
  std::unique_ptr<CoordinatorHost> host(
      new CoordinatorHost(options, std::move(core), std::move(parts)));
  // Nothing is posted to the loop yet, so this thread still owns the core.
  Actions actions;
  host->core_->Start(host->loop_->Now(), host->wall_(), actions);
  host->generation_ = host->core_->generation();
  host->CarryOut(std::move(actions));
  if (!host->closed_.ok()) return host->closed_;
  host->loop_->Post([host = host.get()] { host->Tick(); });
  return host;
}

CoordinatorHost::CoordinatorHost(const CoordinatorOptions& options,
                                 std::unique_ptr<Coordinator> core, Parts parts)
    : on_fatal_(std::move(parts.on_fatal)),
      wall_(std::move(parts.wall)),
      core_(std::move(core)),
      store_(std::move(parts.store)),
      curves_(options.tensorboard_root, parts.make_loop),
      outputs_(options.output_root, std::move(parts.read), parts.make_loop),
      checkpoints_(std::move(parts.checkpoints), parts.make_loop),
      heartbeats_(options.report_hold, std::move(parts.asker), parts.make_loop),
      loop_(parts.make_loop("coordinator")) {}

CoordinatorHost::~CoordinatorHost() { Stop(); }

CallId CoordinatorHost::Call(MakeEvent make_event, Done done) {
  const CallId call(next_call_.fetch_add(1));
  auto shared = std::make_shared<Done>(std::move(done));
  const bool posted = loop_->Post([this, call, make_event = std::move(make_event), shared] {
    if (!closed_.ok()) return (*shared)(closed_);
    waiting_.emplace(call, std::move(*shared));
    const Event event = make_event(call);
    const auto* const submit = std::get_if<event::Submit>(&event);
    if (submit == nullptr || !core_->AsksForDisk(submit->request)) return Step(event);
    AskDisk(call, submit->request);
  });
  if (!posted) (*shared)(absl::UnavailableError("the coordinator is shutting down"));
  return call;
}

void CoordinatorHost::AskDisk(CallId call, const SubmitRequest& request) {
  // If a disk hangs, it is still asked after the calls have timed out.
  if (disk_asked_ >= limits::kSubmissionsMax) {
    return Answer(call, absl::ResourceExhaustedError(absl::StrCat(
                            disk_asked_,
                            " submissions wait for a disk of the coordinator's machine, for their "
                            "checkpoints or their folders of event files: try again in a moment")));
  }
  ++disk_asked_;
  const std::string what = request.from().empty()
                               ? absl::StrCat(
                                     "tensorboard: the check whether event files can be "
                                     "written to ",
                                     request.spec().tensorboard())
                               : absl::StrCat("from: reading checkpoint ", request.from());
  const EventLoop::TimerId timer = loop_->PostAfter(kDiskDeadline, [this, call, what] {
    Answer(call, absl::DeadlineExceededError(
                     absl::StrCat(what, " took longer than ", absl::FormatDuration(kDiskDeadline),
                                  ": its disk hangs, on the coordinator's machine")));
  });
  event::Submit event{call, request};
  const std::optional<CheckpointInfo> info = core_->FindCheckpoint(request);
  if (!info) return AskForFolder(std::move(event), timer);
  checkpoints_.Read(*info, [this, event = std::move(event),
                            timer](absl::StatusOr<CheckpointManifest> manifest) mutable {
    event.from = std::move(manifest);
    loop_->Post([this, event = std::move(event), timer]() mutable {
      AskForFolder(std::move(event), timer);
    });
  });
}

// For event files, if the job asks for them.
void CoordinatorHost::AskForFolder(event::Submit event, EventLoop::TimerId timer) {
  const bool continues = event.from && event.from->ok() && !event.request.has_spec();
  const JobSpec& spec = continues ? (*event.from)->job().spec() : event.request.spec();
  const std::string folder = spec.tensorboard();
  if (folder.empty() || event.request.dry_run()) return EndAsking(std::move(event), timer);
  curves_.Check(folder, [this, event = std::move(event), timer](absl::Status status) mutable {
    event.tensorboard = std::move(status);
    loop_->Post(
        [this, event = std::move(event), timer]() mutable { EndAsking(std::move(event), timer); });
  });
}

void CoordinatorHost::EndAsking(event::Submit event, EventLoop::TimerId timer) {
  --disk_asked_;
  loop_->Cancel(timer);
  if (waiting_.count(event.call) > 0) Step(event);
}

void CoordinatorHost::Gone(CallId call) {
  loop_->Post([this, call] {
    if (waiting_.count(call) == 0) return;
    if (closed_.ok()) Step(event::CallGone{call});
    Answer(call, absl::CancelledError("the caller hung up"));
  });
}

void CoordinatorHost::BeginShutdown() {
  std::promise<void> done;
  heartbeats_.Stop();
  const bool posted = loop_->Post([&] {
    AnswerAll(absl::UnavailableError("the coordinator is shutting down"));
    done.set_value();
  });
  if (posted) done.get_future().get();
}

void CoordinatorHost::Stop() {
  BeginShutdown();
  outputs_.Stop();
  curves_.Stop();
  checkpoints_.Stop();
  loop_->Stop();
}

void CoordinatorHost::Step(const Event& event) {
  Actions actions;
  core_->Step(event, loop_->Now(), actions);
  CarryOut(std::move(actions));
}

// On any thread.
void CoordinatorHost::PostStep(Event event) {
  loop_->Post([this, event = std::move(event)] {
    if (closed_.ok()) Step(event);
  });
}

void CoordinatorHost::CarryOut(Actions actions) {
  for (Action& action : actions) {
    if (!closed_.ok()) return;
    std::visit([this](auto& typed) { Do(typed); }, action);
  }
}

void CoordinatorHost::Tick() {
  if (!closed_.ok()) return;
  Step(event::Tick{wall_(), heartbeats_.TakeAll()});
  loop_->PostAfter(kCoordinatorTickPeriod, [this] { Tick(); });
}

void CoordinatorHost::Do(const action::Persist& action) {
  const absl::Status status = store_->Apply(action.batch);
  if (status.ok()) return;
  // The following actions must not become visible: their state is not durable.
  AnswerAll(absl::UnavailableError(
      absl::StrCat("the coordinator cannot store its state: ", status.message())));
  on_fatal_(status);
}

void CoordinatorHost::Do(action::Reply& action) { Answer(action.call, std::move(action.reply)); }

void CoordinatorHost::Do(const action::WriteCurve& action) { curves_.Write(action.news); }

void CoordinatorHost::Do(const action::WriteOutput& action) {
  outputs_.Write(action.job,
                 [this, uid = action.job.status().uid()](absl::StatusOr<uint64_t> bytes) {
                   PostStep(event::OutputWritten{uid, std::move(bytes)});
                 });
}

void CoordinatorHost::Do(const action::MakeCheckpoint& action) {
  checkpoints_.Make(action, [this, id = action.id](absl::Status status) {
    PostStep(event::CheckpointMade{id, std::move(status)});
  });
}

void CoordinatorHost::Do(const action::SealCheckpoint& action) {
  checkpoints_.Seal(action, [this, id = action.id](absl::StatusOr<CheckpointInfo> info) {
    PostStep(event::CheckpointSealed{id, std::move(info)});
  });
}

void CoordinatorHost::Do(const action::DropCheckpoint& action) {
  checkpoints_.Drop(action, [this, id = action.id](absl::Status status) {
    PostStep(event::CheckpointDropped{id, std::move(status)});
  });
}

void CoordinatorHost::Do(const action::ListCheckpoints& action) {
  checkpoints_.List(action, [this](absl::StatusOr<FoundCheckpoints> found) {
    PostStep(event::CheckpointsFound{std::move(found)});
  });
}

void CoordinatorHost::Do(const action::ReadCheckpoint& action) {
  checkpoints_.Verify(action, [this, id = *ParseCheckpointId(action.info.id())](
                                  absl::StatusOr<CheckpointManifest> manifest) {
    PostStep(event::CheckpointRead{id, std::move(manifest)});
  });
}

void CoordinatorHost::Do(const action::AskShard& action) { heartbeats_.Ask(action); }

void CoordinatorHost::Do(const action::Log& action) { spdlog::info("{}", action.sentence); }

void CoordinatorHost::Answer(CallId call, CallReply reply) {
  const auto it = waiting_.find(call);
  if (it == waiting_.end()) return;
  const Done done = std::move(it->second);
  waiting_.erase(it);
  done(std::move(reply));
}

void CoordinatorHost::AnswerAll(const absl::Status& status) {
  if (closed_.ok()) closed_ = status;
  while (!waiting_.empty()) Answer(waiting_.begin()->first, status);
}

}  // namespace starling::coordinator
