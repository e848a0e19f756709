// Orders are the desired state, sent as changes since the version that a report had seen. The last
// ones win; old ones change nothing.
#include <algorithm>
#include <utility>

#include "common/control/worker_orders.h"
#include "common/defences.h"
#include "worker/core/core.h"

namespace starling::session {
namespace {

bool SameLease(const Lease& a, const Lease& b) {
  return a.id() == b.id() && a.attempt() == b.attempt() && RangeOf(a.work()) == RangeOf(b.work());
}

void TakeRoster(const Roster& roster, RosterList* list) {
  list->number = RosterNumber(roster.number());
  list->members.clear();
  for (const Member& m : roster.members()) {
    list->members.push_back({ReplicaId(m.replica()), WorkerId(m.worker()),
                             Incarnation(m.incarnation()), m.joined_clock()});
  }
}

}  // namespace

void Core::On(const event::Orders& e) {
  if (life_ != Life::kRegistered || e.incarnation != incarnation_) return;
  if (reports_under_way_ > 0) --reports_under_way_;
  const WorkerOrders& orders = e.orders;
  const bool other_cluster = cluster_ != 0 && orders.cluster() != 0 && orders.cluster() != cluster_;
  if (other_cluster) return orders.rejoin() ? Rejoin("it serves another cluster now") : void();
  const Generation generation(orders.generation());
  if (generation < generation_ && !DefenceMasked(Defence::kGeneration)) return;
  report_retry_.Succeeded();
  coordinator_heard_ = now_;
  generation_ = std::max(generation_, generation);
  if (orders.rejoin()) return Rejoin("the coordinator says so");
  sequence_taken_ = std::max(sequence_taken_, orders.sequence_taken());
  while (!finished_.empty() && finished_.front().sequence != 0 &&
         finished_.front().sequence <= sequence_taken_) {
    finished_.pop_front();
  }
  if (orders.unchanged() || orders.version() <= orders_version_) return;
  TakeOrders(orders);
}

void Core::On(const event::ReportFailed& e) {
  if (life_ != Life::kRegistered || e.incarnation != incarnation_) return;
  if (reports_under_way_ > 0) --reports_under_way_;
  report_retry_.Failed(now_, options_);
  news_ = true;
}

// A job's description is sent once. If it was not kept, it is sent again, because the next report
// says that the job is not served and that these orders were not seen.
bool Core::HasDescription(const WorkerOrders& orders) {
  if (!orders.has_run()) return true;
  const RunId run = RunOf(orders.run());
  if (orders.has_job()) {
    described_ = orders.job();
  } else if (RunOf(described_.run()) != run && job_.has_value()) {
    described_ = job_->description;
  }
  return RunOf(described_.run()) == run;
}

void Core::TakeOrders(const WorkerOrders& orders) {
  news_ = true;  // the coordinator waits to learn which orders we have
  if (!HasDescription(orders)) return;
  orders_version_ = orders.version();
  CompleteOrders(std::exchange(orders_, orders), orders_);
  orders_.clear_job();
  have_orders_ = true;
  UpdateInspections(orders_);
  orders_.clear_inspect();
  if (!job_.has_value()) return;
  if (!TakenAway()) return UpdateJob(orders_);
  // Nothing of an earlier era counts any more, so nothing of it is finished.
  const bool same_job = orders_.has_run() && RunOf(orders_.run()).job == job_->run.job;
  same_job ? CloseJob() : Leave();
}

void Core::UpdateJob(const WorkerOrders& orders) {
  JobState& job = *job_;
  UpdatePolicy(orders);
  job.epoch = orders.epoch();
  job.training_open = orders.training_open();
  UpdateViews(orders);
  UpdateLeases(orders);
  if (RosterNumber(orders.roster().number()) < job.roster.number) return;
  if (RosterNumber(orders.roster().number()) > job.roster.number) job.late_from = job.clock;
  TakeRoster(orders.roster(), &job.roster);
  ForgetLatenessOfStrangers();
  const bool was_member = job.member;
  job.member = std::any_of(
      job.roster.members.begin(), job.roster.members.end(),
      [this](const auto& m) { return m.worker == worker_ && m.incarnation == incarnation_; });
  if (was_member && !job.member) DropTraining();
}

void Core::UpdatePolicy(const WorkerOrders& orders) {
  JobState& job = *job_;
  const Policy& policy = orders.policy().policy();
  job.ordered_policy = {static_cast<PolicyKind>(policy.kind()), policy.staleness()};
  job.ordered_policy_number = PolicyNumber(static_cast<uint32_t>(orders.policy().number()));
  job.policy_end =
      orders.has_policy_end() ? orders.policy_end() : std::numeric_limits<uint64_t>::max();
  job.hold = orders.hold();
  if (job.phase != JobPhase::kPreparing) return;
  job.policy = job.ordered_policy;  // nothing was started yet
  job.policy_number = job.ordered_policy_number;
}

bool Core::IsDelivered(UnitId id) const {
  const Unit& unit = job_->units.at(id);
  return std::all_of(unit.slices_left.begin(), unit.slices_left.end(),
                     [](uint32_t left) { return left == 0; });
}

// The ordered policy is in force: work that was started under the previous one is applied on all
// partitions. Starts over like a joining worker, with the policy's step as its clock. First waits
// for a unit that only has its losses left to report.
void Core::TakePolicy() {
  if (!job_.has_value() || job_->policy_number == job_->ordered_policy_number) return;
  JobState& job = *job_;
  if (job.computing.value != 0 && job.units.at(job.computing).purpose == WorkPurpose::kTrain &&
      IsDelivered(job.computing)) {
    return;
  }
  DropTraining();
  for (Held& held : job.live) held = {.lsn = held.lsn};
  if (!job.live.empty()) Do(action::ForgetValues{.snapshot_too = false});
  job.policy = job.ordered_policy;
  job.policy_number = job.ordered_policy_number;
}

// If a partition has a new primary, its open requests are sent again. A new backup does not matter.
void Core::UpdateViews(const WorkerOrders& orders) {
  for (const View& view : orders.views()) {
    View& held = job_->views[PartitionId(view.partition())];
    if (view.number() <= held.number()) continue;
    const bool same = view.primary() == held.primary() &&
                      view.primary_incarnation() == held.primary_incarnation();
    held = view;
    if (same) continue;
    for (auto& [id, request] : job_->requests) {
      if (request.header.partition.value == view.partition()) request.again = now_;
    }
  }
}

void Core::UpdateLeases(const WorkerOrders& orders) {
  JobState& job = *job_;
  decltype(job.done) done(&memory_);
  job.evaluation.clear();
  job.training.clear();
  for (const Lease& lease : orders.leases()) {
    const auto it = job.done.find(lease.id());
    if (it != job.done.end() && SameLease(it->second, lease)) {
      done.insert(job.done.extract(it));
      continue;
    }
    const bool begun = std::any_of(job.units.begin(), job.units.end(), [&](const auto& entry) {
      return SameLease(entry.second.lease, lease);
    });
    if (begun) continue;
    auto& queue = lease.work().purpose() == EVALUATE ? job.evaluation : job.training;
    queue.push_back(lease);
  }
  job.done = std::move(done);  // same memory resource, so nothing is copied
  const auto earlier = [](const Lease& a, const Lease& b) {
    return RangeOf(a.work()) < RangeOf(b.work());
  };
  std::sort(job.evaluation.begin(), job.evaluation.end(), earlier);
  std::sort(job.training.begin(), job.training.end(), earlier);
}

void Core::UpdateInspections(const WorkerOrders& orders) {
  decltype(inspections_) asked;
  for (const InspectRequest& request : orders.inspect()) {
    const auto it = inspections_.find(request.request());
    if (it != inspections_.end()) {
      asked.insert(*it);
      continue;
    }
    asked[request.request()] = std::nullopt;
    Do(action::Inspect{request});
  }
  inspections_ = std::move(asked);
}

void Core::On(const event::Inspected& e) {
  const auto it = inspections_.find(e.inspection.request());
  if (it == inspections_.end()) return;
  it->second = e.inspection;
  news_ = true;
}

}  // namespace starling::session
