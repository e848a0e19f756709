// One partition on its shard: the core, the memory that the core decides about, and the carrying
// out of the core's actions. Decides nothing.
#ifndef STARLING_SERVER_SHARD_HOST_PARTITION_HOST_H_
#define STARLING_SERVER_SHARD_HOST_PARTITION_HOST_H_

#include <array>
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
#include "common/trace/span_ring.h"
#include "common/transport/transport.h"
#include "server/shard/core/partition.h"
#include "server/shard/host/ended_partition.h"
#include "server/shard/host/shard_connection.h"
#include "server/shard/host/shard_job.h"
#include "server/shard/host/shard_memory.h"

namespace starling {

// One thread at a time: that of the partition's owner.
class PartitionHost {
 public:
  // Makes the first values. `spans` outlives the host. `report` is called with the partition's
  // status when it changed in a way that the coordinator waits for (ready, orders taken, a cut, a
  // fault), and otherwise at ticks. kResourceExhausted: no memory for the values. When `memory`
  // runs out later, the partition stops: it reports a fault, which fails the job, and refuses every
  // frame.
  using Report = std::function<void(const PartitionStatus& status, bool at_once)>;
  // Takes the partition's norm to where the job decides; what comes back goes to OnDecision.
  using SendReport = std::function<void(const FrameHeader& report)>;
  static absl::StatusOr<std::unique_ptr<PartitionHost>> Create(
      std::shared_ptr<const ShardJobPlan> plan, PartitionId partition, ShardId self,
      std::shared_ptr<ShardMemory> memory, SpanRing* spans, Report report, SendReport send_report);
  ~PartitionHost();

  PartitionHost(const PartitionHost&) = delete;
  PartitionHost& operator=(const PartitionHost&) = delete;

  // `arrived_us`: when the transport had it (SpanRing::NowMicros).
  void OnFrame(std::shared_ptr<ShardConnection> connection, const FrameHeader& header,
               ReceivedPayload payload, uint64_t arrived_us);
  void OnConnectionDown(ConnectionId connection);
  void OnOrders(OrdersReceived orders);
  void OnDecision(const FrameHeader& answer, std::string text);
  void OnTick();
  // The job is over, and `keep_version` is what is read of partitions in BSP. This host is of no
  // use then: destroying it frees all else.
  std::unique_ptr<EndedPartition> End(std::optional<uint64_t> keep_version);
  // For tests: from now on each update takes so much longer.
  void InjectApplyWait(absl::Duration wait) { apply_wait_ = wait; }

 private:
  // A value that is never written while anybody else reads it: who sends or keeps it holds `data`,
  // and an update then goes to new memory.
  struct Value {
    std::shared_ptr<float> data;
    uint64_t digest = 0;  // of the bytes; 0: not known yet
  };

  struct SliceStore {
    const Slice* slice = nullptr;
    const UpdateRule* rule = nullptr;
    std::array<Value, 2> versions;  // two: version v at v % 2; else [0]
    uint32_t current = 0;           // index of the newest
    std::shared_ptr<float> slot0, slot1;
    Value cut;
  };

  // A contribution: where gRPC left it, or in memory of its own. The first keeps credit from the
  // sender, so it outlives the event that brought it only where there is no memory.
  struct Buffer {
    ReceivedPayload received;
    std::shared_ptr<float> own;
    size_t elements = 0;
    FrameHeader header;
    uint64_t arrived_us = 0;
    int64_t first_non_finite = -1;  // of a sum that was merged here: element, or -1
  };

  // What the core does not see of PartitionTimes.
  struct Times {
    uint64_t pushes = 0;
    uint64_t received_bytes = 0;
    uint64_t sent_bytes = 0;
    uint64_t queue_us = 0;
    uint64_t verify_us = 0;
    uint64_t apply_us = 0;
    uint64_t applies = 0;
  };

  PartitionHost(std::shared_ptr<const ShardJobPlan> plan, PartitionConfig config,
                std::shared_ptr<ShardMemory> memory, SpanRing* spans, Report report,
                SendReport send_report);

  absl::Status MakeFirstValues();
  void Handle(PartitionEvent event);
  void Carry(const PartitionEvent& event);
  bool MoveToOwnMemory(BufferId id);
  void OutOfMemory(size_t elements);
  void PublishIfDue(bool tick);
  void AddTimes(PartitionStatus& status) const;

  void Do(const Verify& action);
  void Do(const MergeSums& action);
  void Do(const Measure& action);
  void Do(const ReportNorm& action);
  void Do(const Replicate& action);
  void Do(const ApplyNow& action);
  void Do(const SwitchPolicy& action);
  void Do(const CopyForCut& action);
  void Do(const DropCopy& action);
  void Do(const SendFrame& action);
  void Do(const SendValue& action);
  void Do(const Release& action);
  void Do(const ReportFault& action);

  SliceStore& Store(SliceId slice);
  std::shared_ptr<float> Writable(const Value& value, size_t elements);
  std::shared_ptr<float> AllocateOrRelieve(size_t elements,
                                           const std::shared_ptr<float>* reuse = nullptr);
  void LetGo(const SliceStore& store, const Value& value);
  // Calls fn(Payload) with the buffer's bytes.
  template <typename Fn>
  void WithPayload(const Buffer& buffer, Fn&& fn);

  const std::shared_ptr<const ShardJobPlan> plan_;
  const std::shared_ptr<ShardMemory> memory_;
  SpanRing* const spans_;
  const Report report_;
  const SendReport send_report_;
  const uint32_t micro_batches_;
  absl::Duration apply_wait_;

  bool two_versions_;  // of what is not frozen
  Partition core_;
  std::map<SliceId, SliceStore> slices_;
  std::map<BufferId, Buffer> buffers_;
  uint64_t last_buffer_ = 0;
  std::vector<BufferId> new_buffers_;  // received in the event under way
  std::map<ConnectionId, std::shared_ptr<ShardConnection>> connections_;
  std::deque<PartitionEvent> events_;
  PartitionActions actions_;
  absl::Time last_now_ = absl::InfinitePast();

  uint64_t value_bytes_ = 0;    // of one version of all slices
  uint64_t waiting_bytes_ = 0;  // reserved of memory_
  std::string fault_;           // set: stopped for want of memory
  Times times_;
  uint64_t cuts_reported_ = 0;
  uint64_t drains_reported_ = 0;
  bool changed_ = true;  // since the last report
  bool at_once_ = true;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_PARTITION_HOST_H_
