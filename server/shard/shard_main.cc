// starling-ps: a parameter-server shard; see server/shard/host/shard_runtime.h.
#include "server/shard/shard_main.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "common/base/status_macros.h"
#include "common/daemon/admin_port.h"
#include "common/daemon/daemon.h"
#include "common/daemon/malloc.h"
#include "common/version/version.h"
#include "server/shard/host/shard_runtime.h"

namespace starling {
namespace {

constexpr absl::Duration kShutdownDeadline = absl::Milliseconds(4500);

struct ShardFlags {
  DaemonFlags daemon;
  std::string checkpoint_root;
  std::string inject_apply_wait;
  std::string inject_queue_wait;
  std::string inject_old_values;
};

absl::StatusOr<int> Serve(const ShardFlags& shard_flags, DaemonExit* exit_request) {
  const DaemonFlags& flags = shard_flags.daemon;
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<admin::Admin> admin,
                            StartAdminPort(flags, {PeerRole::kShard, flags.name}));
  ShardOptions options;
  STARLING_RETURN_IF_ERROR(ReadInjections(shard_flags.inject_apply_wait,
                                          shard_flags.inject_queue_wait,
                                          shard_flags.inject_old_values, &options.inject));
  if (!shard_flags.inject_apply_wait.empty()) {
    spdlog::warn("--inject-apply-wait {}: each update takes that much longer",
                 shard_flags.inject_apply_wait);
  }
  if (!shard_flags.inject_queue_wait.empty()) {
    spdlog::warn("--inject-queue-wait {}: each frame waits that long for its turn",
                 shard_flags.inject_queue_wait);
  }
  if (!shard_flags.inject_old_values.empty()) {
    spdlog::warn("--inject-old-values {}: old values of all streams may take that many bytes",
                 shard_flags.inject_old_values);
  }
  options.admin_address = admin->address();
  options.name = flags.name;
  options.listen = flags.listen;
  options.advertise_address = flags.advertise_address;
  options.security = flags.security;
  options.coordinator = flags.coordinator;
  options.clock_offset = flags.clock_offset;
  options.checkpoint_root = shard_flags.checkpoint_root;
  options.owner_threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<ShardRuntime> shard,
                            StartShard(options, [exit_request](const absl::Status& status) {
                              spdlog::critical("{}", std::string(status.message()));
                              exit_request->Request(kExitError);
                            }));
  STARLING_RETURN_IF_ERROR(WritePortFile(flags.port_file, shard->port()));
  // Nothing returns from here on before BeginShutdown: the admin port outlives the shard it asks.
  shard->ShowOn(admin.get());
  spdlog::info("version {} is reached at {}, coordinator {}", std::string(ReleaseVersion()),
               shard->address(), flags.coordinator);
  const int exit_status = exit_request->Wait().exit_status;
  spdlog::info("shutting down");
  // Writing to a disk that hangs cannot be interrupted.
  const ExitDeadline deadline(kShutdownDeadline, exit_status, "a checkpoint's file to be written");
  admin->BeginShutdown();
  shard->Stop();
  return exit_status;
}

}  // namespace

int ShardMain(int argc, char** argv) {
  TuneMalloc();
  DaemonExit exit_request;
  ShardFlags flags;
  const std::optional<int> ends = ParseDaemonFlags(
      argc, argv, PeerRole::kShard,
      {{"--checkpoint-root",
        "Folder in which this process, as its own user, writes its part of checkpoints, and reads "
        "them; it is the one of the coordinator and of all shards",
        &flags.checkpoint_root},
       {"--inject-apply-wait",
        "make each update take this much longer, as 0.05s, or as 0.05s@3 for partition 3 alone",
        &flags.inject_apply_wait, false, true},
       {"--inject-queue-wait", "let each frame wait this long for its turn, as 0.05s",
        &flags.inject_queue_wait, false, true},
       {"--inject-old-values",
        "limit all old values that streams still have to send to this many bytes, as 16777216",
        &flags.inject_old_values, false, true}},
      &flags.daemon);
  if (ends.has_value()) return *ends;
  return RunDaemon(PeerRole::kShard, flags.daemon, [&] { return Serve(flags, &exit_request); });
}

}  // namespace starling
