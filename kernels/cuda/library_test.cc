#include "kernels/cuda/library.h"

#include <array>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/abi.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kFakes[] = "kernels/cuda/testing/";

absl::Status Refusal(const std::string& fake) { return OpenCudaDevice(kFakes + fake).status(); }

TEST(CudaLibraryTest, NoneBesideTheProgram) {
  const absl::Status status = OpenCudaDevice("").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no libstarling_cuda.so in /"), HasSubstr("CUDA toolkit 13")));
}

TEST(CudaLibraryTest, NoneWhereItIsSaidToBe) {
  const absl::Status status = Refusal("absent.so");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("there is no kernels/cuda/testing/absent.so: "));
}

// The system's loader would find this one by its name.
TEST(CudaLibraryTest, ANameIsOfAFileInTheWorkingFolder) {
  const absl::Status status = OpenCudaDevice("libc.so.6").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("there is no libc.so.6: "));
}

TEST(CudaLibraryTest, NoSharedObject) {
  const absl::Status status = OpenCudaDevice("/proc/self/status").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/proc/self/status cannot be loaded: "));
}

TEST(CudaLibraryTest, SomebodyElses) {
  const absl::Status status = Refusal("libno_entry.so");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no starling_cuda_abi"));
}

TEST(CudaLibraryTest, OfAnotherBuild) {
  const absl::Status status = Refusal("libother_build.so");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("belongs to another build (interface of yesterday; this program's is "),
            HasSubstr(DeviceAbi())));
}

TEST(CudaLibraryTest, WhatItNeedsIsMissing) {
  const absl::Status status = Refusal("libunresolved.so");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cudnn_of_another_version"), HasSubstr("LD_LIBRARY_PATH")));
}

TEST(CudaLibraryTest, AnOldDriver) {
  const absl::Status status = Refusal("libold_driver.so");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "the NVIDIA driver is too old: it knows CUDA up to 12.4, expected 13.0 or newer: "
            "update the driver");
}

TEST(CudaLibraryTest, ADriverThatHangs) {
  const absl::Status status =
      OpenCudaDevice(std::string(kFakes) + "libhanging_driver.so", absl::Milliseconds(50)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libhanging_driver.so has not opened a GPU in 50ms"),
                    HasSubstr("nvidia-smi")));
}

TEST(ReturnStatusTest, CutsWhatDoesNotFit) {
  std::array<char, 8> error;
  error.fill('x');
  EXPECT_EQ(ReturnStatus(absl::NotFoundError("no more of it"), error.data(), error.size()),
            static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_STREQ(error.data(), "no more");
  EXPECT_EQ(ReturnStatus(absl::OkStatus(), error.data(), error.size()), 0);
  EXPECT_STREQ(error.data(), "");
  EXPECT_EQ(ReturnStatus(absl::NotFoundError("x"), nullptr, 0),
            static_cast<int>(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace starling
