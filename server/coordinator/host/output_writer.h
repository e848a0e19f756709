// Writes the files that spec.output asks for, from the shards' values as they arrive, on its own
// thread. A slow disk or shard delays no call.
#ifndef STARLING_SERVER_COORDINATOR_HOST_OUTPUT_WRITER_H_
#define STARLING_SERVER_COORDINATOR_HOST_OUTPUT_WRITER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/event_loop/threaded_loop.h"
#include "common/placement/layout.h"
#include "common/sync/mutex.h"
#include "common/values/slice_reader.h"
#include "proto/coordinator.pb.h"

namespace starling::coordinator {

// ReadSlices over streams with the coordinator's identity. Returns kCancelled soon after `stop`
// becomes true.
using ReadValues = std::function<absl::Status(
    const JobReply& job, const Layout& layout, const ReadPoint& point, absl::Time deadline,
    const SliceConsumer& consume, const std::atomic<bool>& stop)>;

// Thread-safe. Only Stop blocks.
class OutputWriter {
 public:
  using Done = std::function<void(absl::StatusOr<uint64_t> bytes)>;

  // Writes only beneath `root`, and follows no links there. Empty: writes nothing.
  OutputWriter(std::string root, ReadValues read,
               const MakeEventLoop& make_loop = ThreadedLoop::Make);
  ~OutputWriter();  // Stop()

  // Writes the file that job.spec.output names, as a temporary file beside it that is synced and
  // renamed. Removes the temporary file of an earlier attempt. `done` runs once, on the writer's
  // thread, with the file's size or the error, or never if the writer is stopped first.
  void Write(const JobReply& job, Done done);

  // Abandons the file that is being written and those that wait.
  void Stop();

 private:
  absl::StatusOr<uint64_t> Attempt(const JobReply& job, absl::Time deadline) const;
  absl::StatusOr<uint64_t> AttemptUntilShardsAreThere(const JobReply& job);

  const std::string root_;
  const ReadValues read_;
  std::atomic<bool> stop_ = false;
  Mutex mutex_;
  CondVar stops_;
  const std::unique_ptr<EventLoop> loop_;  // last: its thread ends first
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_OUTPUT_WRITER_H_
