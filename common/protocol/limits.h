// Every limit of the service in one place, related by static_assert.
#ifndef STARLING_COMMON_PROTOCOL_LIMITS_H_
#define STARLING_COMMON_PROTOCOL_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace starling::limits {

// ---- Layout ----
inline constexpr uint32_t kSliceElementsMax = 262'144;  // 1 MiB of fp32
inline constexpr uint32_t kPartitionsDefault = 64;
inline constexpr uint64_t kParametersPerJobMax = uint64_t{1} << 34;
inline constexpr uint32_t kTensorsPerJobMax = 100'000;
inline constexpr uint32_t kTensorDimsMax = 8;
inline constexpr int64_t kTensorElementsMax = int64_t{1} << 33;
inline constexpr uint32_t kMicroBatchesMax = 1024;
inline constexpr uint32_t kGlobalBatchMax = 1 << 20;
inline constexpr uint32_t kStalenessMax = 10'000;
inline constexpr uint32_t kWorkersPerJobMax = 4096;
inline constexpr uint32_t kEpochsMax = 1'000'000;
inline constexpr int64_t kSamplesMax = int64_t{1} << 40;
// The highest clock of a request; the next one can still be counted.
inline constexpr int64_t kClockMax = int64_t{1} << 62;
// Steps of a full epoch. Its lease ids have 36 bits for it (lease_id.h), and a job's steps are
// exact in a double.
inline constexpr uint64_t kStepsPerEpochMax = uint64_t{1} << 32;
inline constexpr uint32_t kLeasesPerWorkerMax = 256;  // held at one time
static_assert(kClockMax >= kEpochsMax * kSamplesMax, "a job's steps have a clock each");
static_assert(kEpochsMax * kStepsPerEpochMax <= uint64_t{1} << 53,
              "a job's steps are exact in a double");
static_assert(kStepsPerEpochMax * kMicroBatchesMax <= uint64_t{1} << 53,
              "so are an epoch's micro-batches");

// ---- Frames ----
inline constexpr size_t kFrameHeaderBytes = 192;
inline constexpr size_t kTensorBytesMax = 4 * size_t{kSliceElementsMax};
inline constexpr size_t kRecordBytesMax = 128 << 10;  // encoded, without its payload
// A record and what it applies.
inline constexpr size_t kFramePayloadBytesMax = kTensorBytesMax + kRecordBytesMax;
inline constexpr size_t kFrameBytesMax = kFrameHeaderBytes + kFramePayloadBytesMax;
// Credit per stream.
inline constexpr size_t kStreamInFlightBytesMax = 8 * (kFrameHeaderBytes + kTensorBytesMax);
// Frames received on one stream and not yet handled: beyond either limit, reading pauses.
inline constexpr size_t kStreamFramesUnhandledMax = 4096;
// Headers, and payloads that need no credit.
inline constexpr size_t kStreamUncreditedBytesMax = 4 << 20;
// A stream's segment of shared memory (docs/decisions/0015), in one direction.
inline constexpr size_t kSegmentBlocks = 64;  // bits of FrameHeader::blocks
inline constexpr size_t kSegmentBlockBytes = 128 << 10;
inline constexpr size_t kSegmentBytes = kSegmentBlocks * kSegmentBlockBytes;
inline constexpr size_t kSharedPayloadBytesMin = 32 << 10;  // smaller ones go over the stream
inline constexpr size_t kSharedStreamsMax = 64;  // of a server; others have no shared memory
inline constexpr size_t kControlMessageBytesMax = 64 << 20;
// A shard's report or orders end with the change that passes this.
inline constexpr size_t kControlChangesBytesMax = 8 << 20;
inline constexpr size_t kMetricsPerReportMax = 4096;  // finished units of a worker
// Metrics that no coordinator has taken yet; beyond this, the oldest are dropped.
inline constexpr size_t kMetricsWaitingMax = 65'536;
static_assert(kFrameHeaderBytes + kFramePayloadBytesMax <= kFrameBytesMax);
static_assert(kStreamInFlightBytesMax >= 2 * kFrameBytesMax,
              "never fewer than 2 messages in flight");
static_assert(kSegmentBytes + 8 * kFrameHeaderBytes >= kStreamInFlightBytesMax,
              "the full slices that credit allows fit into a segment");
static_assert(kFrameBytesMax < kControlMessageBytesMax);
static_assert(2 * kControlChangesBytesMax < kControlMessageBytesMax,
              "so far the last change has room");

// ---- The log ----
// Sent to a partition's backup and not answered; the records behind them wait.
inline constexpr uint64_t kRecordsInFlightMax = 64;
inline constexpr uint64_t kSnapshotFramesInFlightMax = 4;  // the same, of a snapshot
// Of each slice; a greater lag is told as this one.
inline constexpr size_t kSliceUpdatesRemembered = 128;

// ---- Pending requests of a partition ----
inline constexpr size_t kParkedFramesPerConnectionMax = 4096;  // for a roster, a view or an epoch
inline constexpr size_t kParkedBytesPerConnectionMax = 64 << 20;
inline constexpr size_t kParkedBytesPerShardMax = 512 << 20;  // over all partitions and connections
inline constexpr size_t kJoinedRetriesMax = 64;               // per contribution
inline constexpr size_t kWaitingClosesPerReplicaMax = 1024;
inline constexpr size_t kCoveredRangesReportedMax = 1024;  // per partition; the lowest ones
inline constexpr uint64_t kReaderFramesQueuedMax = 1024;   // per stream of a reader
inline constexpr size_t kLagBuckets = 32;
static_assert(kParkedBytesPerConnectionMax >= kStreamInFlightBytesMax, "a full stream can wait");
static_assert(kParkedBytesPerShardMax >= 8 * kParkedBytesPerConnectionMax);

// ---- Names and texts ----
inline constexpr size_t kNameBytesMax = 128;
inline constexpr size_t kJobFileBytesMax = 1 << 20;
inline constexpr size_t kJobsMax = 10'000;
inline constexpr size_t kListEntriesMax = 1000;   // per page of a list
inline constexpr size_t kListBytesMax = 2 << 20;  // a page ends with the entry that passes this
inline constexpr uint32_t kPolicyChangesWaitingMax = 4;  // per job
inline constexpr uint32_t kPoliciesPerJobMax = 256;
inline constexpr uint32_t kRestartsPerJob = 3;  // maxRestarts, if the job file has none
// So often a worker may report values that are not finite where others find finite ones, before it
// is quarantined.
inline constexpr int kNonFinitePerWorker = 3;
inline constexpr uint64_t kWarningsPerJobMax = 20;
inline constexpr size_t kLogEntriesPerJobMax = 10'000;
// Per job; neighbours are merged when there are more.
inline constexpr size_t kCurvePointsMax = 512;
inline constexpr size_t kJobSpecBytesMax = 4 << 20;    // with its model resolved
inline constexpr size_t kSubmissionsMax = 8;           // whose data is being inspected
inline constexpr uint32_t kInspectorsMax = 3;          // workers that are asked and do not die
inline constexpr uint32_t kInspectMinutesMax = 5;      // of one of them
inline constexpr uint32_t kSubmitMinutesMax = 16;      // of a submission, until it is answered
inline constexpr uint32_t kCheckpointMinutesMax = 10;  // of a call for one, until it is answered
// A message from a daemon; longer text is cut off.
inline constexpr size_t kFaultBytesMax = 4096;
inline constexpr size_t kPathBytesMax = 4096;
inline constexpr size_t kAddressBytesMax = 512;
inline constexpr size_t kDeviceBytesMax = 1024;  // a worker's description of its device
inline constexpr size_t kDaemonsMax = 16'384;    // names of each kind
static_assert(kSubmissionsMax * kJobSpecBytesMax < kControlMessageBytesMax,
              "all fit into one worker's orders");
static_assert(kSubmitMinutesMax > kInspectorsMax * kInspectMinutesMax,
              "each has its time, and the next one may have to be waited for");
static_assert(2 * kListBytesMax <= 4 << 20,
              "a page and its last entry pass through a client's default limit");

}  // namespace starling::limits

#endif  // STARLING_COMMON_PROTOCOL_LIMITS_H_
