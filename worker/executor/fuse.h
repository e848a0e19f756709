// A graph as a device computes it best: nodes that one kernel of it computes, joined, and a ReLU
// moved to where it has less to do. Parameters, their order and their gradients are those of the
// graph as given, and so are random numbers (ResolvedNode::number).
#ifndef STARLING_WORKER_EXECUTOR_FUSE_H_
#define STARLING_WORKER_EXECUTOR_FUSE_H_

#include "common/graph/graph.h"
#include "kernels/device.h"

namespace starling {

// * batchnorm, then add, then relu, any of the latter two, become one batchnorm
//   (`fusions.batchnorm`), unless its statistics are frozen. It has the batchnorm's name, a second
//   input if it adds, and attributes.relu if it rectifies.
// * linear, then gelu in GPT-2's form, become one linear with attributes.gelu
//   (`fusions.linear_gelu`).
// * attention on three slices that cut one value's positions into query, key and value reads the
//   value itself (`fusions.packed_attention`).
// * relu, then maxpool2d, change places: a maximum's ReLU is the maximum of ReLUs, in every bit,
//   and
//   so are gradients, as a window without a positive element passes none either way.
// Only where nobody else reads what lies between. Pure.
ResolvedGraph Fuse(const ResolvedGraph& graph, const Fusions& fusions);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_FUSE_H_
