#include "tools/bundle/applets.h"

#include "gtest/gtest.h"
#include "server/coordinator/coordinator_main.h"
#include "server/shard/shard_main.h"
#include "tools/bench/compute_bench.h"
#include "tools/bench/local_trainer.h"
#include "tools/bundle/check.h"
#include "tools/cli/client_main.h"
#include "worker/worker_main.h"

namespace starling {
namespace {

// Defined in kernels/conformance_test.cc, which is linked in.
int ConformanceMain(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

constexpr Applet kApplets[] = {
    {"starling", "the client", cli::ClientMain},
    {"starling-coordinator", "jobs, rosters, leases, results", coordinator::CoordinatorMain},
    {"starling-ps", "a parameter-server shard", ShardMain},
    {"starling-worker", "computes gradients", WorkerMain},
    {"conformance", "every operator against the reference", ConformanceMain},
    {"compute_bench", "trains nets on memory's data, asked line by line", ComputeBenchMain},
    {"local_trainer", "trains a job without servers", LocalTrainerMain},
    {"check", "runs the others on this machine, and says what holds", CheckMain},
};

}  // namespace

absl::Span<const Applet> Applets() { return kApplets; }

const Applet* FindApplet(absl::string_view name) {
  for (const Applet& applet : kApplets) {
    if (name == applet.name) return &applet;
  }
  return nullptr;
}

}  // namespace starling
