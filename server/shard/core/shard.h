// Decides, without I/O, which partitions a shard has: which of them the coordinator's orders
// create, end and drop, and what the shard reports. docs/protocol.md, section 5.
//
//   std::vector<Action> actions;
//   shard.Step(event::Orders{orders}, actions);
//
// Each creation of a partition makes a new instance, which lasts until the partition is dropped.
// Later reports of that instance are ignored. An ended job keeps its instances until it is dropped.
//
// Of a checkpoint the shard writes one file, with all partitions that it leads when it first hears
// of it. Only these are told of it.
//
// An instance is a copy of one view, as primary or as backup. In a later view only a primary uses
// it; a backup gets a new, empty instance, which learns from that view's primary. So it is with the
// values of a job that is over: the shard reads what it is ordered to back from the primary, though
// it may have had a copy, which may lack the last updates before the job's end.
#ifndef STARLING_SERVER_SHARD_CORE_SHARD_H_
#define STARLING_SERVER_SHARD_CORE_SHARD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/control/shard_orders.h"
#include "common/protocol/ids.h"
#include "common/protocol/types.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/cut_state.h"
#include "server/shard/core/events.h"

namespace starling::shard {

// Partitions of ended jobs whose values are read from their primaries at a time. Each has one slice
// under way, so that what jobs that run send on the same streams waits little.
inline constexpr size_t kEndedCopiesAtOnce = 8;

using PartitionKey = std::pair<JobUid, PartitionId>;
using InstanceId = Id<struct InstanceIdTag, uint64_t>;  // ascending; never reused

namespace event {

// Newer than all previous orders, and for the same incarnation.
struct Orders {
  ShardOrders orders;
};
// The answer to Plan.
struct Planned {
  RunId run;
  absl::Status status;  // an error: this shard cannot host the job's partitions
};
// An instance's status.
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
  uint64_t value_bytes = 0;  // bytes of values that the instance keeps
};
// The answer to CopyEnded.
struct EndedCopied {
  PartitionKey key;
  InstanceId instance;
  uint64_t value_bytes = 0;
  std::string fault;  // why there is no copy; empty: it is whole
  bool no_memory = false;
};
// The coordinator considers this incarnation lost.
struct GivenUp {};

// ---- Of a checkpoint, by its number, which grows over a job's eras ----

// An instance's blocks are captured.
struct Captured {
  PartitionKey key;
  InstanceId instance;
  uint64_t number = 0;
  CutState state;
};
// An instance was past the step.
struct Missed {
  PartitionKey key;
  InstanceId instance;
  uint64_t number = 0;
  std::string why;
};
// What was captured was given up, before or while it was written; or the answer to WriteCheckpoint.
struct CheckpointWritten {
  JobUid job;
  uint64_t number = 0;
  absl::StatusOr<CheckpointFile> file;
};
struct CheckpointProgress {
  JobUid job;
  uint64_t number = 0;
  uint64_t bytes = 0;
};

}  // namespace event

using Event = std::variant<event::Orders, event::Planned, event::News, event::Ended,
                           event::EndedCopied, event::GivenUp, event::Captured, event::Missed,
                           event::CheckpointWritten, event::CheckpointProgress>;

namespace action {

// Make what the job's partitions share, and check whether `job` fits. Answer with Planned. Keep the
// plan until Forget.
struct Plan {
  ShardJob job;
};
struct Forget {
  RunId run;
};
// Make a partition of a planned job and give it its orders; after that, frames reach it. If it
// cannot be made, its News say so.
struct Create {
  RunId run;
  PartitionKey key;
  InstanceId instance;
  OrdersReceived orders;
  bool learns = false;  // it starts empty
};
struct Order {
  PartitionKey key;
  OrdersReceived orders;
};
// The job is over: keep the readable values and free everything else. Answer with Ended.
struct End {
  PartitionKey key;
  InstanceId instance;
  std::optional<uint64_t> keep_version;  // BSP: the readable version
};
// The job is over: read these values from the primary at `address`, and keep them for readers, as
// after End. Answer with EndedCopied.
struct CopyEnded {
  struct Values {
    SliceId slice;
    uint32_t elements = 0;
  };
  RunId run;
  PartitionKey key;
  InstanceId instance;
  std::string address;
  ViewNumber view;
  std::optional<uint64_t> version;  // BSP: the readable version
  std::vector<Values> values;       // of all slices of the partition
};
// All of the job's partitions have ended. Such partitions are numerous and seldom asked for.
struct Shelve {
  JobUid job;
};
// Frames no longer reach the partition, and its memory is freed.
struct Drop {
  PartitionKey key;
};
// Memory was freed that this shard does not need soon: return it to the system.
struct ReturnMemory {};
// For running jobs: the workers' names, the addresses of the deciding shards, and who leads what is
// backed here.
struct Learn {
  struct Leader {
    RunId run;
    ViewNumber view;
    std::string name;  // of a shard
    friend bool operator==(const Leader&, const Leader&) = default;
  };
  std::map<PartitionKey, Leader> leaders;
  std::map<WorkerId, std::string> names;
  std::map<JobUid, std::string> deciders;  // addresses
};

// Keep the blocks that the job's instances capture for this checkpoint, until DropCheckpoint. A job
// has one at a time.
struct BeginCheckpoint {
  JobUid job;
  ShardCheckpoint orders;
};
// All are captured: write them to a file. Answer with CheckpointProgress and CheckpointWritten.
struct WriteCheckpoint {
  JobUid job;
};
// Free what was captured, and stop writing it.
struct DropCheckpoint {
  JobUid job;
};

// Changes to the reports to the coordinator (ShardReports).
struct HoldRun {
  Run run;
};
struct Report {
  PartitionStatus status;
  bool at_once = false;
};
struct ReportEnd {
  HeldJob ended;  // `over` is left out
};
struct ReportNothingOfPartition {
  PartitionKey key;
};
struct ReportNothingOfJob {
  JobUid job;
};
struct ReportCheckpoint {
  Run run;
  CheckpointPart part;  // without a number: none
};

}  // namespace action

using Action = std::variant<action::Plan, action::Forget, action::Create, action::Order,
                            action::End, action::CopyEnded, action::Shelve, action::Drop,
                            action::ReturnMemory, action::Learn, action::BeginCheckpoint,
                            action::WriteCheckpoint, action::DropCheckpoint, action::HoldRun,
                            action::Report, action::ReportEnd, action::ReportNothingOfPartition,
                            action::ReportNothingOfJob, action::ReportCheckpoint>;

// One thread at a time.
class Shard {
 public:
  // Appends actions, to be carried out in order. Answers are separate events; do not call Step from
  // within Step.
  void Step(const Event& event, std::vector<Action>& actions);

 private:
  enum class Stage { kPlanning, kRunning, kEnding, kEnded };
  struct Instance {
    InstanceId id;
    uint64_t view = 0;
    bool backup = false;
    uint64_t ended_bytes = 0;  // of its values, once it has ended
  };
  // Values of a job that is over, as ordered in a view.
  struct Copy {
    uint64_t view = 0;
    bool copying = true;
    std::string fault;
    bool no_memory = false;
  };
  struct Checkpoint {
    ShardCheckpoint orders;
    std::set<PartitionId> partitions;  // in the file
    std::map<PartitionId, CutState> captured;
    CheckpointPart part;  // as reported

    // Not over: the host holds blocks for it.
    bool open() const {
      return part.state() == CheckpointPart::WAITING || part.state() == CheckpointPart::WRITING;
    }
  };
  struct Job {
    Run run;
    Stage stage = Stage::kPlanning;
    ShardJob orders;        // the newest ones, while the job is being planned, or ends
    Generation generation;  // of `orders`
    std::map<PartitionId, Instance> partitions;
    size_t not_ended = 0;      // partitions that have not ended; kEnding
    uint64_t value_bytes = 0;  // of the partitions that have ended
    std::map<PartitionId, Copy> copies;
    std::optional<Checkpoint> checkpoint;
  };

  void On(const event::Orders& event);
  void On(const event::Planned& event);
  void On(const event::News& event);
  void On(const event::Ended& event);
  void On(const event::EndedCopied& event);
  void On(const event::GivenUp& event);
  void On(const event::Captured& event);
  void On(const event::Missed& event);
  void On(const event::CheckpointWritten& event);
  void On(const event::CheckpointProgress& event);

  static RunId IdOf(const Run& run) { return {JobUid(run.job_uid()), run.era()}; }
  bool TakeEra(const Run& run);
  void Learn();
  void TakeJob(const ShardJob& orders, Generation generation);
  void TakePartitions(Job& job, const ShardJob& orders, Generation generation);
  void TakePartition(Job& job, const ShardJob& orders, const PartitionOrders& partition,
                     Generation generation);
  void DropInstance(Job& job, const PartitionKey& key);
  void Refuse(const ShardJob& orders, const PartitionOrders& partition, const absl::Status& why);
  void EndJob(const ShardJob& orders);
  void FinishEnd(Job& job);
  void KeepOnly(Job& job, const ShardJob& orders);
  void TakeCopies(Job& job, const ShardJob& orders);
  void Discard(Job& job, PartitionId partition);
  void CopyMore();
  void ReportEnd(const Job& job);
  void TakeDrop(const Run& run);
  void DropJob(Run run);
  bool IsCurrent(const PartitionKey& key, InstanceId instance) const;

  // shard_checkpoint.cc
  void TakeCheckpoint(Job& job, const ShardJob& orders);
  static bool WritesPart(const Job& job, PartitionId partition);
  Job* FindJobOf(JobUid uid, uint64_t checkpoint);
  void ReportCheckpoint(const Job& job);
  void EndCheckpoint(Job& job, CheckpointPart::State state, absl::string_view error);
  void DropCheckpoint(Job& job);
  template <typename T>
  void Do(T action) {
    actions_->push_back(std::move(action));
  }

  ShardOrderBook book_;
  std::map<JobUid, Job> jobs_;
  InstanceId last_instance_;
  std::deque<action::CopyEnded> to_copy_;   // in order
  std::set<InstanceId> copying_;            // at most kEndedCopiesAtOnce
  std::vector<Action>* actions_ = nullptr;  // of the step under way
};

}  // namespace starling::shard

#endif  // STARLING_SERVER_SHARD_CORE_SHARD_H_
