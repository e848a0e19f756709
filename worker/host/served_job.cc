#include "worker/host/served_job.h"

namespace starling {

std::vector<session::SliceShape> ServedJob::SliceShapes() const {
  std::vector<session::SliceShape> shapes;
  for (const Slice& slice : layout_.slices) {
    shapes.push_back({slice.partition, slice.elements, slice.kind != FROZEN});
  }
  return shapes;
}

}  // namespace starling
