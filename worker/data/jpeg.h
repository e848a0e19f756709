// JPEG images, with libturbojpeg.
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

// Bytes [offset, offset + count) of an image; count is small. Returns the file's errors.
using JpegBytes =
    std::function<absl::StatusOr<absl::Span<const uint8_t>>(uint64_t offset, size_t count)>;

// Reads an image's size from its header; reads only the segments' headers. kDataLoss: there is no
// such header, or it claims no pixels or more than kJpegPixelsMax. Other errors are those of
// `read`.
absl::StatusOr<JpegSize> FindJpegSize(uint64_t bytes, const JpegBytes& read);

// The most pixels that are decoded: a header of a few bytes may claim 65,535 x 65,535.
inline constexpr int64_t kJpegPixelsMax = int64_t{1} << 26;

// Decoded pixels: rows of interleaved channels. The memory is reused from image to image.
struct JpegPixels {
  JpegSize size;
  int channels = 0;
  std::vector<uint8_t> bytes;
};

// Used by one thread at a time; holds one handle of the library.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Decodes to `channels` (3: red, green, blue; 1: gray), reduced by k/8 with the smallest k <= 8
  // for which no side becomes smaller than in `at_least` (unreduced if it already is). The same
  // bits on every machine that runs the same version of the library. `stored` is the size found in
  // the header. kDataLoss: not a JPEG image of that size, truncated or damaged (every warning of
  // the library counts), with the library's message; *out is then unspecified.
  absl::Status Decode(absl::Span<const uint8_t> jpeg, JpegSize stored, int channels,
                      JpegSize at_least, JpegPixels* out);

 private:
  void* handle_;  // tjhandle
};

// The size at which an image of `stored` is decoded: see JpegDecoder::Decode.
JpegSize ReducedSize(JpegSize stored, JpegSize at_least);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_JPEG_H_
