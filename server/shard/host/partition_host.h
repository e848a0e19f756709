// One copy of a partition on its shard: its core, the memory of its values, and the code that
// carries out the core's actions. It decides nothing.
#ifndef STARLING_SERVER_SHARD_HOST_PARTITION_HOST_H_
#define STARLING_SERVER_SHARD_HOST_PARTITION_HOST_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/capture.h"
#include "common/event_loop/event_loop.h"
#include "common/trace/span_ring.h"
#include "common/transport/transport.h"
#include "server/shard/core/partition.h"
#include "server/shard/host/action_memory.h"
#include "server/shard/host/ended_partition.h"
#include "server/shard/host/partition_observer.h"
#include "server/shard/host/shard_connection.h"
#include "server/shard/host/shard_job.h"
#include "server/shard/host/shard_memory.h"
#include "server/shard/host/slice_values.h"

namespace starling {

// Used on the partition's owner, an event loop, only.
//
// A partition pauses when an action needs memory that closed streams are about to free; a backup,
// also when others may free some. Events wait meanwhile, and the owner's other partitions continue.
// If the memory does not come, the partition stops: it reports so and refuses every frame. Where
// another copy is whole the job goes on with it; otherwise the job fails.
class PartitionHost {
 public:
  // Everything here outlives the host.
  struct Environment {
    EventLoop* owner = nullptr;  // also the clock
    ShardId self;
    std::shared_ptr<ShardMemory> memory;
    SpanRing* spans = nullptr;
    // Called with the partition's status: at once if the coordinator waits for the change (ready,
    // orders taken, a cut, a fault), otherwise at ticks.
    std::function<void(const PartitionStatus& status, bool at_once)> report;
    // Sends the partition's norm to the deciding partition. The answer goes to OnDecision.
    std::function<void(const FrameHeader& report)> send_report;
    // Sends a frame to the backup's shard. The answer goes to OnBackupAnswer, the loss of the link
    // to OnBackupDown.
    std::function<void(const std::string& address, const FrameHeader& header,
                       OutgoingPayload payload)>
        send_to_backup;
    // Of a checkpoint, by its number. `blocks` have what is to be written of the partition: their
    // memory is not written while they are held.
    std::function<void(uint64_t number, const CutState& state, std::vector<CapturedBlock> blocks)>
        captured;
    std::function<void(uint64_t number, const std::string& why)> missed;
    // Lets go of what is captured, soon. False: nothing is.
    std::function<bool()> give_up_capture;
    PartitionObserver* observer = nullptr;  // for tests; null in a serving process
    absl::Duration apply_wait;              // injected: each update takes this much longer
  };

  // Makes the initial values, unless `first` is kNothing: then the primary sends its own. Blocks
  // while they are read from a file. kResourceExhausted: there is no memory for them; otherwise an
  // error of that file.
  static absl::StatusOr<std::unique_ptr<PartitionHost>> Create(
      std::shared_ptr<const ShardJobPlan> plan, PartitionId partition, Environment environment,
      FirstState first = FirstState::kFirstValues);
  ~PartitionHost();

  PartitionHost(const PartitionHost&) = delete;
  PartitionHost& operator=(const PartitionHost&) = delete;

  // `arrived`: when the transport received it, by the owner's clock.
  void OnFrame(std::shared_ptr<ShardConnection> connection, const FrameHeader& header,
               ReceivedPayload payload, absl::Time arrived);
  void OnConnectionDown(ConnectionId connection);
  void OnOrders(OrdersReceived orders);
  void OnDecision(const FrameHeader& answer, std::string text);
  void OnBackupAnswer(const FrameHeader& answer, std::string text);
  // `address`: of the shard to which the link was.
  void OnBackupDown(const std::string& address, std::string why);
  void OnTick();
  // The job is over. Returns the readable values: in BSP, those of version `keep_version`. Null: it
  // is a learner without a complete copy. Destroy the host afterwards, which frees everything else.
  std::unique_ptr<EndedPartition> End(std::optional<uint64_t> keep_version);

 private:
  // A contribution, in gRPC's memory or in our own. gRPC's memory holds back the sender's credit,
  // so it is kept beyond the event only if there is no other memory.
  struct Buffer {
    ReceivedPayload received;
    std::shared_ptr<float> own;
    size_t elements = 0;
    FrameHeader header;
    absl::Time arrived;
    int64_t first_non_finite = -1;  // of a merged sum: element, or -1
  };

  // The part of PartitionTimes that the core does not see.
  struct Times {
    uint64_t pushes = 0;
    uint64_t received_bytes = 0;
    uint64_t sent_bytes = 0;
    absl::Duration queue;
    absl::Duration verify;
    absl::Duration apply;
    uint64_t applies = 0;
  };

  // Actions of a step that wait for memory, from `next` on.
  struct Paused {
    PartitionActions actions;
    size_t next = 0;
    EventLoop::TimerId timer = 0;
  };

  // Errors of the backup, or of the link to it.
  struct BackupTrouble {
    absl::Time since = absl::InfinitePast();
    absl::Time last = absl::InfinitePast();
    absl::Time logged = absl::InfinitePast();
    uint64_t errors = 0;
  };

  // A part of a snapshot. The memory of its tensor is not written meanwhile.
  struct SnapshotFrame {
    FrameHeader header;  // only kind, slice, part and elements
    OutgoingPayload payload;
  };

  PartitionHost(std::shared_ptr<const ShardJobPlan> plan, PartitionConfig config,
                Environment environment, FirstState first);

  void OnReplicated(ConnectionId connection, const FrameHeader& header,
                    const ReceivedPayload& payload);
  void Handle(PartitionEvent event);
  void HandleWaiting();
  void ObserveGone() const;
  void Carry(PartitionActions actions, size_t next);
  void Pause(PartitionActions actions, size_t next);
  void Resume();
  bool MoveToOwnMemory(Buffer& buffer, bool for_action);
  void MoveNewBuffers();
  void OutOfMemory();
  bool GiveUpSnapshot();
  void NoteBackupTrouble(const std::string& what);
  void RefuseArrived(const std::string& why);
  void PublishIfDue(bool tick);
  void AddTimes(PartitionStatus& status) const;

  void Do(const Verify& action);
  void Do(const MergeSums& action);
  void Do(const Measure& action);
  void Do(const ReportNorm& action);
  void Do(const AskBackup& action);
  void Do(const Replicate& action);
  void Do(const TakeSnapshot& action);
  void Do(const SendSnapshot& action);
  void Do(const DropSnapshot& action);
  void Do(const BeginTensors& action);
  void Do(const KeepPayload& action);
  void Do(const InstallTensor& action);
  void Do(const ApplyNow& action);
  void Do(const SwitchPolicy& action);
  void Do(const CopyForCut& action);
  void Do(const DropCopy& action);
  void Do(const CaptureCheckpoint& action);
  void Do(const MissCheckpoint& action);
  void Do(const SendFrame& action);
  void Do(const SendValue& action);
  void Do(const Release& action);
  void Do(const ReportFault& action);

  // Calls fn(Payload) with the buffer's bytes.
  template <typename Fn>
  void WithPayload(const Buffer& buffer, Fn&& fn);

  const std::shared_ptr<const ShardJobPlan> plan_;
  const Environment environment_;
  EventLoop* const owner_;
  ShardMemory* const memory_;
  SpanRing* const spans_;
  const uint32_t micro_batches_;

  Partition core_;
  SliceValues values_;
  ActionMemory action_memory_;  // of the current action
  std::map<BufferId, Buffer> buffers_;
  uint64_t last_buffer_ = 0;
  std::vector<BufferId> new_buffers_;  // received, and still in gRPC's memory
  std::map<ConnectionId, std::shared_ptr<ShardConnection>> connections_;
  std::deque<PartitionEvent> arrived_;
  std::deque<PartitionEvent> events_;  // answers to the current event's actions; handled first
  std::optional<Paused> paused_;
  std::vector<SnapshotFrame> snapshot_;
  BackupTrouble backup_trouble_;

  uint64_t value_bytes_ = 0;    // of one version of all slices
  uint64_t waiting_bytes_ = 0;  // reserved from memory_
  std::string fault_;           // set: stopped for lack of memory
  Times times_;
  uint64_t cuts_reported_ = 0;
  uint64_t drains_reported_ = 0;
  uint64_t wholes_reported_ = 0;
  bool changed_ = true;  // since the last report
  bool at_once_ = true;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_PARTITION_HOST_H_
