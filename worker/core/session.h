// Makes a worker's decisions without I/O: registration, the job that it serves, membership, leases
// or BSP subtrees, pulls, pushes, closes, retries, draining. docs/protocol.md is normative.
//
//   Session session({.name = "worker-0"});
//   session.Step(event::Tick{}, now, actions);
//
// What the host can rely on:
// * The first Tick registers. After Exit nothing follows.
// * Frames are sent to a shard only between its StreamUp and its StreamDown or Disconnect. After
//   the next StreamUp, all unanswered requests are sent again, with the same bytes and in the same
//   order.
// * InstallValue never comes for a slice of which a wanted unit may still read an older version.
//   For an abandoned unit, the host keeps the value until the unit has stopped, and drops it at
//   ForgetValues and CloseJob.
// * A unit's CLOSE to a partition follows, on the same stream, all its pushes to that partition.
#ifndef STARLING_WORKER_CORE_SESSION_H_
#define STARLING_WORKER_CORE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/limits.h"
#include "worker/core/events.h"

namespace starling::session {

struct SessionOptions {
  std::string name;  // for messages

  // Waits before a retry, doubled up to the maximum.
  absl::Duration retry_least = absl::Milliseconds(50);
  absl::Duration retry_most = absl::Seconds(2);
  // The minimum time between two reports, unless the coordinator has already answered the last one.
  absl::Duration report_spacing = absl::Milliseconds(10);
  // If finishing a job after new orders takes longer than this, the job is dropped.
  absl::Duration leave_deadline = absl::Seconds(10);
  // For a drain: in half of it the job is finished, or dropped.
  absl::Duration drain_deadline = absl::Seconds(20);
  // A drain waits this long at most for a shard without a stream, and for a silent coordinator or
  // silent shards. For daemons that answer, it waits for half of drain_deadline.
  absl::Duration silence_deadline = absl::Seconds(2);
  // Ranges read ahead.
  int prefetch_ranges = 8;
  // Metrics of finished units: how many fit into one report, and how many are kept for a
  // coordinator to accept.
  size_t metrics_per_report = limits::kMetricsPerReportMax;
  size_t metrics_waiting = limits::kMetricsWaitingMax;
};

// What a worker is doing, to account for its time.
enum class Activity : uint8_t {
  kIdle,       // there is no unit to compute, or no job
  kComputing,  // a training unit
  kEvaluating,
  kUnacked,  // there is a unit to compute, but pushes of previous units are not acknowledged
};

// How many open requests of a job with `slices` slices need no allocation after JobPrepared, here
// or in the host: a push and a pull of each slice for two units, and a unit's other requests.
// Shards that are late for a moment do not add requests.
constexpr size_t RequestsAtFirst(size_t slices) { return 4 * slices + 64; }

RunId RunOf(const Run& run);

class Core;  // worker/core/core.h

// Not thread-safe: one caller at a time. Owns no threads, reads no clock.
class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Never blocks. Appends actions, to be carried out in order.
  void Step(const Event& event, absl::Time now, Actions& actions);

  // As of the last Step.
  Activity activity() const;

  // One line for logs: "serving job 3.0, clock 17, computing unit 41, 6 requests open".
  std::string ToString() const;

 private:
  std::unique_ptr<Core> core_;
};

}  // namespace starling::session

#endif  // STARLING_WORKER_CORE_SESSION_H_
