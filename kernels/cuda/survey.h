// What a machine has of NVIDIA, and whether that is enough. Asks nothing itself, so that every
// answer is tested on machines without a GPU.
#ifndef STARLING_KERNELS_CUDA_SURVEY_H_
#define STARLING_KERNELS_CUDA_SURVEY_H_

#include <string>

#include "absl/status/status.h"

namespace starling::cuda {

// The oldest GPUs that the kernels are compiled for: Hopper (sm_90). Newer ones run them, too.
inline constexpr int kComputeMajorMin = 9;

// Versions as CUDA counts them: 13000 is 13.0.
struct Survey {
  int toolkit = 0;    // that this was built with
  int driver = 0;     // the newest CUDA that the driver knows; 0: there is no driver
  std::string error;  // of counting the GPUs, as CUDA says it; empty: none
  int gpus = 0;
  // Of the first GPU.
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int compute_major = 0;
  int compute_minor = 0;
};

// "13.0".
std::string VersionText(int version);

// OK: the first GPU can be used. kFailedPrecondition says what is missing, or too old.
absl::Status CheckSurvey(const Survey& survey);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_SURVEY_H_
