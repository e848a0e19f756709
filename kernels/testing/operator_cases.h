// The operators and shapes with which every device is tested.
#ifndef STARLING_KERNELS_TESTING_OPERATOR_CASES_H_
#define STARLING_KERNELS_TESTING_OPERATOR_CASES_H_

#include <ostream>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/operator.h"
#include "kernels/reference/reference.h"

namespace starling {

struct OperatorCase {
  std::string label;  // letters, digits, underscores; unique
  OperatorSpec spec;
  int64_t classes = 0;  // labels or indices, the last input, are in [0, classes); 0: none
  // Large enough to reach a device's algorithm; smaller cases check the reference.
  bool large = false;
  // What a device must claim to accept this operator; nullptr: every device does.
  bool Fusions::*fusion = nullptr;
  bool TakenBy(const Device& device) const { return fusion == nullptr || device.fusions().*fusion; }
  bool loss() const;  // has no grad_output
  // Whether input i holds labels or indices: plain, without a gradient.
  bool labels(size_t i) const;
};

// For GoogleTest's messages.
inline void PrintTo(const OperatorCase& c, std::ostream* out) { *out << c.label; }

// Every operator: batch 1, prime sizes, strides, paddings, dilations, groups, channel counts that
// do not fill a vector, with and without bias, training and inference.
std::vector<OperatorCase> OperatorCases();

// The same values for the same case on every machine.
ReferenceArgs RandomArgs(const OperatorCase& test_case);
Doubles RandomDoubles(int64_t count, uint64_t seed);

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_OPERATOR_CASES_H_
