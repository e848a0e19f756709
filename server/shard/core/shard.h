// Which partitions a shard has, decided without I/O: what the coordinator's orders create, end and
// drop, and what the shard reports of it. docs/protocol.md, section 5.
//
//   std::vector<Action> actions;
//   shard.Step(event::Orders{orders}, actions);
//
// Each creation of a partition is an instance of its own, until the partition is dropped. What an
// instance reports after that is ignored. A job that is over keeps its instances until it is
// dropped.
#ifndef STARLING_SERVER_SHARD_CORE_SHARD_H_
#define STARLING_SERVER_SHARD_CORE_SHARD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/control/shard_orders.h"
#include "common/protocol/ids.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/events.h"

namespace starling::shard {

using PartitionKey = std::pair<JobUid, PartitionId>;
using InstanceId = Id<struct InstanceIdTag, uint64_t>;  // ascends; never used again

namespace event {

// Newer than all before, and for the incarnation that took those.
struct Orders {
  ShardOrders orders;
};
// The answer to Plan.
struct Planned {
  JobUid job;
  absl::Status status;  // an error: the job's partitions cannot be here
};
// An instance says how it is.
struct News {
  PartitionKey key;
  InstanceId instance;
  PartitionStatus status;
  bool at_once = false;  // the coordinator waits for it
};
// The answer to End.
struct Ended {
  PartitionKey key;
  InstanceId instance;
  uint64_t value_bytes = 0;  // that it keeps
};
// The coordinator has given this incarnation up.
struct GivenUp {};

}  // namespace event

using Event =
    std::variant<event::Orders, event::Planned, event::News, event::Ended, event::GivenUp>;

namespace action {

// Make what all of the job's partitions share, and see whether `job` fits; answer with Planned. The
// plan is kept until Forget.
struct Plan {
  ShardJob job;
};
struct Forget {
  JobUid job;
};
// Make a partition of a planned job, give it its orders, and let frames find it behind that. Where
// it cannot be made, its News say so.
struct Create {
  PartitionKey key;
  InstanceId instance;
  OrdersReceived orders;
};
struct Order {
  PartitionKey key;
  OrdersReceived orders;
};
// The job is over: keep the values that are read, free all else; answer with Ended.
struct End {
  PartitionKey key;
  InstanceId instance;
  std::optional<uint64_t> keep_version;  // BSP: which values are read
};
// All of the job's partitions have ended. They are many, and seldom asked for.
struct Shelve {
  JobUid job;
};
// No frame finds it any more, and all that it has is freed.
struct Drop {
  PartitionKey key;
};
// Memory is being freed that this shard does not need again soon.
struct ReturnMemory {};
// Of jobs that run: who is which worker, and where each job is decided about.
struct Learn {
  std::map<WorkerId, std::string> names;
  std::map<JobUid, std::string> deciders;  // addresses
};

// What is told to the coordinator (ShardReports).
struct HoldRun {
  Run run;
};
struct Report {
  PartitionStatus status;
  bool at_once = false;
};
struct ReportEnd {
  Run run;
  uint64_t value_bytes = 0;
};
struct ReportNothingOfPartition {
  PartitionKey key;
};
struct ReportNothingOfJob {
  JobUid job;
};

}  // namespace action

using Action = std::variant<action::Plan, action::Forget, action::Create, action::Order,
                            action::End, action::Shelve, action::Drop, action::ReturnMemory,
                            action::Learn, action::HoldRun, action::Report, action::ReportEnd,
                            action::ReportNothingOfPartition, action::ReportNothingOfJob>;

// One thread at a time.
class Shard {
 public:
  // Adds to `actions` what is to be done, in order. Answers are events of their own: not within a
  // Step.
  void Step(const Event& event, std::vector<Action>& actions);

 private:
  enum class Stage { kPlanning, kRunning, kEnding, kEnded };
  struct Job {
    Run run;
    Stage stage = Stage::kPlanning;
    ShardJob orders;        // the newest; while it is being planned
    Generation generation;  // of `orders`
    std::map<PartitionId, InstanceId> partitions;
    size_t not_ended = 0;      // of them; kEnding
    uint64_t value_bytes = 0;  // that the others keep
  };

  void On(const event::Orders& event);
  void On(const event::Planned& event);
  void On(const event::News& event);
  void On(const event::Ended& event);
  void On(const event::GivenUp& event);

  void Learn();
  void TakeJob(const ShardJob& orders, Generation generation);
  void TakePartitions(Job& job, const ShardJob& orders, Generation generation);
  void Refuse(const ShardJob& orders, const PartitionOrders& partition, const absl::Status& why);
  void EndJob(const ShardJob& orders);
  void FinishEnd(Job& job);
  void DropJob(JobUid uid);
  bool IsCurrent(const PartitionKey& key, InstanceId instance) const;
  template <typename T>
  void Do(T action) {
    actions_->push_back(std::move(action));
  }

  ShardOrderBook book_;
  std::map<JobUid, Job> jobs_;
  InstanceId last_instance_;
  std::vector<Action>* actions_ = nullptr;  // of the step under way
};

}  // namespace starling::shard

#endif  // STARLING_SERVER_SHARD_CORE_SHARD_H_
