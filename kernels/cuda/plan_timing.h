// Which of several plans for the same work is taken, by how long they took. Pure functions.
#ifndef STARLING_KERNELS_CUDA_PLAN_TIMING_H_
#define STARLING_KERNELS_CUDA_PLAN_TIMING_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace starling::cuda {

// A plan must beat the heuristics' first choice by this factor: less is noise, and not worth other
// bits.
inline constexpr float kWorthwhile = 0.97f;

// The middle one; of an even number of times, the later of the middle two. `times` is not empty.
inline float Median(std::vector<float> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// The index of the plan to take. `times`: of each plan, in the heuristics' order, its runs' times;
// none: it failed. The least median wins, of equal ones the first; 0 unless that is worthwhile, or
// where no plan ran.
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
