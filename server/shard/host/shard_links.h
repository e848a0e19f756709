// Links from this shard's partitions to the partitions that decide about their jobs
// (docs/protocol.md, section 9), here or on another shard, to their backups (section 12), and to
// the primaries whose values they copy when the job is over: one stream to each shard. They only
// carry frames; partitions repeat what is lost.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_LINKS_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_LINKS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/protocol/frame.h"
#include "common/sync/mutex.h"
#include "common/transport/transport.h"

namespace starling {

// Thread-safe.
class ShardLinks {
 public:
  struct Callbacks {
    // An answer for partition header.reporter of this shard, with a text if it is a refusal. Any
    // thread.
    std::function<void(const FrameHeader& header, std::string text)> answer;
    // A report for a partition of this shard.
    std::function<void(const FrameHeader& report)> local;
    // An answer for the primary of header.partition, with a text if it is a refusal. Any thread.
    std::function<void(const FrameHeader& header, std::string text)> backup;
    // What this partition has sent to `address` so far may be lost, and so may the answers. Any
    // thread.
    std::function<void(JobUid job, PartitionId partition, const std::string& address,
                       std::string why)>
        backup_down;
    // The answer to a pull. It counts as handled when `payload` is gone. Any thread.
    std::function<void(const FrameHeader& header, ReceivedPayload payload)> value =
        [](const FrameHeader&, ReceivedPayload) {};
    // A stream to the shard at `address` broke, or could not be opened. Any thread.
    std::function<void(const std::string& address)> unreached = [](const std::string&) {};
  };
  ShardLinks(std::unique_ptr<StreamClient> client, Callbacks callbacks);
  ~ShardLinks();  // Stop()

  // This process's own address: reports to it take no stream.
  void SetOwnAddress(const std::string& address);

  // The address of each job's deciding shard. Jobs that are not listed are forgotten.
  void SetDeciders(std::map<JobUid, std::string> addresses);

  // Never blocks. Opens a stream if there is none. If that fails, the report is lost, and the
  // reporter gets an answer of kNotHosted that says what it waited for, how long, and why.
  void Send(const FrameHeader& report);

  // Sends to the backup at `address`, behind everything sent there before. Never blocks.
  void Replicate(const std::string& address, const FrameHeader& header, OutgoingPayload payload);
  // Sends a reader's pull in the same way. A refusal is an answer like those of backups.
  void Pull(const std::string& address, const FrameHeader& header) {
    Replicate(address, header, {});
  }

  // The job is over: nobody has to hear that a link to its backups broke.
  void Forget(JobUid job);

  // Ends all streams. No callback runs after it. Do not call it from a callback. Idempotent.
  void Stop();

 private:
  class Link;

  std::shared_ptr<Link> LinkTo(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDown(const std::string& address, const Link* link);

  const Callbacks callbacks_;
  Mutex mutex_;
  std::string own_address_ ABSL_GUARDED_BY(mutex_);
  std::map<JobUid, std::string> deciders_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<StreamClient> client_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_LINKS_H_
