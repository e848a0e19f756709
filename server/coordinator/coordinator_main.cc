// starling-coordinator: jobs, rosters, leases, results; see server/coordinator/core.
#include "server/coordinator/coordinator_main.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/beneath.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/checkpoint/disk.h"
#include "common/config/duration.h"
#include "common/daemon/admin_port.h"
#include "common/daemon/daemon.h"
#include "common/daemon/daemon_service.h"
#include "common/daemon/malloc.h"
#include "common/protocol/limits.h"
#include "common/transport/transport.h"
#include "common/version/version.h"
#include "server/coordinator/admin/cluster_pages.h"
#include "server/coordinator/host/coordinator_host.h"
#include "server/coordinator/host/coordinator_service.h"
#include "server/coordinator/host/shard_asker.h"
#include "server/coordinator/store/sqlite_store.h"

namespace starling::coordinator {
namespace {

// Not 0.
uint64_t DrawNumber() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = (static_cast<uint64_t>(random()) << 32) | random();
  return id;
}

constexpr absl::Duration kShutdownGrace = absl::Seconds(2);
// Less than terminationGracePeriodSeconds of deploy/kubernetes/base/coordinator.yaml.
constexpr absl::Duration kShutdownDeadline = absl::Seconds(10);

absl::StatusOr<std::unique_ptr<StateStore>> OpenState(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(
        absl::StrCat("cannot make the state folder ", folder, ": ", std::strerror(errno)));
  }
  return SqliteStore::Open(absl::StrCat(folder, "/coordinator.db"));
}

struct CoordinatorFlags {
  DaemonFlags daemon;
  std::string state;
  std::string tensorboard_root;
  std::string output_root;
  std::string checkpoint_root;
  std::string checkpoint_every;
  std::string checkpoint_keep;
  std::string keep_ended_jobs;
  std::string keep_ended_for;
};

// Retention, into the options. An empty text leaves them as they are.
absl::Status TakeRetention(const CoordinatorFlags& flags, CoordinatorOptions* options) {
  const std::string& jobs = flags.keep_ended_jobs;
  uint64_t count = 0;
  if (jobs == "all") {
    options->keep_ended_jobs = std::numeric_limits<size_t>::max();
  } else if (absl::SimpleAtoi(jobs, &count)) {
    if (count >= limits::kJobsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--keep-ended-jobs: a coordinator has at most ", limits::kJobsMax,
                       " jobs, including live ones; expected fewer, or \"all\", got ", count));
    }
    options->keep_ended_jobs = count;
  } else if (!jobs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--keep-ended-jobs: expected a number of jobs, or \"all\", got \"", jobs, "\""));
  }
  if (flags.keep_ended_for.empty()) return absl::OkStatus();
  const auto seconds = config::ParseDuration(flags.keep_ended_for);
  if (!seconds.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--keep-ended-for: ", seconds.status().message()));
  }
  options->keep_ended_for = absl::Seconds(*seconds);
  return absl::OkStatus();
}

// The checkpoints of jobs whose file does not say when to take any, into the options.
absl::Status TakeDefaultCheckpoint(const CoordinatorFlags& flags, CoordinatorOptions* options) {
  constexpr uint32_t kKeepMax = 1000;
  uint32_t keep = 2;
  if (!flags.checkpoint_keep.empty() &&
      (!absl::SimpleAtoi(flags.checkpoint_keep, &keep) || keep < 1 || keep > kKeepMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--checkpoint-keep: expected a number from 1 to ", kKeepMax, ", got \"",
                     flags.checkpoint_keep, "\""));
  }
  if (flags.checkpoint_every.empty()) {
    if (flags.checkpoint_keep.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--checkpoint-keep: expected --checkpoint-every beside it");
  }
  if (flags.checkpoint_root.empty())
    return absl::InvalidArgumentError("--checkpoint-every: expected --checkpoint-root beside it");
  const auto seconds = config::ParseDuration(flags.checkpoint_every);
  if (!seconds.ok() || *seconds < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--checkpoint-every: expected a duration of at least 1s (90s, 10m), got \"",
                     flags.checkpoint_every, "\""));
  }
  Checkpoint& rule = options->default_checkpoint.emplace();
  rule.set_every_seconds(*seconds);
  rule.set_keep(keep);
  return absl::OkStatus();
}

absl::Status CheckRoot(absl::string_view flag, const std::string& root) {
  if (FindNotUtf8(root) != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": expected a path in UTF-8"));
  }
  if (root.empty() || root.front() == '/') return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": expected an absolute path, got \"", root, "\""));
}

absl::StatusOr<int> Serve(const CoordinatorFlags& coordinator_flags, DaemonExit* exit_request) {
  const DaemonFlags& flags = coordinator_flags.daemon;
  const std::string& state = coordinator_flags.state;
  STARLING_RETURN_IF_ERROR(CheckRoot("--tensorboard-root", coordinator_flags.tensorboard_root));
  STARLING_RETURN_IF_ERROR(CheckRoot("--output-root", coordinator_flags.output_root));
  STARLING_RETURN_IF_ERROR(CheckRoot("--checkpoint-root", coordinator_flags.checkpoint_root));
  if (const std::string& root = coordinator_flags.output_root; !root.empty()) {
    if (const auto opened = BeneathRoot::Open(root); !opened.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--output-root: ", opened.status().message()));
    }
  }
  std::shared_ptr<CheckpointDisk> checkpoints;
  if (const std::string& root = coordinator_flags.checkpoint_root; !root.empty()) {
    auto opened = OpenCheckpointDisk(root);
    if (!opened.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--checkpoint-root: ", opened.status().message()));
    }
    checkpoints = *std::move(opened);
  }
  const Identity self{PeerRole::kCoordinator, flags.name};
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<admin::Admin> admin, StartAdminPort(flags, self));
  STARLING_ASSIGN_OR_RETURN(std::unique_ptr<StateStore> store, OpenState(state));
  CoordinatorOptions options;
  options.insecure = flags.security->insecure();
  options.tensorboard_root = coordinator_flags.tensorboard_root;
  options.new_cluster = DrawNumber();
  options.checkpoint_root = coordinator_flags.checkpoint_root;
  options.checkpoint_nonce = DrawNumber();
  STARLING_RETURN_IF_ERROR(TakeRetention(coordinator_flags, &options));
  STARLING_RETURN_IF_ERROR(TakeDefaultCheckpoint(coordinator_flags, &options));
  options.output_root = coordinator_flags.output_root;
  const ReadValues read = [self, security = flags.security](
                              const JobReply& job, const Layout& layout, const ReadPoint& point,
                              absl::Time deadline, const SliceConsumer& consume,
                              const std::atomic<bool>& stop) {
    const std::unique_ptr<StreamClient> streams = MakeStreamClient(self, security);
    return ReadSlices(*streams, job, layout, point, deadline, consume, &stop);
  };
  STARLING_ASSIGN_OR_RETURN(
      const std::unique_ptr<CoordinatorHost> host,
      CoordinatorHost::Start(options, {.store = std::move(store),
                                       .on_fatal =
                                           [exit_request](const absl::Status& status) {
                                             spdlog::critical("cannot store state, ending: {}",
                                                              status.ToString());
                                             exit_request->Request(kExitError);
                                           },
                                       .read = read,
                                       .checkpoints = checkpoints,
                                       .asker = MakeShardAsker(self, flags.security)}));

  const auto addresses = std::make_shared<DaemonAddresses>();
  const std::shared_ptr<grpc::Service> daemon =
      MakeDaemonService({.self = self,
                         .instruction_set = "",
                         .admin_address = admin->address(),
                         .clock_offset = flags.clock_offset,
                         .addresses = addresses,
                         .security = flags.security},
                        nullptr);
  const std::shared_ptr<grpc::Service> service = MakeCoordinatorService(host.get());
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<RpcServer> server,
                            StartRpcServer({.listen = flags.listen,
                                            .security = flags.security,
                                            .self = self,
                                            .services = {daemon.get(), service.get()},
                                            .accept = {}}));
  STARLING_ASSIGN_OR_RETURN(const std::string advertised,
                            AdvertisedAddress(flags.advertise_address, server->address()));
  addresses->Set({server->address(), advertised, ""});
  STARLING_RETURN_IF_ERROR(WritePortFile(flags.port_file, server->port()));
  spdlog::info("version {} listens on {}, is reached at {}, state in {}, generation {}",
               std::string(ReleaseVersion()), server->address(), advertised, state,
               host->generation());
  ShowCluster(host.get(), admin.get());

  const int exit_status = exit_request->Wait().exit_status;
  spdlog::info("shutting down");
  // Writing to a disk that hangs cannot be interrupted. What was answered is durable.
  ExitDeadline deadline(kShutdownDeadline, kExitError, "the state to be stored");
  admin->BeginShutdown();
  host->BeginShutdown();
  deadline.WaitsFor("calls to end");
  server->Shutdown(kShutdownGrace);
  deadline.WaitsFor("event files, the file of spec.output and checkpoints to be written");
  host->Stop();
  deadline.WaitsFor("the state to be closed");
  return exit_status;
}

}  // namespace

int CoordinatorMain(int argc, char** argv) {
  TuneMalloc();
  DaemonExit exit_request;
  CoordinatorFlags coordinator_flags;
  DaemonFlags& flags = coordinator_flags.daemon;
  flags.listen = "127.0.0.1:7070";
  const std::optional<int> ends = ParseDaemonFlags(
      argc, argv, PeerRole::kCoordinator,
      {{"--state", "Folder of the durable state; created if it does not exist",
        &coordinator_flags.state, true},
       {"--tensorboard-root",
        "Folder beneath which this process, as its own user, writes TensorBoard event files for "
        "jobs that ask for them; without it, jobs may not ask",
        &coordinator_flags.tensorboard_root},
       {"--output-root",
        "Folder beneath which this process, as its own user, writes the values of jobs that ask "
        "for them (spec.output) when they end; without it, jobs may not ask",
        &coordinator_flags.output_root},
       {"--checkpoint-root",
        "Folder in which the checkpoints of jobs lie; every shard must see the same one (its own "
        "--checkpoint-root); without it, no checkpoints are taken",
        &coordinator_flags.checkpoint_root},
       {"--checkpoint-every",
        "How often (60s, 10m) checkpoints are taken of jobs whose file does not say it (default: "
        "only on request)",
        &coordinator_flags.checkpoint_every},
       {"--checkpoint-keep", "How many of these are kept of a job, the newest ones (default 2)",
        &coordinator_flags.checkpoint_keep},
       {"--keep-ended-jobs",
        "How many ended jobs are kept, with their parameters; beyond that, the oldest is deleted; "
        "\"all\": none is deleted (default 9000)",
        &coordinator_flags.keep_ended_jobs},
       {"--keep-ended-for",
        "Jobs that ended longer ago than this (90s, 30m, 48h) are deleted, with their parameters "
        "(default: never)",
        &coordinator_flags.keep_ended_for}},
      &flags);
  if (ends.has_value()) return *ends;
  return RunDaemon(PeerRole::kCoordinator, flags,
                   [&] { return Serve(coordinator_flags, &exit_request); });
}

}  // namespace starling::coordinator
