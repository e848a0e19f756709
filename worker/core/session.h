// A worker's life, decided without I/O: registration, the job that it serves, membership, leases or
// BSP subtrees, pulls, pushes, closes, retries, draining. docs/protocol.md is the normative text.
//
//   Session session({.name = "worker-0"});
//   session.Step(event::Tick{}, now, actions);
//
// Rules that the adaptor can rely on:
// * The first Tick registers. After Exit nothing follows.
// * A shard is sent to only between its StreamUp and its StreamDown or Disconnect; after another
//   StreamUp everything that was not answered is sent again, the same bytes, in the same order.
// * InstallValue never comes for a slice that a unit may still read an older version of, but for a
//   unit that was abandoned: the adaptor keeps the value until that one has stopped, and drops it
//   at ForgetValues and CloseJob.
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

  // Waits before something is tried again, doubled up to the greatest.
  absl::Duration retry_least = absl::Milliseconds(50);
  absl::Duration retry_most = absl::Seconds(2);
  // No two reports closer than this, unless the coordinator answers sooner and has the last one.
  absl::Duration report_spacing = absl::Milliseconds(10);
  // A job that was taken away, or a drain, is dropped when finishing it takes longer.
  absl::Duration leave_deadline = absl::Seconds(10);
  // A drain does not wait longer than this for a shard without a stream, nor for a coordinator or
  // for shards that say nothing. Who answers is waited for as long as leave_deadline.
  absl::Duration silence_deadline = absl::Seconds(2);
  // Ranges staged ahead.
  int prefetch_ranges = 8;
  // Units that were finished: of them in one report, and kept until a coordinator takes them.
  size_t metrics_per_report = limits::kMetricsPerReportMax;
  size_t metrics_waiting = limits::kMetricsWaitingMax;
};

// What a worker is doing, for telling where its time goes.
enum class Activity : uint8_t {
  kIdle,       // there is no unit to compute, or no job
  kComputing,  // a training unit
  kEvaluating,
  kUnacked,  // there is a unit to compute, but pushes of those before are not acknowledged
};

// From JobPrepared on, a job of so many slices may have this many requests open before anything
// that keeps them, here or in the adaptor, allocates: a push and a pull of each slice for two
// units, and what else a unit asks. Shards that are late for a moment make no more of them.
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

  // Never blocks. Appends the actions, to be carried out in order.
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
