// The workers of a MiniCluster: what they report, and how they do what they are told.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "common/control/worker_orders.h"
#include "common/data_plan/job_steps.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/mini_cluster.h"

namespace starling::coordinator {
namespace {

StepMetrics Metrics(const Work& work, uint64_t samples) {
  StepMetrics metrics;
  *metrics.mutable_work() = work;
  metrics.set_samples(samples);
  metrics.set_loss_sum(0.5 * static_cast<double>(samples));
  metrics.set_correct(work.purpose() == EVALUATE ? samples - 1 : 0);
  return metrics;
}

void SetLoss(double loss, StepMetrics& metrics) {
  metrics.set_loss_sum(loss * static_cast<double>(metrics.samples()));
}

}  // namespace

void MiniCluster::Report(MiniWorker& worker) {
  if (const auto reply = TakeAnswer(worker.call)) {
    if (const auto* orders = std::get_if<WorkerOrders>(&*reply)) TakeOrders(worker, *orders);
    worker.call = CallId();
  }
  WorkerReport report;
  report.set_worker(worker.identity.id());
  report.set_incarnation(worker.identity.incarnation());
  report.set_sequence(++worker.sequence);
  report.set_generation(worker.generation);
  report.set_orders_seen(worker.orders_seen);
  report.set_draining(worker.draining);
  report.set_drained(worker.drained);
  *report.mutable_run() = worker.run;
  const Fault::Kind kind = worker.no_room.empty() ? worker.cannot : Fault::NO_ROOM;
  const bool broken = worker.run.job_uid() != 0 && kind != Fault::KIND_UNSPECIFIED;
  report.set_prepared(worker.run.job_uid() != 0 && worker.prepares && !broken);
  if (report.prepared()) report.set_data_digest(worker.data_digest);
  if (broken) {
    report.mutable_fault()->set_kind(kind);
    *report.mutable_fault()->mutable_run() = worker.run;
    report.mutable_fault()->set_message(worker.no_room.empty() ? worker.why_not : worker.no_room);
  }
  *report.mutable_activity() = worker.activity;
  for (const Lease& lease : worker.orders.leases()) {
    if (worker.done.contains(lease.id())) continue;
    report.add_leases_held(lease.id());
    if (worker.stuck && report.leases_begun().empty()) report.add_leases_begun(lease.id());
  }
  for (const uint64_t lease : worker.done) report.add_leases_done(lease);
  report.set_clock(static_cast<int64_t>(Covered(worker.run.job_uid())));
  if (!worker.holds_losses) {
    for (const StepMetrics& metrics : std::exchange(worker.finished, {}))
      *report.add_finished() = metrics;
  }
  for (const Inspection& inspection : std::exchange(worker.inspections, {})) {
    *report.add_inspections() = inspection;
  }
  if (worker.fault.kind() != Fault::KIND_UNSPECIFIED) *report.mutable_fault() = worker.fault;
  if (worker.run.job_uid() != 0) {
    if (!worker.idle_hands) Grow(worker.pace, worker.times);
    *report.mutable_times() = worker.times;
    for (const LinkStatus& link : worker.links) *report.add_links() = link;
    report.set_samples_per_second(worker.samples_per_second);
    report.set_hidden_share(worker.hidden_share);
    if (worker.repeats.worker() != 0) *report.mutable_repeats() = worker.repeats;
  }
  const CallId held = std::exchange(worker.call, NewCall());
  Step(event::WorkerReport{worker.call, report});
  for (const CallId call : {held, worker.call}) {
    const auto reply = TakeAnswer(call);
    if (!reply) continue;
    if (const auto* orders = std::get_if<WorkerOrders>(&*reply)) TakeOrders(worker, *orders);
    if (call == worker.call) worker.call = CallId();
  }
}

void MiniCluster::TakeOrders(MiniWorker& worker, const WorkerOrders& orders) {
  ASSERT_GE(orders.generation(), worker.generation) << "orders of a coordinator that is over";
  worker.generation = orders.generation();
  if (orders.unchanged() || orders.rejoin()) {
    worker.orders.set_rejoin(orders.rejoin());
    return;
  }
  ASSERT_TRUE(worker.orders_seen < orders.version()) << "versions grow";
  if (worker.never_holds && orders.hold()) return;
  WorkerOrders whole = orders;
  const auto same = [](const Run& a, const Run& b) {
    return a.job_uid() == b.job_uid() && a.era() == b.era();
  };
  const bool same_run = same(orders.run(), worker.orders.run());
  worker.described += orders.has_job();
  if (orders.has_run() && !orders.has_job()) {
    ASSERT_TRUE(same_run) << "orders without a description that the worker never saw";
  }
  CompleteOrders(worker.orders, whole);
  if (!same_run) worker.done.clear();
  if (!same_run && orders.run().job_uid() == worker.orders.run().job_uid()) worker.finished.clear();
  worker.orders = whole;
  worker.orders_seen = orders.version();
  for (const InspectRequest& request : orders.inspect()) {
    if (!worker.inspects) continue;
    Inspection inspection;
    inspection.set_request(request.request());
    inspection.set_error(worker.inspect_error);
    for (const std::string& warning : worker.inspect_warnings) inspection.add_warnings(warning);
    inspection.set_train_samples(train_samples);
    inspection.set_test_samples(test_samples);
    inspection.set_data_digest(worker.data_digest);
    inspection.add_sample_shape(4);
    inspection.set_classes(3);
    worker.inspections.push_back(inspection);
  }
  std::set<uint64_t> held;
  for (const Lease& lease : orders.leases()) held.insert(lease.id());
  std::erase_if(worker.done, [&](uint64_t lease) { return !held.contains(lease); });
  const bool gives_back = worker.run.job_uid() != 0 && !same(orders.run(), worker.run);
  if (worker.stubborn && gives_back) return;
  if (gives_back) worker.fault.Clear();
  worker.run = orders.run();
}

void MiniCluster::Grow(const StepTimes& pace, StepTimes& times) {
  times.set_units(times.units() + pace.units());
  times.set_samples(times.samples() + pace.samples());
  times.set_total(times.total() + pace.total());
  times.set_data(times.data() + pace.data());
  times.set_forward(times.forward() + pace.forward());
  times.set_wait(times.wait() + pace.wait());
}

void MiniCluster::DoWork(MiniWorker& worker) {
  const WorkerOrders& orders = worker.orders;
  const uint64_t uid = orders.run().job_uid();
  if (uid == 0 || worker.drained || orders.hold()) return;
  if (orders.run().era() < eras_[uid]) return;  // shards answer that the run is over
  if (orders.policy().policy().kind() == Policy::BSP && orders.leases_size() == 0)
    return DoBspWork(worker);
  for (const Lease& lease : orders.leases()) {
    if (worker.done.contains(lease.id())) continue;
    if (worker.lies && lease.work().purpose() == TRAIN) {
      worker.done.insert(lease.id());
      return;
    }
    const uint64_t item = lease.work().first() / lease.work().count();
    const uint64_t all = lease.work().purpose() == EVALUATE ? orders.job().test_samples()
                                                            : orders.job().train_samples();
    const uint64_t batch = orders.job().spec().batch().global();
    worker.finished.push_back(Metrics(lease.work(), std::min(batch, all - item * batch)));
    if (lease.work().purpose() == TRAIN) SetLoss(train_loss, worker.finished.back());
    if (lease.work().purpose() == TRAIN) ++covered[uid][lease.work().epoch()][item];
    worker.done.insert(lease.id());
    ++worker.items;
    return;
  }
}

// The first member does whole steps for all members.
void MiniCluster::DoBspWork(MiniWorker& worker) {
  const WorkerOrders& orders = worker.orders;
  if (!orders.training_open() || orders.roster().members_size() == 0) return;
  if (orders.roster().members(0).worker() != worker.identity.id()) return;
  const JobDescription& job = orders.job();
  auto& items = covered[job.run().job_uid()][orders.epoch()];
  const uint64_t step = items.size();
  if (orders.has_policy_end() && Covered(job.run().job_uid()) >= orders.policy_end()) return;
  if (step >= StepsInEpoch(job.spec(), job.train_samples(), orders.epoch())) return;
  ++items[step];
  ++worker.items;
  const uint32_t micro_batches = job.spec().batch().micro_batches();
  const uint32_t parts = bsp_in_parts ? micro_batches : 1;
  for (uint32_t part = 0; part < parts; ++part) {
    starling::Work work;
    work.set_purpose(TRAIN);
    work.set_epoch(orders.epoch());
    work.set_count(micro_batches / parts);
    work.set_first(step * micro_batches + part * work.count());
    worker.finished.push_back(Metrics(work, job.spec().batch().global() / parts));
    SetLoss(train_loss, worker.finished.back());
  }
}

}  // namespace starling::coordinator
