// What is said of operators that a device computes more slowly than it could.
#ifndef STARLING_WORKER_EXECUTOR_SLOWER_OPERATORS_H_
#define STARLING_WORKER_EXECUTOR_SLOWER_OPERATORS_H_

#include <string>
#include <utility>
#include <vector>

namespace starling {

// `operators`: (name of the node, OperatorKernel::slower_because, which may be empty), in the
// graph's order. A line for each reason, in the order of their first nodes: "attn0 and 11 more:
// REASON".
std::vector<std::string> DescribeSlower(
    const std::vector<std::pair<std::string, std::string>>& operators);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_SLOWER_OPERATORS_H_
