// A lane's results depend on no other thread, whatever the machine's load.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/case_runner.h"
#include "kernels/testing/operator_cases.h"

namespace starling {
namespace {

// ThreadSanitizer does not understand OpenMP's barriers, so it checks lanes of one thread.
#ifdef STARLING_TSAN
const std::vector<int> kKernelThreads = {1};
#else
const std::vector<int> kKernelThreads = {1, 2};
#endif

// Six concurrent lanes, on a machine that may have fewer cores.
TEST(DeterminismTest, ConcurrentLanesComputeTheSameBits) {
  const std::unique_ptr<Device> device = *CreateCpuDevice();
  std::vector<OperatorCase> cases = OperatorCases();
  std::erase_if(cases, [&](const OperatorCase& c) { return !c.TakenBy(*device); });
  auto run = [&](size_t index, int threads) {
    const OperatorCase& c = cases[index];
    return CaseRunner(*device, c, Formatted::kNone, threads).Run(RandomArgs(c), GradOutput(c));
  };
  for (int threads : kKernelThreads) {
    std::vector<Outcome> alone;
    for (size_t i = 0; i < cases.size(); ++i) alone.push_back(run(i, threads));
    std::vector<std::thread> lanes;
    std::vector<std::string> differences(6);
    for (size_t lane = 0; lane < differences.size(); ++lane) {
      lanes.emplace_back([&, lane] {
        for (size_t step = 0; step < cases.size(); ++step) {
          const size_t i = (step + lane * 7) % cases.size();
          if (!(run(i, threads) == alone[i])) differences[lane] += " " + cases[i].label;
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
    for (const std::string& difference : differences) EXPECT_EQ(difference, "") << threads;
  }
}

}  // namespace
}  // namespace starling
