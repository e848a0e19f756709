// JPEG images, by libturbojpeg.
#ifndef STARLING_WORKER_DATA_JPEG_H_
#define STARLING_WORKER_DATA_JPEG_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace starling {

struct JpegSize {
  int height = 0;
  int width = 0;
  friend bool operator==(const JpegSize&, const JpegSize&) = default;
};

// Bytes [offset, offset + count) of an image; count is small. Errors are the file's.
using JpegBytes =
    std::function<absl::StatusOr<absl::Span<const uint8_t>>(uint64_t offset, size_t count)>;

// Reads an image's size from its header, reading no more than the segments' heads. kDataLoss: it
// has no such header, or says that it has more than kJpegPixelsMax pixels, or none. Other errors
// are those of `read`.
absl::StatusOr<JpegSize> FindJpegSize(uint64_t bytes, const JpegBytes& read);

// At most so many pixels are decoded: a header of a few bytes may ask for 65,535 x 65,535.
inline constexpr int64_t kJpegPixelsMax = int64_t{1} << 26;

// Decoded pixels: rows of interleaved channels. Memory is used again from image to image.
struct JpegPixels {
  JpegSize size;
  int channels = 0;
  std::vector<uint8_t> bytes;
};

// One thread at a time; one handle of the library.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Decodes to `channels` (3: red, green, blue; 1: gray), reduced by k/8 with the least k <= 8 for
  // which no side becomes less than in `at_least` (or whole, where it is already). The same bits on
  // every machine that runs the same version of the library. `stored` is the size that the image
  // was found to have. kDataLoss: not a JPEG image of that size, truncated or damaged (every
  // warning of the library counts), with the library's words; then *out is not to be used.
  absl::Status Decode(absl::Span<const uint8_t> jpeg, JpegSize stored, int channels,
                      JpegSize at_least, JpegPixels* out);

 private:
  void* handle_;  // tjhandle
};

// The size by which an image of `stored` is decoded: see JpegDecoder::Decode.
JpegSize ReducedSize(JpegSize stored, JpegSize at_least);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_JPEG_H_
