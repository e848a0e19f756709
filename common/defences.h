// The defences behind the promises G1 to G7, one name each. A test-only build (-DSTARLING_MUTANTS)
// can mask one at a time, to prove that the checker of its promise detects the gap. In every other
// build DefenceMasked is a constant false and the mask does not exist.
#ifndef STARLING_COMMON_DEFENCES_H_
#define STARLING_COMMON_DEFENCES_H_

#include <atomic>
#include <cstdint>

namespace starling {

enum class Defence : uint8_t {
  kDedup,                // covered work is not counted again
  kDigest,               // a payload that differs from its digest is not applied
  kJoin,                 // a retry that arrives while the original runs joins it
  kIncarnationFence,     // a member that is not in the roster changes nothing
  kRunFence,             // a frame of another run changes nothing
  kViewFence,            // a frame of another view changes nothing
  kRequiredClock,        // a pull waits until the slowest replica is close enough
  kMinLsn,               // a pull's answer is never older than what the puller saw
  kJoinerClock,          // a joiner enters at the minimum of the active replicas, not below
  kBatchKey,             // the key is the batch, not its sender
  kReductionOrder,       // only siblings merge
  kFiniteCheck,          // NaN and Inf are not applied
  kCommitBeforeApply,    // nothing is applied or acked before the backup has it
  kEpochGate,            // an epoch's contributions wait until the epoch is open
  kCutBeforeNext,        // an epoch's values are copied before the next epoch changes them
  kGeneration,           // orders of an older coordinator change nothing
  kCoordinatorPersist,   // the coordinator's state is durable before anyone sees it
  kEvaluationRangeOnce,  // a range's evaluation counts once
  kPolicyHold,           // a policy starts after every unit that any member has started
  kPolicyDrain,          // a partition switches once all before the policy's step is applied
  kPolicyFence,          // requests of an earlier policy do not count under a later one
  kDecisionHold,         // a sealed sum waits for its step's decision
  kDecisionStep,         // a decision about another step changes nothing
  kReportOnce,           // a partition's norm counts once, however often it is reported
  kReportStep,           // a norm of another step does not count
  kReportRepeat,         // a report is repeated until it is answered
  kSkipTogether,         // a step is skipped by all slices if one overflowed
  kHostAnswer,           // a frame for a partition that is not on the shard is refused
  kDrop,                 // a dropped partition is not found again, and frees its memory
  kValueInUse,           // a value that a stream has still to send is not overwritten
  kKeepVersion,          // a BSP job that is over keeps the version that is read
  kBufferUntilAck,       // a gradient's buffer is not reused before its push is acked
  kSendAgain,            // a reopened stream gets every unanswered frame again
  kOpenStream,           // an answer of a closed stream is ignored
  kReaders,              // a value waits while an abandoned unit reads its copy
  kMemoryFirst,          // a job is opened only after the one before has freed its memory
  kRecordScalars,        // a record has the scalars of its update
  kRecordClock,          // a record has the clock at which its replica enters
  kStateClocks,          // the members' clocks are written with a partition's state
  kSlotsByRecords,       // only records of updates change the optimizer's state
  kBackupView,           // a backup takes records of its own view alone
  kAckView,              // a primary takes what a backup of its own view says alone
  kSnapshotSlots,        // a snapshot has the optimizer's state
  kWholeBeforeLead,      // a backup that does not have all never becomes the primary
  kCheckpointBoundary,   // a checkpoint has its step's values, before any later update
  kCheckpointPin,        // what is captured for a checkpoint is not updated in place
  kCheckpointSlots,      // a checkpoint has the optimizer's state
  kReadBack,             // a file of a checkpoint counts once it was read back
  kFileSync,             // a file of a checkpoint is durable before it has its name
  kFolderSync,           // names in a checkpoint's folder are durable before what is written next
  kManifestLast,         // a checkpoint gets its name once its manifest is durable
  kManifestCheck,        // what a manifest says is compared with what is there
  kRootSync,             // a checkpoint is there once its name is durable
  kDropSync,             // a deleted checkpoint's files go after its name
  kKeepOlder,            // older checkpoints stay until a newer one is there
  kCheckpointCopy,       // a checkpoint has the copy for a pending evaluation
  kRestoreDigest,        // what is read of a checkpoint has the digest written with it
  kRestoreSlots,         // a job goes on with the optimizer's state
  kRestoreScale,         // a job goes on with the loss scale
  kCount,
};

constexpr const char* DefenceName(Defence defence) {
  constexpr const char* kNames[] = {"dedup",
                                    "digest",
                                    "join",
                                    "incarnation-fence",
                                    "run-fence",
                                    "view-fence",
                                    "required-clock",
                                    "min-lsn",
                                    "joiner-clock",
                                    "batch-key",
                                    "reduction-order",
                                    "finite-check",
                                    "commit-before-apply",
                                    "epoch-gate",
                                    "cut-before-next",
                                    "generation",
                                    "coordinator-persist",
                                    "evaluation-range-once",
                                    "policy-hold",
                                    "policy-drain",
                                    "policy-fence",
                                    "decision-hold",
                                    "decision-step",
                                    "report-once",
                                    "report-step",
                                    "report-repeat",
                                    "skip-together",
                                    "host-answer",
                                    "drop",
                                    "value-in-use",
                                    "keep-version",
                                    "buffer-until-ack",
                                    "send-again",
                                    "open-stream",
                                    "readers",
                                    "memory-first",
                                    "record-scalars",
                                    "record-clock",
                                    "state-clocks",
                                    "slots-by-records",
                                    "backup-view",
                                    "ack-view",
                                    "snapshot-slots",
                                    "whole-before-lead",
                                    "checkpoint-boundary",
                                    "checkpoint-pin",
                                    "checkpoint-slots",
                                    "read-back",
                                    "file-sync",
                                    "folder-sync",
                                    "manifest-last",
                                    "manifest-check",
                                    "root-sync",
                                    "drop-sync",
                                    "keep-older",
                                    "checkpoint-copy",
                                    "restore-digest",
                                    "restore-slots",
                                    "restore-scale"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<int>(Defence::kCount));
  return kNames[static_cast<int>(defence)];
}

#ifdef STARLING_MUTANTS

namespace internal_defences {
inline std::atomic<uint64_t> mask{0};
}  // namespace internal_defences

// Masks only `defence` until the next call; kCount: masks none.
inline void MaskDefence(Defence defence) {
  internal_defences::mask =
      defence == Defence::kCount ? 0 : uint64_t{1} << static_cast<int>(defence);
}
inline bool DefenceMasked(Defence defence) {
  return (internal_defences::mask.load(std::memory_order_relaxed) >> static_cast<int>(defence)) & 1;
}

// Masks one of those that keep a partition from wrong decisions: any but those of records.
inline bool DecisionsUnguarded() {
  const bool of_records =
      DefenceMasked(Defence::kRecordScalars) || DefenceMasked(Defence::kRecordClock) ||
      DefenceMasked(Defence::kStateClocks) || DefenceMasked(Defence::kSlotsByRecords);
  return internal_defences::mask.load(std::memory_order_relaxed) != 0 && !of_records;
}

#else

constexpr bool DefenceMasked(Defence) { return false; }
constexpr bool DecisionsUnguarded() { return false; }

#endif

}  // namespace starling

#endif  // STARLING_COMMON_DEFENCES_H_
