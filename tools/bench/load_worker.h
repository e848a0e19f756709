// A worker that computes nothing: it pushes gradients and pulls values as fast as the shards
// answer. It is a member of its job like any other worker, and the only one.
#ifndef STARLING_TOOLS_BENCH_LOAD_WORKER_H_
#define STARLING_TOOLS_BENCH_LOAD_WORKER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/daemon/coordinator_client.h"
#include "common/event_loop/threaded_loop.h"
#include "common/placement/layout.h"
#include "common/protocol/frame.h"
#include "common/sync/mutex.h"
#include "common/transport/transport.h"
#include "proto/coordinator.pb.h"

namespace starling {

// What it does with each slice in turn.
enum class Traffic {
  kPush,     // a gradient, which the shard applies
  kSkipped,  // the same, but for the update, which is skipped (an overflow of fp16); not of slice 0
  kPull,     // its value
  kBoth,     // a gradient, and behind it a pull
};

// Not thread-safe.
class LoadWorker {
 public:
  // What the shards acknowledged and what arrived, and the time from the first request to the last
  // answer.
  struct Turn {
    uint64_t bytes = 0;
    absl::Duration time;
  };

  LoadWorker(const Identity& self, const std::string& coordinator,
             std::shared_ptr<const LinkSecurity> security, bool shared_memory);
  ~LoadWorker();  // waits for the report under way, 10 s at most

  // Registers, answers the inspection of the next job (`builtin: mlp`, whose first layer it makes
  // square) and becomes its member, within `patience` and a shard's last answer (30 s at most).
  // Each call to the coordinator takes 10 s at most. Errors say what was waited for.
  absl::Status Join(absl::Duration patience);

  // Goes through the slices, one step after the other, for `time`, completes the last step, and
  // returns when all is answered. A slice's turn comes again once all before it is answered. Values
  // are checked and copied to their place on a thread like a worker's session. Any refusal is an
  // error, and so is a wait of more than 30 s.
  absl::StatusOr<Turn> Run(Traffic traffic, absl::Duration time);

 private:
  class Answers;

  absl::Status Register();
  // Exchanges a report for orders. The coordinator answers when there is news, or after a while.
  absl::Status Report();
  void KeepReporting();
  bool IsMember() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Connect();
  absl::Status Enter(absl::Duration patience);
  absl::Status Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency);
  absl::Status SendPush(uint64_t number, uint64_t step, bool skipped);
  absl::Status SendPull(uint64_t number, uint64_t clock);
  absl::Status SendCloses(uint64_t step);
  FrameHeader Header(FrameType type, PartitionId partition, uint64_t request) const;

  const Identity self_;
  const std::unique_ptr<CoordinatorClient> client_;
  RegisterReply registration_;
  uint64_t sequence_ = 0;  // of reports

  // What the job was when Connect was called.
  JobDescription job_;
  std::vector<View> views_;
  uint64_t roster_ = 0;
  Layout layout_;
  std::shared_ptr<float> gradients_;  // layout_.elements
  Clock first_clock_ = 0;
  uint64_t next_ = 0;   // number of the next request, for slice next_ % slices
  uint64_t steps_ = 0;  // pushed

  Mutex mutex_;
  CondVar changed_;
  WorkerOrders orders_ ABSL_GUARDED_BY(mutex_);
  absl::Status report_status_ ABSL_GUARDED_BY(mutex_);

  std::shared_ptr<Answers> answers_;
  ThreadedLoop session_{"session"};  // carries out what the answers posted, then ends
  std::map<std::string, std::shared_ptr<FrameStream>> stream_of_;  // by the shard's address
  const std::unique_ptr<StreamClient> streams_;                    // closed before the above

  std::atomic<bool> over_ = false;
  std::thread reports_;
};

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_LOAD_WORKER_H_
