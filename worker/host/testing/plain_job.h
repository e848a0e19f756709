// A job that has no data and uses no device. For tests of what opens and serves jobs.
#ifndef STARLING_WORKER_HOST_TESTING_PLAIN_JOB_H_
#define STARLING_WORKER_HOST_TESTING_PLAIN_JOB_H_

#include <string>
#include <vector>

#include "worker/host/served_job.h"

namespace starling {

class PlainJob : public ServedJob {
 public:
  using ServedJob::ServedJob;
  absl::Status Prefetch(const WorkRange&) override { return absl::OkStatus(); }
  void ClearPrefetched() override {}
  uint64_t data_digest() const override { return 0; }
  MemoryUse memory() const override { return {}; }
  ExecutorTimes times() const override { return {}; }
  std::vector<std::string> slower_operators() const override { return {}; }
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_TESTING_PLAIN_JOB_H_
