// push_load FLAG...: a worker that only pushes (pusher.h), with a worker's flags. Prints
// {} once it is a member of a job. Then each line of its input is a number of seconds for which it
// pushes, answered by {"bytes": B, "seconds": S}. Ends with its input.
#include <iostream>
#include <optional>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/daemon/daemon.h"
#include "common/daemon/malloc.h"
#include "tools/bench/pusher.h"

namespace starling {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);

absl::StatusOr<int> Serve(const DaemonFlags& flags) {
  Pusher pusher({PeerRole::kWorker, flags.name}, flags.coordinator, flags.security);
  STARLING_RETURN_IF_ERROR(pusher.Join(kPatience));
  std::cout << "{}" << std::endl;
  for (double seconds = 0; std::cin >> seconds;) {
    STARLING_ASSIGN_OR_RETURN(const Pusher::Turn turn, pusher.Push(absl::Seconds(seconds)));
    std::cout << absl::StrFormat("{\"bytes\": %d, \"seconds\": %.6f}", turn.bytes,
                                 absl::ToDoubleSeconds(turn.time))
              << std::endl;
  }
  return kExitOk;
}

int Main(int argc, char** argv) {
  TuneMalloc();
  DaemonFlags flags;
  const std::optional<int> ends = ParseDaemonFlags(argc, argv, PeerRole::kWorker, {}, &flags);
  if (ends.has_value()) return *ends;
  return RunDaemon(PeerRole::kWorker, flags, [&] { return Serve(flags); });
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main(argc, argv); }
