// Scaling of images in integers, the same bits everywhere.
#ifndef STARLING_WORKER_DATA_RESIZE_H_
#define STARLING_WORKER_DATA_RESIZE_H_

#include <cstdint>
#include <vector>

#include "worker/data/jpeg.h"

namespace starling {

// The size by which an image of `from` just covers `to`: one side is equal, the other at least so.
JpegSize CoverSize(JpegSize from, JpegSize to);

// The middle `window` of `in` scaled to size `scaled`, bilinear between pixel centres, weights of
// 1/256. Rows of interleaved channels, dense. No side of `window` is beyond `scaled`'s.
void ResizeCenter(const JpegPixels& in, JpegSize scaled, JpegSize window,
                  std::vector<uint8_t>* out);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_RESIZE_H_
