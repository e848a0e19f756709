// What NVIDIA hardware and software a machine has, and whether that suffices. Queries nothing
// itself, so every outcome is tested without a GPU.
#ifndef STARLING_KERNELS_CUDA_SURVEY_H_
#define STARLING_KERNELS_CUDA_SURVEY_H_

#include <string>

#include "absl/status/status.h"

namespace starling::cuda {

// The oldest GPUs that the kernels are compiled for: Hopper (sm_90). Newer ones run them, too.
inline constexpr int kComputeMajorMin = 9;

// Versions in CUDA's numbering: 13000 is 13.0.
struct Survey {
  int toolkit = 0;    // the CUDA version of this build
  int driver = 0;     // the newest CUDA that the driver supports; 0: there is no driver
  std::string error;  // CUDA's error from counting the GPUs; empty: none
  int gpus = 0;
  // The first GPU.
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int compute_major = 0;
  int compute_minor = 0;
};

// "13.0".
std::string VersionText(int version);

// OK: the first GPU can be used. kFailedPrecondition says what is missing or too old.
absl::Status CheckSurvey(const Survey& survey);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_SURVEY_H_
