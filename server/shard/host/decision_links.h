// From the partitions of this shard to those that decide about their jobs, here or on another
// shard: docs/protocol.md, section 9. Carries frames; whatever is lost is the partition's to
// repeat.
#ifndef STARLING_SERVER_SHARD_HOST_DECISION_LINKS_H_
#define STARLING_SERVER_SHARD_HOST_DECISION_LINKS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/protocol/frame.h"
#include "common/sync/mutex.h"
#include "common/transport/transport.h"

namespace starling {

// Thread-safe.
class DecisionLinks {
 public:
  struct Callbacks {
    // An answer for partition header.reporter of this shard; text where it was refused. Any thread.
    std::function<void(const FrameHeader& header, std::string text)> answer;
    // A report for a partition of this very shard.
    std::function<void(const FrameHeader& report)> local;
  };
  DecisionLinks(std::unique_ptr<StreamClient> client, Callbacks callbacks);
  ~DecisionLinks();  // Stop()

  // Where this process listens: reports for it take no stream.
  void SetOwnAddress(const std::string& address);

  // Where each job is decided about; those that are not listed are forgotten.
  void SetDeciders(std::map<JobUid, std::string> addresses);

  // Never blocks. Opens a stream where there is none; if that fails the report is lost, and the
  // reporter gets an answer of kNotHosted that says for whom it waited, how long, and why.
  void Send(const FrameHeader& report);

  // Ends all streams; nothing is called back after it. Not from a callback. Idempotent.
  void Stop();

 private:
  class Link;

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

#endif  // STARLING_SERVER_SHARD_HOST_DECISION_LINKS_H_
