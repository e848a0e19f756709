// Rewrites a graph for a device: joins nodes that the device computes with one kernel, and moves a
// ReLU to where it has less to do. Parameters, their order and gradients are unchanged, and so are
// random numbers (ResolvedNode::number).
#ifndef STARLING_WORKER_EXECUTOR_FUSE_H_
#define STARLING_WORKER_EXECUTOR_FUSE_H_

#include "common/graph/graph.h"
#include "kernels/device.h"

namespace starling {

// * batchnorm, followed by add, by relu, or by add and then relu, becomes one batchnorm
//   (`fusions.batchnorm`), unless its statistics are frozen. It has the batchnorm's name, a second
//   input if it adds, and attributes.relu if it rectifies.
// * linear, then gelu in GPT-2's form, become one linear with attributes.gelu
//   (`fusions.linear_gelu`).
// * attention on three slices that cut one value's positions into query, key and value reads the
//   value itself (`fusions.packed_attention`).
// * relu, then maxpool2d, are swapped: the ReLU of a maximum is the maximum of ReLUs, bit for bit,
//   and so are gradients, because a window without a positive element passes none either way.
// Only if nothing else reads the values in between. Pure.
ResolvedGraph Fuse(const ResolvedGraph& graph, const Fusions& fusions);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_FUSE_H_
