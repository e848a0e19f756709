#include "worker/core/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/core.h"

namespace starling::session {

void Retry::Failed(absl::Time now, const SessionOptions& options) {
  wait = std::clamp(2 * wait, options.retry_least, options.retry_most);
  at = now + wait;
}

Session::Session(SessionOptions options) : core_(std::make_unique<Core>(std::move(options))) {}
Session::~Session() = default;

void Session::Step(const Event& event, absl::Time now, Actions& actions) {
  core_->Step(event, now, actions);
}
Activity Session::activity() const { return core_->activity(); }

std::string Session::ToString() const { return core_->ToString(); }

void Core::Step(const Event& event, absl::Time now, Actions& actions) {
  if (life_ == Life::kExited) return;
  now_ = now;
  actions_ = &actions;
  std::visit([this](const auto& e) { On(e); }, event);
  Pump();
  actions_ = nullptr;
}

// Acts on the state after any event. Each line does nothing unless something is due.
void Core::Pump() {
  if (life_ == Life::kExited) return;
  MaybeRegister();
  if (life_ == Life::kRegistered) {
    MaybeStartJob();
    SyncStreams();
    MaybePrepared();
    TakePolicy();
    SendAgainDue();
    StepPresence();
    Schedule();
    StepPresence();
    MaybeFinishLeaving();
    MaybeReport();
  }
  MaybeExit();
}

void Core::Release(BufferId buffer) {
  if (buffer.value != 0) Do(action::ReleaseBuffer{buffer});
}

std::string Core::ToString() const {
  if (life_ != Life::kRegistered) return "not registered";
  std::string text = absl::StrCat("worker ", worker_.value, ".", incarnation_.value);
  if (draining_) absl::StrAppend(&text, " draining");
  if (!job_.has_value()) return absl::StrCat(text, " idle");
  static constexpr absl::string_view kPhases[] = {"preparing", "serving", "leaving", "broken"};
  absl::StrAppend(&text, " ", kPhases[static_cast<int>(job_->phase)], " job ", job_->run.job.value,
                  ".", job_->run.era, ", clock ", job_->clock);
  if (job_->computing.value != 0)
    absl::StrAppend(&text, ", computing unit ", job_->computing.value);
  return absl::StrCat(text, ", ", job_->units.size(), " units and ", job_->requests.size(),
                      " requests open");
}

RunId RunOf(const Run& run) { return {JobUid(run.job_uid()), run.era()}; }

WorkRange RangeOf(const Work& work) {
  return {static_cast<WorkPurpose>(work.purpose()), work.epoch(), work.first(), work.count()};
}

void SetWork(const WorkRange& range, Work* work) {
  work->set_purpose(static_cast<Purpose>(range.purpose));
  work->set_epoch(range.epoch);
  work->set_first(range.first);
  work->set_count(range.count);
}

}  // namespace starling::session
