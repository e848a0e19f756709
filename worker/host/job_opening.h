// The way of a job from the order to prepare it until it is open.
#ifndef STARLING_WORKER_HOST_JOB_OPENING_H_
#define STARLING_WORKER_HOST_JOB_OPENING_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/event_loop/event_loop.h"
#include "proto/coordinator.pb.h"
#include "worker/host/job_runner.h"

namespace starling {

// A job is planned with the memory that is free then. So it is opened when the units of the jobs
// before it have stopped, and when no other job is being opened; one that was closed meanwhile is
// dropped first. While it waits, it logs every 10 s what it waits for. Used by the session's
// thread.
class JobOpening {
 public:
  using Opened = std::function<void(const JobDescription&, OpenedJob)>;

  // `session` and `runner` outlive this. `session` runs nothing any more when this ends; the runner
  // may still call back. `opened` is called on the session's thread.
  JobOpening(EventLoop* session, JobRunner* runner, Opened opened);

  // Takes the place of what was to be opened before.
  void Open(JobDescription description);
  // `opened` is not called for it any more.
  void Close();

 private:
  void Next();
  void OnStopped();
  void OnOpened(OpenedJob opened);
  void WaitFor(absl::string_view what);  // empty: for nothing
  void SayLater();
  // With what is wanted, or with what was.
  bool busy() const { return !waits_for_.empty(); }

  EventLoop* const session_;
  JobRunner* const runner_;
  const Opened opened_;

  std::optional<JobDescription> wanted_;
  std::string waits_for_;
  absl::Time since_;
  EventLoop::TimerId timer_ = 0;  // the next line in the log
  uint64_t number_ = 0;           // of what is wanted
  uint64_t under_way_ = 0;        // of what the opener is at
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_JOB_OPENING_H_
