// Opens a job after the order to prepare it.
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

// A job is planned with the memory that is free at that time. So it is opened only after the units
// of previous jobs have stopped and while no other job is being opened. A job that was closed
// meanwhile is dropped first. While waiting, this logs every 10 s what it waits for. Used on the
// session's thread.
class JobOpening {
 public:
  using Opened = std::function<void(const JobDescription&, OpenedJob)>;

  // `session` and `runner` outlive this. `session` must have stopped when this is destroyed; the
  // runner may still call back. `opened` is called on the session's thread.
  JobOpening(EventLoop* session, JobRunner* runner, Opened opened);

  // Replaces the job that was to be opened before.
  void Open(JobDescription description);
  // `opened` is not called any more.
  void Close();

 private:
  void Next();
  void OnStopped();
  void OnOpened(OpenedJob opened);
  void WaitFor(absl::string_view what);  // empty: nothing
  void SayLater();
  // Whether a job, wanted or not, is being opened.
  bool busy() const { return !waits_for_.empty(); }

  EventLoop* const session_;
  JobRunner* const runner_;
  const Opened opened_;

  std::optional<JobDescription> wanted_;
  std::string waits_for_;
  absl::Time since_;
  EventLoop::TimerId timer_ = 0;  // for the next log line
  uint64_t number_ = 0;           // number of the wanted job
  uint64_t under_way_ = 0;        // number of the job that is being opened
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_JOB_OPENING_H_
