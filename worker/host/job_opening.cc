#include "worker/host/job_opening.h"

#include <utility>

#include "common/defences.h"

namespace starling {

JobOpening::JobOpening(EventLoop* session, JobOpener* opener, UnitRunner* runner, Opened opened)
    : session_(session), opener_(opener), runner_(runner), opened_(std::move(opened)) {}

void JobOpening::Open(JobDescription description) {
  wanted_ = std::move(description);
  ++number_;
  Next();
}

void JobOpening::Close() { wanted_.reset(); }

void JobOpening::Next() {
  if (busy_ || !wanted_.has_value()) return;
  busy_ = true;
  if (DefenceMasked(Defence::kMemoryFirst)) return OnStopped();
  runner_->WhenStopped([this] { session_->Post([this] { OnStopped(); }); });
}

void JobOpening::OnStopped() {
  if (!wanted_.has_value()) {
    busy_ = false;
    return;
  }
  under_way_ = number_;
  opener_->Open(*wanted_, [this](OpenedJob opened) {
    session_->Post([this, opened = std::move(opened)]() mutable { OnOpened(std::move(opened)); });
  });
}

void JobOpening::OnOpened(OpenedJob opened) {
  busy_ = false;
  if (!wanted_.has_value() || under_way_ != number_) {
    opened.job = absl::CancelledError("the job was closed");  // before the next one is planned
    return Next();
  }
  const JobDescription description = *std::exchange(wanted_, std::nullopt);
  opened_(description, std::move(opened));
}

}  // namespace starling
