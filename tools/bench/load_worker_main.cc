// load_worker FLAG...: a worker that computes nothing (load_worker.h), with a worker's flags.
// Prints {} once it is a member of a job. Then each line of its input, `push|skipped|pull|both
// SECONDS`, is answered by {"bytes": B, "seconds": S}. Ends with its input.
#include <iostream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/daemon/daemon.h"
#include "common/daemon/malloc.h"
#include "tools/bench/load_worker.h"

namespace starling {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);

absl::StatusOr<Traffic> ParseTraffic(const std::string& name) {
  if (name == "push") return Traffic::kPush;
  if (name == "skipped") return Traffic::kSkipped;
  if (name == "pull") return Traffic::kPull;
  if (name == "both") return Traffic::kBoth;
  return absl::InvalidArgumentError(
      absl::StrCat("expected push, skipped, pull or both, got ", name));
}

absl::StatusOr<int> Serve(const DaemonFlags& flags, const std::string& shared_memory) {
  STARLING_ASSIGN_OR_RETURN(const bool shared, ParseSharedMemory(shared_memory));
  LoadWorker worker({PeerRole::kWorker, flags.name}, flags.coordinator, flags.security, shared);
  STARLING_RETURN_IF_ERROR(worker.Join(kPatience));
  std::cout << "{}" << std::endl;
  std::string name;
  for (double seconds = 0; std::cin >> name >> seconds;) {
    STARLING_ASSIGN_OR_RETURN(const Traffic traffic, ParseTraffic(name));
    STARLING_ASSIGN_OR_RETURN(const LoadWorker::Turn turn,
                              worker.Run(traffic, absl::Seconds(seconds)));
    std::cout << absl::StrFormat("{\"bytes\": %d, \"seconds\": %.6f}", turn.bytes,
                                 absl::ToDoubleSeconds(turn.time))
              << std::endl;
  }
  return kExitOk;
}

int Main(int argc, char** argv) {
  TuneMalloc();
  DaemonFlags flags;
  std::string shared_memory = "auto";
  const std::optional<int> ends =
      ParseDaemonFlags(argc, argv, PeerRole::kWorker,
                       {{"--shared-memory", kSharedMemoryHelp, &shared_memory}}, &flags);
  if (ends.has_value()) return *ends;
  return RunDaemon(PeerRole::kWorker, flags, [&] { return Serve(flags, shared_memory); });
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main(argc, argv); }
