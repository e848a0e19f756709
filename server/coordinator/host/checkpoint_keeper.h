// The coordinator's side of the checkpoint root, on a thread of its own: a slow disk delays no call
// and no report.
#ifndef STARLING_SERVER_COORDINATOR_HOST_CHECKPOINT_KEEPER_H_
#define STARLING_SERVER_COORDINATOR_HOST_CHECKPOINT_KEEPER_H_

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/disk.h"
#include "common/checkpoint/store.h"
#include "common/event_loop/threaded_loop.h"
#include "proto/checkpoint.pb.h"
#include "server/coordinator/core/coordinator.h"

namespace starling::coordinator {

// Thread-safe. What is asked for is done one after the other, in order, except that Verify delays
// nothing but others of its kind; the answers are given on the keeper's threads. Only Stop blocks.
class CheckpointKeeper {
 public:
  template <typename T>
  using Done = std::function<void(T)>;

  // `disk` null: this coordinator keeps none, and everything fails.
  CheckpointKeeper(std::shared_ptr<CheckpointDisk> disk,
                   const MakeEventLoop& make_loop = ThreadedLoop::Make);
  ~CheckpointKeeper();  // Stop()

  void Make(const action::MakeCheckpoint& action, Done<absl::Status> done);
  void Seal(const action::SealCheckpoint& action, Done<absl::StatusOr<CheckpointInfo>> done);
  // Answers when nobody finds it any more; its room comes later.
  void Drop(const action::DropCheckpoint& action, Done<absl::Status> done);
  // kUnavailable: the folder is not mounted, or an older copy of it is, or its disk fails.
  void List(const action::ListCheckpoints& action, Done<absl::StatusOr<FoundCheckpoints>> done);
  // The manifest of one that is listed, if all its files are there as it says.
  void Read(const CheckpointInfo& info, Done<absl::StatusOr<CheckpointManifest>> done);

  // The same, once every byte of the files was read and is as it was written. kAborted: the
  // folder is not the one that has the action's nonce. kCancelled: Stop came first.
  void Verify(const action::ReadCheckpoint& action, Done<absl::StatusOr<CheckpointManifest>> done);

  // Finishes what was asked for, but for Verify, and waits for that. What is asked for later is not
  // done.
  void Stop();

 private:
  // `work` takes the disk. Without one, `done` gets the error.
  template <typename T, typename Work>
  void Post(EventLoop& loop, Work work, Done<T> done);

  const std::shared_ptr<CheckpointDisk> disk_;
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<EventLoop> verifies_;  // takes as long as a checkpoint is large
  std::unique_ptr<EventLoop> removals_;  // frees the room of what is dropped, as long as that takes
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_CHECKPOINT_KEEPER_H_
