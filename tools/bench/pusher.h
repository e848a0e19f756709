// A worker that computes nothing and pulls nothing: it pushes gradients as fast as the shards
// acknowledge them. It is a member of its job like any other worker, and the only one.
#ifndef STARLING_TOOLS_BENCH_PUSHER_H_
#define STARLING_TOOLS_BENCH_PUSHER_H_

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
#include "common/placement/layout.h"
#include "common/protocol/frame.h"
#include "common/sync/mutex.h"
#include "common/transport/transport.h"
#include "proto/coordinator.pb.h"

namespace starling {

// Not thread-safe.
class Pusher {
 public:
  // What the shards acknowledged, and the time from the first push to the last acknowledgement.
  struct Turn {
    uint64_t bytes = 0;
    absl::Duration time;
  };

  Pusher(const Identity& self, const std::string& coordinator,
         std::shared_ptr<const LinkSecurity> security);
  ~Pusher();  // waits for the report under way, 10 s at most

  // Registers, answers the inspection of the next job (`builtin: mlp`, whose first layer it makes
  // square) and becomes its member, within `patience` and a shard's last answer (30 s at most).
  // Each call to the coordinator takes 10 s at most. Errors say what was waited for.
  absl::Status Join(absl::Duration patience);

  // Pushes the slices of one step after the other for `time`, completes the last step, and returns
  // when the shards have acknowledged all these pushes. A slice's gradient is pushed again once its
  // last push is acknowledged. Any refusal is an error, and so is a wait of more than 30 s.
  absl::StatusOr<Turn> Push(absl::Duration time);

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
  absl::Status SendPush(uint64_t number);
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
  std::shared_ptr<std::vector<float>> gradients_;  // layout_.elements
  Clock first_clock_ = 0;
  uint64_t next_ = 0;  // number of the next push: slice next_ % slices of step next_ / slices

  Mutex mutex_;
  CondVar changed_;
  WorkerOrders orders_ ABSL_GUARDED_BY(mutex_);
  absl::Status report_status_ ABSL_GUARDED_BY(mutex_);

  std::shared_ptr<Answers> answers_;
  std::map<std::string, std::shared_ptr<FrameStream>> stream_of_;  // by the shard's address
  const std::unique_ptr<StreamClient> streams_;                    // closed before the above

  std::atomic<bool> over_ = false;
  std::thread reports_;
};

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_PUSHER_H_
