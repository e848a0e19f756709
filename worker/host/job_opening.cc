#include "worker/host/job_opening.h"

#include <utility>

#include "common/defences.h"
#include "spdlog/spdlog.h"

namespace starling {

JobOpening::JobOpening(EventLoop* session, JobRunner* runner, Opened opened)
    : session_(session), runner_(runner), opened_(std::move(opened)) {}

void JobOpening::Open(JobDescription description) {
  wanted_ = std::move(description);
  ++number_;
  Next();
}

void JobOpening::Close() { wanted_.reset(); }

void JobOpening::Next() {
  if (busy() || !wanted_.has_value()) return;
  WaitFor("units of the job before to stop");
  if (DefenceMasked(Defence::kMemoryFirst)) return OnStopped();
  runner_->WhenStopped([this, session = session_] { session->Post([this] { OnStopped(); }); });
}

void JobOpening::OnStopped() {
  if (!wanted_.has_value()) return WaitFor("");
  WaitFor("the data and memory of a job");
  under_way_ = number_;
  runner_->Open(*wanted_, [this, session = session_](OpenedJob opened) {
    session->Post([this, opened = std::move(opened)]() mutable { OnOpened(std::move(opened)); });
  });
}

void JobOpening::OnOpened(OpenedJob opened) {
  WaitFor("");
  if (!wanted_.has_value() || under_way_ != number_) {
    opened.job = absl::CancelledError("the job was closed");  // frees its memory for the next one
    return Next();
  }
  const JobDescription description = *std::exchange(wanted_, std::nullopt);
  opened_(description, std::move(opened));
}

void JobOpening::WaitFor(absl::string_view what) {
  waits_for_ = std::string(what);
  since_ = session_->Now();
  session_->Cancel(timer_);
  if (busy()) SayLater();
}

void JobOpening::SayLater() {
  timer_ = session_->PostAfter(absl::Seconds(10), [this] {
    spdlog::warn("opening a job has waited {} for {}",
                 absl::FormatDuration(session_->Now() - since_), waits_for_);
    SayLater();
  });
}

}  // namespace starling
