// Trains a job in one process without a parameter server: the same data, executor and update
// kernels, with gradients applied where they were summed. The upper bound of
// `tools/bench.sh overhead`.
//
//   local_trainer JOB_FILE LANES STEPS   prints: samples_per_second=... loss=...
//   local_trainer JOB_FILE gpu STEPS     the same on the GPU, where parameters then stay: one lane,
//                                        and a step must be one micro-batch
#include "tools/bench/local_trainer.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/config/job_file.h"
#include "common/daemon/settings.h"
#include "common/data_plan/job_steps.h"
#include "common/schedule/learning_rate.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/library.h"
#include "server/coordinator/core/resolve_model.h"
#include "server/shard/apply/init.h"
#include "tools/bench/device_local_update.h"
#include "worker/data/data_set.h"
#include "worker/executor/local_run.h"
#include "worker/host/executor_job.h"

namespace starling {
namespace {

class Batches : public BatchSource {
 public:
  explicit Batches(Loader& loader) : loader_(loader) {}
  absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) override {
    WorkRange micro = range;
    micro.first = id;
    micro.count = 1;
    STARLING_ASSIGN_OR_RETURN(BatchHandle batch,
                              loader_.Take(micro, absl::Now() + absl::Seconds(60)));
    const MicroBatch view{batch->samples(), batch->input_data(), batch->label_data()};
    MutexLock lock(&mutex_);
    taken_.push_back(std::move(batch));
    return view;
  }

 private:
  Loader& loader_;
  Mutex mutex_;
  std::vector<BatchHandle> taken_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<JobDescription> Describe(const std::string& path) {
  STARLING_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  config::JobFileOptions options;
  options.directory = ".";
  options.environment = ProcessEnvironment();
  JobDescription job;
  STARLING_ASSIGN_OR_RETURN(*job.mutable_spec(), config::ParseJobFile(text, options));
  const Inspection inspection = InspectData(job.spec());
  if (!inspection.error().empty()) return absl::InvalidArgumentError(inspection.error());
  job.set_train_samples(inspection.train_samples());
  job.set_test_samples(inspection.test_samples());
  STARLING_RETURN_IF_ERROR(coordinator::ResolveModel(inspection, *job.mutable_spec()));
  STARLING_ASSIGN_OR_RETURN(const Layout layout, MakeLayout(job.spec()));
  job.set_layout_digest(layout.digest);
  job.set_partitions(static_cast<uint32_t>(layout.partitions.size()));
  return job;
}

// `lanes`: of the CPU; 0: on the GPU.
absl::Status TrainLocally(const std::string& path, int lanes, int64_t steps) {
  constexpr int64_t kWarmUp = 10;
  STARLING_ASSIGN_OR_RETURN(const JobDescription description, Describe(path));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                            lanes > 0 ? CreateCpuDevice() : OpenCudaDevice(""));
  SpanRing spans;
  STARLING_ASSIGN_OR_RETURN(
      const std::shared_ptr<ExecutorJob> job,
      ExecutorJob::Open(nullptr, description, {.lanes = std::max(1, lanes)}, device.get(), &spans));
  const JobSpec& spec = description.spec();
  FirstValues first_values(spec.seed(), spec.model());
  for (const Slice& slice : job->layout().slices) {
    STARLING_RETURN_IF_ERROR(
        first_values.Make(slice, job->executor().live_parameters() + slice.flat_begin));
  }
  const uint64_t per_epoch = StepsInFullEpoch(spec, description.train_samples());
  STARLING_ASSIGN_OR_RETURN(const LearningRate rate,
                            LearningRate::Make(spec.optimizer().learning_rate(),
                                               JobSteps(spec, description.train_samples())));
  const auto range_of = [&](int64_t step) {
    return WorkRange{WorkPurpose::kTrain, static_cast<uint32_t>(step / per_epoch),
                     step % per_epoch * spec.batch().micro_batches(), spec.batch().micro_batches()};
  };
  STARLING_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalStep> update,
      MakeLocalStep(spec, job->layout(), device.get(), job->executor().live_parameters()));
  OpenGate gate;
  UnitResult result;
  uint64_t samples = 0;
  double loss = 0;
  absl::Time began;
  for (int64_t step = 0; step < kWarmUp + steps; ++step) {
    if (step == kWarmUp) began = absl::Now();
    constexpr int64_t kAhead = 4;
    for (int64_t next = step == 0 ? 0 : step + kAhead - 1; next < step + kAhead; ++next) {
      STARLING_RETURN_IF_ERROR(job->loader().Prefetch(range_of(next)));
    }
    const WorkRange range = range_of(step);
    update->BeginStep(step, rate.At(step));
    Batches batches(job->loader());
    Unit unit = LocalUnit(range, step, *update);
    unit.next = [&] { return range_of(step + 1); };
    STARLING_RETURN_IF_ERROR(job->executor().Train(unit, batches, gate, *update, &result));
    if (step < kWarmUp) continue;
    samples += result.ranges[0].samples;
    loss = result.ranges[0].loss_sum / result.ranges[0].samples;
  }
  std::printf("samples_per_second=%.1f loss=%.4f\n",
              samples / absl::ToDoubleSeconds(absl::Now() - began), loss);
  return absl::OkStatus();
}

}  // namespace

int LocalTrainerMain(int argc, char** argv) {
  constexpr const char* kUsage = "usage: local_trainer JOB_FILE LANES|gpu STEPS\n";
  if (argc == 2 && std::string(argv[1]) == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  int lanes = 0;
  int64_t steps = 0;
  const bool on_gpu = argc == 4 && std::string(argv[2]) == "gpu";
  if (argc != 4 || (!on_gpu && (!absl::SimpleAtoi(argv[2], &lanes) || lanes < 1)) ||
      !absl::SimpleAtoi(argv[3], &steps) || steps < 1) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const absl::Status status = TrainLocally(argv[1], lanes, steps);
  if (status.ok()) return 0;
  std::fprintf(stderr, "local_trainer: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace starling
