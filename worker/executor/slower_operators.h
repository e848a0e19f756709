// Describes the operators that do not use a device's faster path.
#ifndef STARLING_WORKER_EXECUTOR_SLOWER_OPERATORS_H_
#define STARLING_WORKER_EXECUTOR_SLOWER_OPERATORS_H_

#include <string>
#include <utility>
#include <vector>

namespace starling {

// `operators`: (node name, OperatorKernel::slower_because, which may be empty), in graph order.
// Returns a line per reason, in the order of their first nodes: "attn0 and 11 more: REASON".
std::vector<std::string> DescribeSlower(
    const std::vector<std::pair<std::string, std::string>>& operators);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_SLOWER_OPERATORS_H_
