// Chooses among several plans for the same work by their run times. Pure functions.
#ifndef STARLING_KERNELS_CUDA_PLAN_TIMING_H_
#define STARLING_KERNELS_CUDA_PLAN_TIMING_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace starling::cuda {

// A plan must beat the heuristics' first choice by this factor: less is noise, and does not justify
// other bits.
inline constexpr float kWorthwhile = 0.97f;

// The middle one; of an even number of times, the larger of the middle two. `times` is not empty.
inline float Median(std::vector<float> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// The index of the plan to use. `times`: each plan's run times, in the heuristics' order; none: it
// failed. The smallest median wins, the first among equals; 0 if the gain is not worthwhile or no
// plan ran.
inline size_t Fastest(const std::vector<std::vector<float>>& times) {
  size_t best = times.size();
  float least = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i].empty()) continue;
    const float median = Median(times[i]);
    if (best == times.size() || median < least) {
      best = i;
      least = median;
    }
  }
  if (best == times.size()) return 0;
  if (times[0].empty()) return best;
  return least <= kWorthwhile * Median(times[0]) ? best : 0;
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_PLAN_TIMING_H_
