// Pure.
#ifndef STARLING_COMMON_BASE_MEDIAN_H_
#define STARLING_COMMON_BASE_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace starling {

// Of an even number of values, the mean of the two in the middle; of none, 0.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_MEDIAN_H_
