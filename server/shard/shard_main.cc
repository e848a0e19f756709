// starling-ps: a parameter-server shard; see server/shard/host/shard_runtime.h.
#include "server/shard/shard_main.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/daemon/admin_port.h"
#include "common/daemon/daemon.h"
#include "common/daemon/malloc.h"
#include "common/sync/mutex.h"
#include "common/version/version.h"
#include "server/shard/host/shard_runtime.h"

namespace starling {
namespace {

constexpr absl::Duration kShutdownDeadline = absl::Milliseconds(4500);
constexpr absl::Duration kDrainToldPeriod = absl::Seconds(5);
// The shard's own thread says something within 3 s, unless it plans a large job, or hangs: then it
// ends, since what has other copies goes on there.
constexpr absl::Duration kDrainBeginsWithin = absl::Seconds(30);

struct ShardFlags {
  DaemonFlags daemon;
  std::string drain_timeout = "5m";
  std::string checkpoint_root;
  std::string shared_memory = "auto";
  std::string inject_apply_wait;
  std::string inject_queue_wait;
  std::string inject_old_values;
};

// The coordinator's last word. Thread-safe.
class DrainText {
 public:
  void Take(const std::string& text) {
    MutexLock lock(&mutex_);
    const absl::Time now = MonotonicNow();
    begun_ = true;
    if (text == text_) return;
    text_ = text;
    if (now < told_ + kDrainToldPeriod) return;
    told_ = now;
    spdlog::info("draining: {}", text);
  }
  std::string Get() {
    MutexLock lock(&mutex_);
    return text_;
  }
  bool begun() {
    MutexLock lock(&mutex_);
    return begun_;
  }

 private:
  Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_) = "the coordinator has not answered yet";
  absl::Time told_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
};

// Waits until nothing counts on the shard, and returns the exit status: an error if something may
// still.
int Drain(ShardRuntime& shard, absl::Duration timeout, DaemonExit* exit_request) {
  spdlog::info(
      "draining: what counts on this shard is handed over, within {}; a second signal ends at once",
      absl::FormatDuration(timeout));
  const auto text = std::make_shared<DrainText>();
  shard.Drain([text, exit_request](const DrainOrders& orders) {
    text->Take(orders.text());
    if (orders.may_leave()) exit_request->Request(orders.loses() ? kExitError : kExitOk);
  });
  const absl::Time end = MonotonicNow() + timeout;
  auto ended = exit_request->WaitUntil(std::min(end, MonotonicNow() + kDrainBeginsWithin));
  if (!ended.has_value() && !text->begun() && timeout > kDrainBeginsWithin) {
    spdlog::error("not drained: the control thread hangs, as it has not begun within {}",
                  absl::FormatDuration(kDrainBeginsWithin));
    return kExitError;
  }
  if (!ended.has_value()) ended = exit_request->WaitUntil(end);
  int exit_status = kExitError;
  if (!ended.has_value()) {
    spdlog::error("not drained within {} (--drain-timeout): {}", absl::FormatDuration(timeout),
                  text->Get());
  } else if (ended->signal != 0) {
    spdlog::error("not drained, since a second signal came: {}", text->Get());
  } else {
    exit_status = ended->exit_status;
    if (exit_status == kExitOk) {
      spdlog::info("drained: {}", text->Get());
    } else {
      spdlog::error("not drained: {}", text->Get());
    }
  }
  shard.Leave();
  return exit_status;
}

absl::StatusOr<int> Serve(const ShardFlags& shard_flags, DaemonExit* exit_request) {
  const DaemonFlags& flags = shard_flags.daemon;
  STARLING_ASSIGN_OR_RETURN(const absl::Duration drain_timeout,
                            ParseDrainTimeout(shard_flags.drain_timeout));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<admin::Admin> admin,
                            StartAdminPort(flags, {PeerRole::kShard, flags.name}));
  ShardOptions options;
  STARLING_ASSIGN_OR_RETURN(options.shared_memory, ParseSharedMemory(shard_flags.shared_memory));
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
  DaemonExit::Reason reason = exit_request->Wait();
  if (reason.signal != 0) reason.exit_status = Drain(*shard, drain_timeout, exit_request);
  spdlog::info("shutting down");
  // Writing to a disk that hangs cannot be interrupted.
  const ExitDeadline deadline(kShutdownDeadline, reason.exit_status,
                              "a thread, or a checkpoint's file to be written");
  admin->BeginShutdown();
  shard->Stop();
  return reason.exit_status;
}

}  // namespace

int ShardMain(int argc, char** argv) {
  TuneMalloc();
  DaemonExit exit_request;
  ShardFlags flags;
  const std::optional<int> ends = ParseDaemonFlags(
      argc, argv, PeerRole::kShard,
      {{"--drain-timeout",
        "After SIGTERM: how long partitions are handed over to other shards, at most, as 5m",
        &flags.drain_timeout},
       {"--checkpoint-root",
        "Folder in which this process, as its own user, writes its part of checkpoints, and reads "
        "them; it is the one of the coordinator and of all shards",
        &flags.checkpoint_root},
       {"--shared-memory", kSharedMemoryHelp, &flags.shared_memory},
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
