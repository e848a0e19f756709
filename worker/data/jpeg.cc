#include "worker/data/jpeg.h"

#include <turbojpeg.h>

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

// Damage ends decoding at once, and so do unreasonably many scans.
constexpr int kFlags = TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS;

int Reduced(int side, int eighths) { return (side * eighths + 7) / 8; }  // the library's rounding

// Markers: the byte after 0xFF.
constexpr uint8_t kStartOfImage = 0xD8;
constexpr uint8_t kEndOfImage = 0xD9;
constexpr uint8_t kStartOfScan = 0xDA;

bool IsFrameHeader(uint8_t marker) {  // SOF0 to SOF15; three codes in between mean something else
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

bool HasNoLength(uint8_t marker) { return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7); }

absl::StatusOr<JpegSize> SizeInFrame(absl::Span<const uint8_t> segment) {
  const JpegSize size{segment[5] << 8 | segment[6], segment[7] << 8 | segment[8]};
  const int64_t pixels = int64_t{size.height} * size.width;
  if (pixels > 0 && pixels <= kJpegPixelsMax) return size;
  return absl::DataLossError(absl::StrCat("its header speaks of ", size.width, " x ", size.height,
                                          " pixels; 1 to ", kJpegPixelsMax, " are read"));
}

}  // namespace

absl::StatusOr<JpegSize> FindJpegSize(uint64_t bytes, const JpegBytes& read) {
  // 0xFF, marker, length, and for a frame: precision, height, width.
  constexpr size_t kSegmentHead = 9;
  if (bytes < 2 + kSegmentHead) return absl::DataLossError("too short for a JPEG image");
  STARLING_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> start, read(0, 2));
  if (start[0] != 0xFF || start[1] != kStartOfImage) return absl::DataLossError("no JPEG image");
  for (uint64_t at = 2; at + kSegmentHead <= bytes;) {
    STARLING_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> head, read(at, kSegmentHead));
    const uint8_t marker = head[1];
    if (head[0] != 0xFF || marker == kEndOfImage || marker == kStartOfScan || marker == 0) break;
    if (IsFrameHeader(marker)) return SizeInFrame(head);
    if (marker == 0xFF) {  // padding
      at += 1;
    } else if (HasNoLength(marker)) {
      at += 2;
    } else {
      at += 2 + std::max<uint64_t>(2, head[2] << 8 | head[3]);
    }
  }
  return absl::DataLossError("its JPEG header is damaged");
}

JpegDecoder::JpegDecoder() : handle_(tjInitDecompress()) {
  if (handle_ == nullptr) throw std::bad_alloc();
}

JpegDecoder::~JpegDecoder() { tjDestroy(handle_); }

JpegSize ReducedSize(JpegSize stored, JpegSize at_least) {
  for (int eighths = 1; eighths < 8; ++eighths) {
    const JpegSize size{Reduced(stored.height, eighths), Reduced(stored.width, eighths)};
    if (size.height >= at_least.height && size.width >= at_least.width) return size;
  }
  return stored;
}

absl::Status JpegDecoder::Decode(absl::Span<const uint8_t> jpeg, JpegSize stored, int channels,
                                 JpegSize at_least, JpegPixels* out) {
  STARLING_ASSIGN_OR_RETURN(
      const JpegSize found, FindJpegSize(jpeg.size(), [&](uint64_t offset, size_t count) {
        return absl::StatusOr<absl::Span<const uint8_t>>(jpeg.subspan(offset, count));
      }));
  if (found != stored) return absl::DataLossError("its size changed since it was opened");
  out->size = ReducedSize(stored, at_least);
  out->channels = channels;
  out->bytes.resize(static_cast<size_t>(out->size.height) * out->size.width * channels);
  // The library writes at most the size that it is given.
  if (tjDecompress2(handle_, jpeg.data(), jpeg.size(), out->bytes.data(), out->size.width,
                    out->size.width * channels, out->size.height,
                    channels == 1 ? TJPF_GRAY : TJPF_RGB, kFlags) == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(tjGetErrorStr2(handle_));
}

}  // namespace starling
