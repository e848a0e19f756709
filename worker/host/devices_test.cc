#include "worker/host/devices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/testing/memory_only_device.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr char kGpu[] = "kernels/cuda/testing/libcpu_as_gpu.so";
constexpr char kAbsent[] = "kernels/cuda/testing/absent.so";

TEST(WorkerDevicesTest, AGpuIsTakenWhereThereIsOne) {
  for (const char* device : {"auto", "gpu"}) {
    const absl::StatusOr<WorkerDevices> devices =
        WorkerDevices::Open({.device = device, .cuda_library = kGpu});
    ASSERT_TRUE(devices.ok()) << devices.status();
    EXPECT_TRUE(devices->has_gpu());
    Device* const gpu = *devices->For(DEVICE_GPU);
    EXPECT_EQ(*devices->For(DEVICE_AUTO), gpu);
    EXPECT_EQ(*devices->For(DEVICE_CPU), &devices->cpu());
    EXPECT_NE(gpu, &devices->cpu());
    EXPECT_FALSE(gpu->host_reaches_memory());
  }
}

// A GPU of which somebody else holds a part, or that is lost.
class PartlyTaken : public MemoryOnlyDevice {
 public:
  explicit PartlyTaken(absl::StatusOr<MemoryBytes> memory) : memory_(memory) {}
  std::string name() const override { return "a GPU"; }
  bool host_reaches_memory() const override { return false; }
  absl::StatusOr<MemoryBytes> Memory() override { return memory_; }

 private:
  const absl::StatusOr<MemoryBytes> memory_;
};

TEST(WorkerDevicesTest, SaysThatAGpuIsShared) {
  constexpr size_t kGiB = size_t{1} << 30;
  const auto notice = [](size_t available) {
    const MemoryBytes memory = {available, 80 * kGiB};
    PartlyTaken device(memory);
    return SharedMemoryNotice(device);
  };
  EXPECT_EQ(notice(79 * kGiB), "");  // what a process takes to be there at all
  EXPECT_THAT(
      notice(76 * kGiB),
      HasSubstr("4096 MiB of the 81920 MiB of a GPU are in use, probably by other processes"));
  PartlyTaken lost(absl::UnavailableError("lost"));
  EXPECT_EQ(SharedMemoryNotice(lost), "");
  const absl::StatusOr<WorkerDevices> devices = WorkerDevices::Open({.device = "cpu"});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ(SharedMemoryNotice(devices->cpu()), "");
}

TEST(WorkerDevicesTest, ADeviceSaysItselfThatItIsLost) {
  PartlyTaken good(MemoryBytes{1, 2});
  EXPECT_FALSE(IsLost(good));
  PartlyTaken lost(absl::UnavailableError("the GPU is lost to this process"));
  EXPECT_TRUE(IsLost(lost));
  PartlyTaken odd(absl::InternalError("cudaMemGetInfo"));
  EXPECT_FALSE(IsLost(odd));
}

TEST(WorkerDevicesTest, WithoutOneItFallsBackAndSaysWhy) {
  const absl::StatusOr<WorkerDevices> devices = WorkerDevices::Open({.cuda_library = kAbsent});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_FALSE(devices->has_gpu());
  EXPECT_THAT(devices->why_no_gpu(), HasSubstr("there is no kernels/cuda/testing/absent.so"));
  EXPECT_THAT(devices->Description(), HasSubstr("), because there is no kernels"));
  EXPECT_EQ(*devices->For(DEVICE_AUTO), &devices->cpu());
  EXPECT_EQ(*devices->For(DEVICE_CPU), &devices->cpu());
  const absl::Status status = devices->For(DEVICE_GPU).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this worker has none: there is no "));
}

TEST(WorkerDevicesTest, WithoutOneItDoesNotStartWhereItMustHaveOne) {
  const absl::Status status =
      WorkerDevices::Open({.device = "gpu", .cuda_library = kAbsent}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--device gpu: there is no "));
}

TEST(WorkerDevicesTest, TheCpuAloneLooksForNoGpu) {
  const absl::StatusOr<WorkerDevices> devices =
      WorkerDevices::Open({.device = "cpu", .cuda_library = kGpu});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_FALSE(devices->has_gpu());
  EXPECT_EQ(devices->why_no_gpu(), "it was started with --device cpu");
}

TEST(WorkerDevicesTest, AnotherDeviceIsNone) {
  EXPECT_EQ(WorkerDevices::Open({.device = "tpu"}).status().message(),
            "--device: expected auto, cpu or gpu, got \"tpu\"");
}

}  // namespace
}  // namespace starling
