// Keeps a shard registered with its coordinator, and reports to it continuously.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_REPORTER_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_REPORTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/admin/readiness.h"
#include "common/control/shard_reports.h"
#include "common/daemon/coordinator_client.h"
#include "common/event_loop/event_loop.h"
#include "common/protocol/ids.h"
#include "common/protocol/limits.h"

namespace starling {

// Runs on one event loop, which it does not own. All methods and callbacks are called there.
class ShardReporter {
 public:
  struct Options {
    std::string coordinator;  // address
    Identity self;
    std::string address;    // the address at which others reach this shard
    bool insecure = false;  // its links beyond loopback are not encrypted
    absl::Duration register_deadline = absl::Seconds(60);       // for the first registration
    size_t report_bytes_max = limits::kControlChangesBytesMax;  // ShardReports
  };

  struct Callbacks {
    // Registered with the cluster, for the first time or again. From now on everything belongs to
    // this incarnation.
    std::function<void(ShardId, Incarnation, uint64_t cluster)> on_registered;
    // New orders: the changes since the previous ones of this incarnation (ShardOrderBook).
    std::function<void(const ShardOrders&)> on_orders;
    // The coordinator considers this incarnation lost: drop all partitions. A registration follows.
    std::function<void()> on_rejoin;
    // The shard cannot go on: no coordinator answered within the deadline, or it refused the
    // registration of a shard that holds nothing. Called once; nothing follows. A refused report is
    // never final: this shard may hold the only copy of some values, and a coordinator that accepts
    // them may come back.
    std::function<void(const absl::Status&)> on_failed;
    // How many more bytes tensors may take; called for each report.
    std::function<uint64_t()> memory_room;
    // After Drain: what the coordinator says, perhaps again and again. Also called, as if it had
    // said so, when nobody is left to hand anything over.
    std::function<void(const DrainOrders&)> on_drain = [](const DrainOrders&) {};
    // The coordinator of this cluster has a checkpoint root with this nonce; called for each answer
    // that says so. What this shard finds there goes to SetCheckpointRoot.
    std::function<void(uint64_t cluster, uint64_t nonce)> on_checkpoint_root;
  };

  ShardReporter(EventLoop* loop, std::unique_ptr<CoordinatorClient> client, Options options,
                Callbacks callbacks);

  void Start();

  // See ShardReports for what is reported. The status of a run that is not held is left out.
  void Hold(const Run& run) { reports_.Hold(run); }
  // `at_once`: the coordinator waits for it.
  void Update(const PartitionStatus& status, bool at_once);
  void End(const HeldJob& ended);
  // Its part of a checkpoint; without a number: none.
  void Checkpoint(const Run& run, const CheckpointPart& part);
  // The nonce that this shard reads beneath its checkpoint root; 0: none, because of `error`.
  void SetCheckpointRoot(uint64_t nonce, std::string error);
  void Drop(JobUid job) { reports_.Drop(job.value); }
  void DropPartition(JobUid job, PartitionId partition) {
    reports_.DropPartition(job.value, partition.value);
  }

  // A stream to the shard at this address broke, or could not be opened: the coordinator is told at
  // once, and for a second.
  void Unreached(const std::string& address);

  // Asks the coordinator to let this shard leave. Idempotent.
  void Drain();
  // Tells the coordinator that this shard leaves now, and calls `done` when that was answered, or
  // is not answered within a second. Nothing else is called from now on.
  void Leave(std::function<void()> done);

  // Why this shard is not ready, for example not registered. Empty: it is ready. Thread-safe.
  std::string WhyNotReady() const { return readiness_.WhyNot(); }

  // Cancels calls and waits for them. No callback follows.
  void Stop() { client_.reset(); }

 private:
  void Register();
  void OnRegistered(absl::StatusOr<RegisterReply> reply);
  ShardReport MakeReport();
  void Send();
  void OnOrders(Incarnation incarnation, absl::StatusOr<ShardOrders> orders);
  void Complain(const absl::Status& status);
  void WatchDrain();
  absl::Status CheckCluster(const ShardOrders& orders) const;
  void NoteTrouble(const absl::Status& status);

  EventLoop* const loop_;
  const Options options_;
  const Callbacks callbacks_;

  bool registered_ = false;
  bool ever_registered_ = false;
  RegisterRequest request_;
  ShardId shard_;
  Incarnation incarnation_;
  uint64_t generation_ = 0;
  uint64_t cluster_ = 0;  // to which the values belong; 0: not known yet
  uint64_t orders_version_ = 0;
  uint64_t sequence_ = 0;
  int under_way_ = 0;  // reports in flight
  bool news_ = false;  // since the last report
  bool retry_set_ = false;
  absl::Time silent_since_;  // when the coordinator stopped answering
  absl::Time complained_ = absl::InfinitePast();
  bool silent_ = false;
  bool more_ = false;    // there is more to report, or more orders, than fit into one message
  std::string trouble_;  // see ShardReport
  std::map<std::string, absl::Time> unreached_;  // until when it is told
  bool draining_ = false;
  bool leaving_ = false;
  absl::Time drain_began_;
  absl::Time heard_;  // when the coordinator last answered, or the drain began
  uint64_t checkpoint_nonce_ = 0;
  std::string checkpoint_error_;
  ShardReports reports_;
  admin::Readiness readiness_;  // any thread

  std::unique_ptr<CoordinatorClient> client_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_REPORTER_H_
