// The way of a job from the order to prepare it until it is open.
#ifndef STARLING_WORKER_HOST_JOB_OPENING_H_
#define STARLING_WORKER_HOST_JOB_OPENING_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "common/event_loop/event_loop.h"
#include "proto/coordinator.pb.h"
#include "worker/host/served_job.h"
#include "worker/host/unit_runner.h"

namespace starling {

// A job is planned with the memory that is free then. So it is opened when the units of the jobs
// before it have stopped, and when no other job is being opened; one that was closed meanwhile is
// dropped first. Used by the session's thread.
class JobOpening {
 public:
  using Opened = std::function<void(const JobDescription&, OpenedJob)>;

  // All outlive this, and `session` runs nothing any more when this ends. `opened` is called on the
  // session's thread.
  JobOpening(EventLoop* session, JobOpener* opener, UnitRunner* runner, Opened opened);

  // Takes the place of what was to be opened before.
  void Open(JobDescription description);
  // `opened` is not called for it any more.
  void Close();

 private:
  void Next();
  void OnStopped();
  void OnOpened(OpenedJob opened);

  EventLoop* const session_;
  JobOpener* const opener_;
  UnitRunner* const runner_;
  const Opened opened_;

  std::optional<JobDescription> wanted_;
  bool busy_ = false;       // with what is wanted, or with what was
  uint64_t number_ = 0;     // of what is wanted
  uint64_t under_way_ = 0;  // of what the opener is at
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_JOB_OPENING_H_
