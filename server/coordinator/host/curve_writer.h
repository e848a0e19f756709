// TensorBoard's event files of the jobs that ask for them, on a thread of its own: a disk that is
// slow or full delays nobody, and what cannot be written is lost to the files, but not to the
// coordinator's curves.
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

// Thread-safe. No call blocks but Stop.
class CurveWriter {
 public:
  static constexpr int kWaitingMax = 10'000;  // news that wait for the disk; more is left out

  // Writes to no folder that does not lie beneath `root`, and follows no link beneath it
  // (BeneathRoot); empty: to none at all.
  explicit CurveWriter(const std::string& root,
                       const MakeEventLoop& make_loop = ThreadedLoop::Make);
  ~CurveWriter();  // Stop()

  // Whether files can be written to `folder`, which is made where it is not there but may be.
  // `done` runs once, on the writer's thread; never where the writer was stopped before.
  void Check(const std::string& folder, std::function<void(absl::Status)> done);

  // Into the job's file, which is begun with its first news.
  void Write(const CurveNews& news);

  // What was given before is written, however long that takes.
  void Stop();

 private:
  struct Job {
    std::unique_ptr<tensorboard::EventFile> file;
    bool failing = false;  // said already
  };

  void Carry(const CurveNews& news);
  absl::Status Append(const CurveNews& news, Job& job) const;
  absl::StatusOr<OwnedFd> OpenFolder(const std::string& folder) const;

  const std::string root_;
  std::atomic<int> waiting_ = 0;
  std::atomic<bool> behind_ = false;  // said already

  std::map<uint64_t, Job> jobs_;  // the loop's thread only

  const std::unique_ptr<EventLoop> loop_;  // last: its thread ends first
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_CURVE_WRITER_H_
