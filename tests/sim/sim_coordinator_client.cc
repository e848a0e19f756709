#include "tests/sim/sim_coordinator_client.h"

#include <map>
#include <utility>

#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

class SimCoordinatorClient final : public CoordinatorClient {
 public:
  SimCoordinatorClient(Cluster* cluster, Process* process, uint64_t seed)
      : cluster_(cluster), process_(process), life_(process->life), seed_(Mix(seed, life_)) {}

  ~SimCoordinatorClient() override {
    const bool died = !process_->alive || process_->life != life_;
    const auto cancels = std::move(*cancels_);
    cancels_->clear();
    for (const auto& [call, cancel] : cancels) {
      if (!died) cancel();
    }
  }

  void Register(const RegisterRequest& request, absl::Duration, Done<RegisterReply> done) override {
    RegisterRequest sent = request;
    sent.set_host(process_->name);
    sent.set_cores(1);
    const uint64_t drawn = nonces_.size();
    sent.set_nonce(nonces_.try_emplace(request.nonce(), Mix(seed_, drawn)).first->second);
    cluster_->Register(process_, sent, Track(std::move(done)));
  }
  void ReportWorker(const WorkerReport& report, absl::Duration, Done<WorkerOrders> done) override {
    cluster_->CallForStatus<WorkerOrders>(
        process_, report.generation(),
        [report](coordinator::CallId call) {
          return coordinator::event::WorkerReport{call, report};
        },
        Track(std::move(done)));
  }
  void ReportShard(const ShardReport& report, absl::Duration, Done<ShardOrders> done) override {
    if (report.ByteSizeLong() > kSimReportBytes) cluster_->world().Count("reports that were full");
    cluster_->CallForStatus<ShardOrders>(
        process_, report.generation(),
        [report](coordinator::CallId call) {
          return coordinator::event::ShardReport{call, report};
        },
        Track<ShardOrders>([this, done = std::move(done)](absl::StatusOr<ShardOrders> orders) {
          if (orders.ok()) UseSlices(*orders);
          done(std::move(orders));
        }));
  }

  void Heartbeat(const HeartbeatRequest& request, absl::Duration,
                 Done<HeartbeatReply> done) override {
    cluster_->Heartbeat(process_, request, Track(std::move(done)));
  }

 private:
  // Partitions have the slices that the checker expects, as in ShardProcess::MakePlan.
  void UseSlices(ShardOrders& orders) const {
    for (ShardJob& job : *orders.mutable_jobs()) {
      if (job.copies().empty()) continue;
      const Layout& layout =
          cluster_->TruthOf({JobUid(job.run().job_uid()), job.run().era()})->layout();
      for (EndedCopyOrders& copy : *job.mutable_copies()) {
        cluster_->world().Count("copies of values of ended jobs");
        copy.clear_slices();
        for (const SliceId id : layout.partitions[copy.view().partition()]) {
          EndedCopyOrders::Slice& slice = *copy.add_slices();
          slice.set_id(id.value);
          slice.set_elements(layout.slices[id.value].elements);
        }
      }
    }
  }

  // Calls `done` once, with the answer or at the end of this client.
  template <typename Reply>
  Done<Reply> Track(Done<Reply> done) {
    const uint64_t call = ++last_call_;
    auto held = std::make_shared<Done<Reply>>(std::move(done));
    cancels_->emplace(call, [held] { (*held)(absl::CancelledError("the client is gone")); });
    return [cancels = cancels_, call, held](absl::StatusOr<Reply> reply) {
      if (cancels->erase(call) > 0) (*held)(std::move(reply));
    };
  }

  Cluster* const cluster_;
  Process* const process_;
  const uint32_t life_;
  const uint64_t seed_;
  std::map<uint64_t, uint64_t> nonces_;  // the replacement of each
  uint64_t last_call_ = 0;
  // By call.
  const std::shared_ptr<std::map<uint64_t, std::function<void()>>> cancels_ =
      std::make_shared<std::map<uint64_t, std::function<void()>>>();
};

}  // namespace

std::unique_ptr<CoordinatorClient> MakeSimCoordinatorClient(Cluster* cluster, Process* process,
                                                            uint64_t seed) {
  return std::make_unique<SimCoordinatorClient>(cluster, process, seed);
}

}  // namespace starling::sim
