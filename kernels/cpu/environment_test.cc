// Run with OMP_NUM_THREADS=7, OMP_DYNAMIC=true, OMP_MAX_ACTIVE_LEVELS=0, OMP_THREAD_LIMIT=3:
// results must depend only on OperatorSpec::kernel_threads.
#include <omp.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"

namespace starling {
namespace {

OperatorSpec Relu(int threads) {
  OperatorSpec spec;
  spec.name = "relu1";
  spec.op = "relu";
  spec.kernel_threads = threads;
  spec.input_shapes = {{1, 4}};
  spec.output_shape = {1, 4};
  return spec;
}

TEST(EnvironmentTest, KernelThreadsWinOverTheEnvironment) {
  ASSERT_STREQ(std::getenv("OMP_NUM_THREADS"), "7") << "the BUILD file sets it";
  auto device = CreateCpuDevice();
  ASSERT_TRUE(device.ok());
  for (int threads : {2, 1, 3}) {
    auto kernel = (*device)->CreateOperator(Relu(threads));
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    EXPECT_EQ(omp_get_max_threads(), threads) << "while primitives are made";
    std::thread lane([&] {
      EXPECT_EQ(omp_get_max_threads(), 7);
      auto stream = *(*device)->CreateStream();
      const float x[4] = {-1, 2, -3, 4};
      float y[4];
      const void* input = x;
      ForwardArgs args;
      args.inputs = absl::MakeConstSpan(&input, 1);
      args.output = y;
      EXPECT_TRUE((*kernel)->Forward(args, *stream).ok());
      EXPECT_EQ(y[3], 4);
      EXPECT_EQ(omp_get_max_threads(), threads) << "on the lane that runs it";
      EXPECT_EQ(omp_get_dynamic(), 0) << "a team may be smaller than asked for";
      EXPECT_GE(omp_get_max_active_levels(), 1) << "a team is always one thread";
    });
    lane.join();
  }
}

TEST(EnvironmentTest, RefusesMoreThreadsThanTheEnvironmentAllows) {
  auto device = CreateCpuDevice();
  ASSERT_TRUE(device.ok());
  const absl::Status status = (*device)->CreateOperator(Relu(4)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("OMP_THREAD_LIMIT allows 3"), std::string::npos)
      << status;
}

}  // namespace
}  // namespace starling
