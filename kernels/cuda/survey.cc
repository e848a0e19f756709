#include "kernels/cuda/survey.h"

#include "absl/strings/str_cat.h"

namespace starling::cuda {

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status CheckSurvey(const Survey& survey) {
  if (survey.driver == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no NVIDIA driver is installed (libcuda.so.1 is not found): expected one for CUDA ",
        VersionText(survey.toolkit), " or newer; in a container, the runtime must pass it on"));
  }
  // Drivers older than the toolkit work within one major version.
  if (survey.driver / 1000 < survey.toolkit / 1000) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver is too old: it knows CUDA up to ", VersionText(survey.driver),
        ", expected ", survey.toolkit / 1000, ".0 or newer: update the driver"));
  }
  if (!survey.error.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver (CUDA ", VersionText(survey.driver), ") shows no GPU: ", survey.error));
  }
  if (survey.gpus == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver (CUDA ", VersionText(survey.driver),
                     ") shows no GPU: expected one; see nvidia-smi and CUDA_VISIBLE_DEVICES"));
  }
  if (survey.compute_major < kComputeMajorMin) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the GPU is a ", survey.name, " of compute capability ", survey.compute_major, ".",
        survey.compute_minor, ", expected ", kComputeMajorMin, ".0 (Hopper) or newer"));
  }
  return absl::OkStatus();
}

}  // namespace starling::cuda
