// A daemon's calls to its coordinator, over the simulated network.
#ifndef STARLING_TESTS_SIM_SIM_COORDINATOR_CLIENT_H_
#define STARLING_TESTS_SIM_SIM_COORDINATOR_CLIENT_H_

#include <memory>

#include "common/daemon/coordinator_client.h"
#include "tests/sim/world.h"

namespace starling::sim {

class Cluster;

// Makes calls in this life of `process`. What a request says about the machine, and its nonces, are
// replaced by functions of `seed` and of the process's life. Calls time out after
// Network::kCallDeadline at the latest.
std::unique_ptr<CoordinatorClient> MakeSimCoordinatorClient(Cluster* cluster, Process* process,
                                                            uint64_t seed);

// A limit so small that shards report in parts.
inline constexpr size_t kSimReportBytes = 300;

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SIM_COORDINATOR_CLIENT_H_
