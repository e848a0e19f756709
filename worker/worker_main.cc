// starling-worker: computes gradients for one job at a time. It keeps nothing that matters.
#include "worker/worker_main.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/config/bytes.h"
#include "common/config/duration.h"
#include "common/daemon/admin_port.h"
#include "common/daemon/daemon.h"
#include "common/daemon/daemon_service.h"
#include "common/daemon/malloc.h"
#include "common/daemon/node.h"
#include "common/event_loop/threaded_loop.h"
#include "common/protocol/limits.h"
#include "common/transport/transport.h"
#include "common/version/version.h"
#include "kernels/cpu/openmp.h"
#include "worker/host/devices.h"
#include "worker/host/executor_runner.h"
#include "worker/host/step_recorder.h"
#include "worker/host/worker_host.h"

namespace starling {
namespace {

constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);
constexpr absl::Duration kTeardownDeadline = absl::Milliseconds(1500);

struct WorkerFlags {
  DaemonFlags daemon;
  std::string lanes;
  std::string memory_bytes;
  DeviceOptions device;
  std::string cuda_graphs = "on";
  std::string shared_memory = "auto";
  std::string coordinator_timeout = "60s";
  std::string drain_timeout = "20s";
  std::string record_steps;
  std::string record_limit = "200";
  std::string inject_push_delay;
  std::string inject_data_wait;
  std::string inject_non_finite;
  std::string replay_compute;
};

absl::StatusOr<int64_t> Bytes(const std::string& flag, const std::string& text) {
  const absl::StatusOr<int64_t> bytes = config::ParseBytes(text);
  if (bytes.ok()) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", bytes.status().message()));
}

// That a worker for CPUs has no GPU is as it should be. One that was meant to have one is warned
// of.
void SayWhereItComputes(const DeviceOptions& asked, const WorkerDevices& devices) {
  if (devices.has_gpu()) return;
  const NodeReply node = DescribeNode();
  if (asked.cuda_library.empty() && node.gpus().empty() && node.driver().empty()) {
    spdlog::info("computes on the CPU, because {}", devices.why_no_gpu());
  } else {
    spdlog::warn("NO GPU: computes on the CPU, because {}", devices.why_no_gpu());
  }
}

absl::StatusOr<int64_t> PositiveInteger(const std::string& flag, const std::string& text,
                                        int64_t most) {
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= 1 && value <= most) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": expected 1 to ", most, ", got \"", text, "\""));
}

// A time that a test injects; unset: none.
absl::Status ReadInjected(const std::string& flag, const std::string& text, const std::string& what,
                          absl::Duration* time) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<double> seconds = config::ParseDuration(text);
  if (!seconds.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", seconds.status().message()));
  }
  *time = absl::Seconds(*seconds);
  spdlog::warn("{}: {} {}", flag, what, absl::FormatDuration(*time));
  return absl::OkStatus();
}

absl::Status ReadInjections(const WorkerFlags& flags, WorkerHostOptions* host,
                            ExecutorJobOptions* job) {
  STARLING_RETURN_IF_ERROR(ReadInjected("--inject-push-delay", flags.inject_push_delay,
                                        "each push is held back for", &host->push_delay));
  STARLING_RETURN_IF_ERROR(ReadInjected("--inject-data-wait", flags.inject_data_wait,
                                        "each micro-batch's data come later by", &job->data_wait));
  if (!flags.inject_non_finite.empty()) {
    STARLING_ASSIGN_OR_RETURN(
        job->non_finite_steps,
        PositiveInteger("--inject-non-finite", flags.inject_non_finite, 1'000'000));
    spdlog::warn("--inject-non-finite: the gradients of every {}th step are not finite",
                 job->non_finite_steps);
  }
  if (flags.replay_compute.empty()) return absl::OkStatus();
  const auto replay = ParseReplayedCompute(flags.replay_compute);
  if (!replay.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--replay-compute: ", replay.status().message()));
  }
  job->replay = *replay;
  spdlog::warn(
      "--replay-compute: nothing is computed or learned; a micro-batch waits {} for forward and {} "
      "for backward",
      absl::FormatDuration(replay->forward), absl::FormatDuration(replay->backward));
  return absl::OkStatus();
}

absl::StatusOr<int> Serve(const WorkerFlags& flags, DaemonExit* exit_request) {
  const Identity self{PeerRole::kWorker, flags.daemon.name};
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<admin::Admin> admin,
                            StartAdminPort(flags.daemon, self));
  WorkerHostOptions options;
  options.session.name = flags.daemon.name;
  options.coordinator = flags.daemon.coordinator;
  ExecutorJobOptions job;
  job.lanes = std::max(1u, std::thread::hardware_concurrency());
  if (!flags.lanes.empty()) {
    STARLING_ASSIGN_OR_RETURN(job.lanes, PositiveInteger("--lanes", flags.lanes, 1024));
  }
  if (!flags.memory_bytes.empty()) {
    STARLING_ASSIGN_OR_RETURN(job.memory_bytes, Bytes("--memory-bytes", flags.memory_bytes));
  }
  if (flags.cuda_graphs != "on" && flags.cuda_graphs != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("--cuda-graphs: expected on or off, got \"", flags.cuda_graphs, "\""));
  }
  job.capture = flags.cuda_graphs == "on";
  const absl::StatusOr<double> timeout = config::ParseDuration(flags.coordinator_timeout);
  if (!timeout.ok()) return Prefixed("--coordinator-timeout", timeout.status());
  options.coordinator_timeout = absl::Seconds(*timeout);
  STARLING_ASSIGN_OR_RETURN(options.session.drain_deadline, ParseDrainTimeout(flags.drain_timeout));
  STARLING_ASSIGN_OR_RETURN(const bool shared_memory, ParseSharedMemory(flags.shared_memory));
  STARLING_RETURN_IF_ERROR(ReadInjections(flags, &options, &job));
  std::unique_ptr<StepRecorder> recorder;
  if (!flags.record_steps.empty()) {
    STARLING_ASSIGN_OR_RETURN(const int64_t limit,
                              PositiveInteger("--record-limit", flags.record_limit, 1'000'000));
    recorder = std::make_unique<StepRecorder>(flags.record_steps, limit);
    job.recorder = recorder.get();
  }

  STARLING_ASSIGN_OR_RETURN(const WorkerDevices devices, WorkerDevices::Open(flags.device));
  SayWhereItComputes(flags.device, devices);
  SpanRing spans;
  const auto addresses = std::make_shared<DaemonAddresses>();
  const std::shared_ptr<grpc::Service> daemon =
      MakeDaemonService({.self = self,
                         .instruction_set = devices.cpu().instruction_set(),
                         .admin_address = admin->address(),
                         .clock_offset = flags.daemon.clock_offset,
                         .addresses = addresses,
                         .security = flags.daemon.security},
                        &spans);
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<RpcServer> server,
                            StartRpcServer({.listen = flags.daemon.listen,
                                            .security = flags.daemon.security,
                                            .self = self,
                                            .services = {daemon.get()},
                                            .accept = {}}));
  STARLING_ASSIGN_OR_RETURN(const std::string address,
                            AdvertisedAddress(flags.daemon.advertise_address, server->address()));
  STARLING_RETURN_IF_ERROR(WritePortFile(flags.daemon.port_file, server->port()));
  spdlog::info("version {} is reached at {}, computes on {} with {} lanes",
               std::string(ReleaseVersion()), address, devices.Name(), job.lanes);

  addresses->Set({server->address(), address, flags.daemon.coordinator});
  options.registration = MakeRegisterRequest(self, address, flags.daemon.security->insecure());
  options.registration.set_gpu(devices.has_gpu());
  options.registration.set_device(devices.Description().substr(0, limits::kDeviceBytesMax));
  absl::Status ended;  // written before the request to exit is made
  WorkerHostParts parts;
  parts.session = ThreadedLoop::Make("session");
  parts.coordinator = MakeCoordinatorClient(options.coordinator, self, flags.daemon.security);
  parts.streams = MakeStreamClient(self, flags.daemon.security, shared_memory);
  parts.runner = [&](UnitListener* listener, Progress* progress) {
    return std::make_unique<ExecutorRunner>(job, &devices, &spans, listener, progress);
  };
  WorkerHost host(options, std::move(parts), &spans, [&](const absl::Status& status) {
    ended = status;
    exit_request->Request(status.ok() ? kExitOk : kExitError);
  });
  host.ShowOn(admin.get());
  host.Start();
  DaemonExit::Reason reason = exit_request->Wait();
  if (reason.signal != 0) {
    spdlog::info("draining: finishing the unit under way; a second signal ends at once");
    host.Drain();
    const absl::Duration patience = options.session.drain_deadline;
    const auto drained = exit_request->WaitUntil(MonotonicNow() + patience);
    if (!drained.has_value())
      spdlog::warn("did not drain within {} (--drain-timeout)", absl::FormatDuration(patience));
    if (drained.has_value() && drained->signal == 0) reason = *drained;
  }
  admin->BeginShutdown();
  // Reading a data file cannot be interrupted, and nothing of a worker must be kept.
  const ExitDeadline deadline(kTeardownDeadline, reason.exit_status, "data that is being opened");
  server->Shutdown(kShutdownGrace);
  if (reason.signal == 0) STARLING_RETURN_IF_ERROR(ended);
  return reason.exit_status;
}

}  // namespace

int WorkerMain(int argc, char** argv) {
  SleepWhenIdle(argv);
  TuneMalloc();
  DaemonExit exit_request;
  WorkerFlags flags;
  const std::optional<int> ends = ParseDaemonFlags(
      argc, argv, PeerRole::kWorker,
      {{"--lanes", "Micro-batches computed at once (default: one per core; on a GPU at most two)",
        &flags.lanes},
       {"--memory-bytes",
        "What a job's parameters, gradients and activations may take here, as 8GiB (default: nine "
        "tenths of what is available); a batch that needs more is refused",
        &flags.memory_bytes},
       {"--device",
        "auto: a GPU where there is one, else the CPU; gpu: does not start without one; cpu",
        &flags.device.device},
       {"--cuda-library",
        "The shared object that computes on a GPU (default: libstarling_cuda.so in this program's "
        "folder, else as the system's loader finds it)",
        &flags.device.cuda_library},
       {"--cuda-graphs",
        "on: on a GPU, a step's kernels are launched together, as CUDA graphs; off: each by "
        "itself, "
        "to find a fault",
        &flags.cuda_graphs},
       {"--shared-memory", kSharedMemoryHelp, &flags.shared_memory},
       {"--coordinator-timeout", "How long to look for the coordinator at the start",
        &flags.coordinator_timeout},
       {"--drain-timeout",
        "After SIGTERM: how long the worker finishes what it computes and leaves, at most, as 20s; "
        "in half of it the unit under way is done, or abandoned",
        &flags.drain_timeout},
       {"--record-steps", "Folder in which steps are recorded for tests/judge/trainer.py",
        &flags.record_steps},
       {"--record-limit", "How many steps are recorded", &flags.record_limit},
       {"--inject-push-delay", "hold each push back this long, as 0.02s; updates are stale then",
        &flags.inject_push_delay, false, true},
       {"--inject-data-wait", "hand each micro-batch's data over this much later, as 0.02s",
        &flags.inject_data_wait, false, true},
       {"--inject-non-finite",
        "spoil the gradients of every so many-th step, as broken memory would",
        &flags.inject_non_finite, false, true},
       {"--replay-compute",
        "for benches, too: wait this long for forward and backward of each micro-batch, as "
        "0.02s,0.04s, instead of computing; pushes are of full size, and all gradients 0",
        &flags.replay_compute, false, true}},
      &flags.daemon);
  if (ends.has_value()) return *ends;
  return RunDaemon(PeerRole::kWorker, flags.daemon, [&] { return Serve(flags, &exit_request); });
}

}  // namespace starling
