// A shard's process: real partition cores, real small buffers, the real update and verify code.
// Verifying and applying take simulated time, so that retries can meet originals.
#ifndef STARLING_TESTS_SIM_SHARD_NODE_H_
#define STARLING_TESTS_SIM_SHARD_NODE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/control/shard_orders.h"
#include "common/control/shard_reports.h"
#include "server/shard/apply/update.h"
#include "server/shard/core/partition.h"
#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace starling::sim {

class Cluster;

class ShardNode : public Process {
 public:
  ShardNode(Cluster* cluster, const std::string& process_name, uint64_t seed);

  void Start();
  void Crash();
  bool alive_now() const { return alive; }

  // A worker's stream: frames come here.
  void OnConnected(const Network::StreamPtr& stream);
  void OnFrame(const Network::StreamPtr& stream, const Message& message);
  void OnDown(const Network::StreamPtr& stream);

  // From another shard, or this one; maybe twice, late, or not at all. decision_link.cc
  void OnReport(ShardNode* from, const FrameHeader& report);
  void OnDecision(const FrameHeader& answer, const std::string& text);

  // nullptr: not hosted here.
  ValuesPtr ValuesOf(RunId run, SliceId slice) const;
  // Adds the counters of all partitions to the world's counts; those of dropped ones were added
  // then.
  void AddCounters() const;
  std::string ToString() const;

 private:
  struct SliceStore {
    Values versions[2];
    Values slots[2];
    Values copy;
    UpdateRule rule;
    uint64_t sealed = 0;
  };
  struct Hosted {
    uint64_t number = 0;  // never used again
    RunId run;
    PartitionId id;
    JobTruth* truth = nullptr;
    std::unique_ptr<Partition> core;
    std::map<SliceId, SliceStore> slices;
    std::map<BufferId, std::shared_ptr<Values>> buffers;
    std::map<BufferId, FrameHeader> pushes;  // received and not released
    OrdersReceived orders;
    bool two_versions = false;
    std::string decider;  // the address of the shard that decides
    bool accounted = false;
    bool over = false;     // the job is: nothing but its values is left
    std::string reported;  // the last status
  };
  using Key = std::pair<RunId, PartitionId>;
  static constexpr size_t kReportBytes = 300;  // so little that reports come in parts

  void Register();
  void Report();
  void OnOrders(const ShardOrders& orders);
  void TakeJob(const ShardJob& job, Generation generation);
  Hosted* Host(const ShardJob& job, PartitionId partition);
  void End(const ShardJob& job);
  void Drop(const Key& key);
  void Tick();

  void Step(Hosted& hosted, const PartitionEvent& event);
  void Later(const Hosted& hosted, absl::Duration delay, PartitionEvent event);
  void Do(Hosted& hosted, const Verify& a);
  void Do(Hosted& hosted, const MergeSums& a);
  void Do(Hosted& hosted, const Measure& a);
  void Do(Hosted& hosted, const ReportNorm& a);
  void Do(Hosted& hosted, const Replicate& a);
  void Do(Hosted& hosted, const ApplyNow& a);
  void Do(Hosted& hosted, const SwitchPolicy& a);
  void Do(Hosted& hosted, const CopyForCut& a);
  void Do(Hosted& hosted, const DropCopy& a);
  void Do(Hosted& hosted, const SendFrame& a);
  void Do(Hosted& hosted, const SendValue& a);
  void Do(Hosted& hosted, const Release& a);
  void Do(Hosted& hosted, const ReportFault& a);
  void Count(const Hosted& hosted) const;

  Cluster* const cluster_;
  World* const world_;
  const uint64_t seed_;

  bool registered_ = false;
  uint64_t nonce_ = 0;
  uint32_t id_ = 0;
  uint64_t incarnation_ = 0;
  uint64_t generation_ = 0;
  uint64_t cluster_of_values_ = 0;
  uint64_t sequence_ = 0;
  uint64_t orders_version_ = 0;
  int reports_under_way_ = 0;
  ShardReports reports_{kReportBytes};
  ShardOrderBook book_;
  std::map<Key, Hosted> hosted_;
  uint64_t last_number_ = 0;
  uint64_t last_buffer_ = 0;
  std::map<ConnectionId, Network::StreamPtr> streams_;
  std::map<ConnectionId, ShardNode*> reporters_;  // shards whose partitions report here
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SHARD_NODE_H_
