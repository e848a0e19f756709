// Writes TensorBoard event files for jobs that ask for them, on its own thread. A slow or full disk
// delays no call; only the files become incomplete.
#ifndef STARLING_SERVER_COORDINATOR_HOST_CURVE_WRITER_H_
#define STARLING_SERVER_COORDINATOR_HOST_CURVE_WRITER_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/owned_fd.h"
#include "common/event_loop/threaded_loop.h"
#include "common/tensorboard/event_file.h"
#include "server/coordinator/core/coordinator.h"

namespace starling::coordinator {

// Thread-safe. Only Stop blocks.
class CurveWriter {
 public:
  static constexpr int kWaitingMax = 10'000;  // news that wait for the disk; more are dropped

  // Writes only beneath `root`, and follows no links there (BeneathRoot). Empty: writes nothing.
  explicit CurveWriter(const std::string& root,
                       const MakeEventLoop& make_loop = ThreadedLoop::Make);
  ~CurveWriter();  // Stop()

  // Checks whether files can be written to `folder`, which is created if it is missing and allowed.
  // `done` runs once, on the writer's thread, or never if the writer is stopped first.
  void Check(const std::string& folder, std::function<void(absl::Status)> done);

  // Appends to the job's file, which is created for the first news, and anew for another session.
  void Write(const CurveNews& news);

  // Writes everything that was passed before, no matter how long that takes.
  void Stop();

 private:
  struct Job {
    std::unique_ptr<tensorboard::EventFile> file;
    uint64_t session_step = 0;  // of the file
    uint32_t era = 0;           // likewise
    bool failing = false;       // logged
  };

  void Carry(const CurveNews& news);
  absl::Status Append(const CurveNews& news, Job& job) const;
  absl::StatusOr<OwnedFd> OpenFolder(const std::string& folder) const;

  const std::string root_;
  std::atomic<int> waiting_ = 0;
  std::atomic<bool> behind_ = false;  // logged

  std::map<uint64_t, Job> jobs_;  // the loop's thread only

  const std::unique_ptr<EventLoop> loop_;  // last: its thread ends first
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_CURVE_WRITER_H_
