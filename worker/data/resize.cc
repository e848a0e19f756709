#include "worker/data/resize.h"

#include <algorithm>

namespace starling {
namespace {

constexpr int64_t kOne = 256;  // the unit of weights

struct Tap {
  int64_t low;     // index of the pixel before
  int64_t high;    // and of the one after
  int64_t weight;  // of `high`, in 1/kOne
};

// The position of pixel `i` of `scaled` pixels between those of `stored`.
Tap TapAt(int64_t i, int64_t stored, int64_t scaled) {
  // ((i + 1/2) * stored / scaled - 1/2), in units of 1/kOne, clamped to the image.
  const int64_t at = std::clamp<int64_t>(((2 * i + 1) * stored * kOne / scaled - kOne) / 2, 0,
                                         (stored - 1) * kOne);
  const int64_t low = at / kOne;
  return {low, std::min(low + 1, stored - 1), at % kOne};
}

void Taps(int64_t stored, int64_t scaled, int64_t window, std::vector<Tap>* taps) {
  taps->clear();
  const int64_t begin = (scaled - window) / 2;
  for (int64_t i = 0; i < window; ++i) taps->push_back(TapAt(begin + i, stored, scaled));
}

}  // namespace

JpegSize CoverSize(JpegSize from, JpegSize to) {
  const int64_t by_height = int64_t{to.height} * from.width;
  const int64_t by_width = int64_t{to.width} * from.height;
  if (by_height >= by_width) {  // the height determines the scale
    const int64_t width = (by_height + from.height / 2) / from.height;
    return {to.height, static_cast<int>(std::max<int64_t>(width, to.width))};
  }
  const int64_t height = (by_width + from.width / 2) / from.width;
  return {static_cast<int>(std::max<int64_t>(height, to.height)), to.width};
}

void ResizeCenter(const JpegPixels& in, JpegSize scaled, JpegSize window,
                  std::vector<uint8_t>* out) {
  const int64_t channels = in.channels;
  const int64_t row = in.size.width * channels;
  thread_local std::vector<Tap> rows, columns;  // reused for the thread's next image
  Taps(in.size.height, scaled.height, window.height, &rows);
  Taps(in.size.width, scaled.width, window.width, &columns);
  out->resize(static_cast<size_t>(window.height) * window.width * channels);
  uint8_t* to = out->data();
  for (const Tap& y : rows) {
    const uint8_t* low = in.bytes.data() + y.low * row;
    const uint8_t* high = in.bytes.data() + y.high * row;
    for (const Tap& x : columns) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t left = x.low * channels + c;
        const int64_t right = x.high * channels + c;
        const int64_t above = low[left] * (kOne - x.weight) + low[right] * x.weight;
        const int64_t below = high[left] * (kOne - x.weight) + high[right] * x.weight;
        *to++ = static_cast<uint8_t>(
            (above * (kOne - y.weight) + below * y.weight + kOne * kOne / 2) / (kOne * kOne));
      }
    }
  }
}

}  // namespace starling
