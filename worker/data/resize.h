// Integer image scaling with the same bits everywhere.
#ifndef STARLING_WORKER_DATA_RESIZE_H_
#define STARLING_WORKER_DATA_RESIZE_H_

#include <cstdint>
#include <vector>

#include "worker/data/jpeg.h"

namespace starling {

// The size at which an image of `from` just covers `to`: one side is equal, the other at least
// equal.
JpegSize CoverSize(JpegSize from, JpegSize to);

// The central `window` of `in` scaled to size `scaled`: bilinear between pixel centres, weights in
// 1/256. Dense rows of interleaved channels. No side of `window` exceeds that of `scaled`.
void ResizeCenter(const JpegPixels& in, JpegSize scaled, JpegSize window,
                  std::vector<uint8_t>* out);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_RESIZE_H_
