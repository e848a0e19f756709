#include "server/coordinator/host/coordinator_host.h"

#include <spdlog/spdlog.h>

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kFolderDeadline = absl::Seconds(10);

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
    if (submit == nullptr || !core_->AsksForFolder(submit->request)) return Step(event);
    AskForFolder(call, submit->request);
  });
  if (!posted) (*shared)(absl::UnavailableError("the coordinator is shutting down"));
  return call;
}

void CoordinatorHost::AskForFolder(CallId call, const SubmitRequest& request) {
  const std::string folder = request.spec().tensorboard();
  // If a disk hangs, checks stay in progress even after their calls have timed out.
  if (folders_asked_ >= limits::kSubmissionsMax) {
    return Answer(call, absl::ResourceExhaustedError(absl::StrCat(
                            "tensorboard: ", folders_asked_,
                            " folders for event files are being "
                            "checked on the coordinator's machine: try again in a moment")));
  }
  ++folders_asked_;
  const EventLoop::TimerId timer = loop_->PostAfter(kFolderDeadline, [this, call, folder] {
    Answer(call, absl::DeadlineExceededError(absl::StrCat(
                     "tensorboard: the check whether event files can be written to ", folder,
                     " took longer than ", absl::FormatDuration(kFolderDeadline),
                     ": its disk hangs, on the coordinator's machine")));
  });
  curves_.Check(folder, [this, call, timer, request](absl::Status status) {
    loop_->Post([this, call, timer, request, status = std::move(status)] {
      --folders_asked_;
      loop_->Cancel(timer);
      if (waiting_.count(call) > 0) Step(event::Submit{call, request, status});
    });
  });
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
  loop_->Stop();
}

void CoordinatorHost::Step(const Event& event) {
  Actions actions;
  core_->Step(event, loop_->Now(), actions);
  CarryOut(std::move(actions));
}

void CoordinatorHost::CarryOut(Actions actions) {
  for (Action& action : actions) {
    if (!closed_.ok()) return;
    std::visit([this](auto& typed) { Do(typed); }, action);
  }
}

void CoordinatorHost::Tick() {
  if (!closed_.ok()) return;
  Step(event::Tick{wall_()});
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
                   loop_->Post([this, event = event::OutputWritten{uid, std::move(bytes)}] {
                     if (closed_.ok()) Step(event);
                   });
                 });
}

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
