#include "worker/host/job_opener.h"

#include <string>
#include <utility>

#include "common/base/memory.h"
#include "spdlog/spdlog.h"
#include "worker/data/data_set.h"

namespace starling {

void BackgroundJobOpener::Open(const JobDescription& description,
                               std::function<void(OpenedJob)> done) {
  loop_.Post([this, description, done = std::move(done)] { done(OpenNow(description)); });
}

OpenedJob BackgroundJobOpener::OpenNow(const JobDescription& description) const {
  ReturnFreedMemory();
  ForgetPeakResidentBytes();
  const absl::StatusOr<Device*> device = devices_->For(description.spec().device());
  if (!device.ok()) return {device.status()};
  const std::string shared = SharedMemoryNotice(**device);
  if (!shared.empty()) spdlog::warn("{}", shared);
  auto job = ExecutorJob::Open(description, options_, *device, spans_);
  if (!job.ok()) return {job.status(), IsLost(**device)};
  return {*std::move(job)};
}

void BackgroundJobOpener::Inspect(const JobSpec& spec, std::function<void(Inspection)> done) {
  loop_.Post([spec, done = std::move(done)] { done(InspectData(spec)); });
}

}  // namespace starling
