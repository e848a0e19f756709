// Registration: the worker gets an id and an incarnation for its name, and a new incarnation after
// it was fenced.
#include "absl/strings/str_cat.h"
#include "worker/core/core.h"

namespace starling::session {

void Core::MaybeRegister() {
  if (life_ != Life::kNew || draining_ || now_ < register_retry_.at) return;
  life_ = Life::kRegistering;
  Do(action::Register{registration_});
}

void Core::On(const event::Registered& e) {
  if (life_ != Life::kRegistering) return;
  life_ = Life::kRegistered;
  register_retry_.Succeeded();
  worker_ = e.worker;
  incarnation_ = e.incarnation;
  // Another cluster has its own generations.
  generation_ = e.cluster == cluster_ ? std::max(generation_, e.generation) : e.generation;
  cluster_ = e.cluster;
  sequence_ = 0;
  sequence_taken_ = 0;
  reports_under_way_ = 0;
  report_retry_.Succeeded();
  orders_version_ = 0;
  orders_.Clear();
  have_orders_ = false;
  news_ = true;
}

void Core::On(const event::RegisterFailed& e) {
  if (life_ != Life::kRegistering) return;
  if (absl::IsFailedPrecondition(e.status)) {
    life_ = Life::kExited;
    Do(action::Exit{e.status});
    return;
  }
  life_ = Life::kNew;
  register_retry_.Failed(now_, options_);
}

// This incarnation is fenced, so none of its work counts any more. The results of the job's
// preparation (open data, planned memory) are kept.
void Core::Rejoin(absl::string_view why) {
  if (!draining_) Do(action::Warn{absl::StrCat("registers anew: ", why)});
  // The fault may not affect the next incarnation, which tries again.
  if (job_.has_value() && job_->phase == JobPhase::kBroken) CloseJob();
  if (job_.has_value()) {
    DropTraining();
    while (!job_->units.empty()) DropUnit(job_->units.begin()->first);
    DropRequests([](const Request&) { return true; });
    for (Held& held : job_->live) held = Held();
    for (Held& held : job_->snapshot) held = Held();
    Do(action::ForgetValues{});
    job_->done.clear();
    job_->evaluation.clear();
    job_->training.clear();
    job_->member = false;
    job_->prepared = false;
    job_->presence = Presence::kParked;
    job_->roster = RosterList();
  }
  finished_.clear();
  DisconnectAll();
  ++registration_;
  life_ = Life::kNew;
  register_retry_.Succeeded();
}

}  // namespace starling::session
