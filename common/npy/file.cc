// Files: the frame around the header, the data, and their sizes.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/npy/npy.h"

namespace starling::npy {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = 6;
constexpr size_t kFrameBytesMax = kMagicBytes + 2 + 4;  // magic, version, the longest length

absl::Status Invalid(absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("npy: ", message));
}

// Where the header lies, from the file's first bytes.
struct Frame {
  size_t begin = 0;
  size_t bytes = 0;
};

absl::StatusOr<Frame> ReadFrame(absl::Span<const uint8_t> file) {
  if (file.size() < kMagicBytes || std::memcmp(file.data(), kMagic, kMagicBytes) != 0) {
    return Invalid("expected a file that begins with \\x93NUMPY (see numpy.save), got another one");
  }
  if (file.size() < kMagicBytes + 2) return Invalid("the file ends within the version");
  const int major = file[kMagicBytes], minor = file[kMagicBytes + 1];
  if ((major != 1 && major != 2) || minor != 0) {
    return Invalid(absl::StrCat("expected version 1.0 or 2.0, got ", major, ".", minor));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  Frame frame{.begin = kMagicBytes + 2 + length_bytes};
  if (file.size() < frame.begin) return Invalid("the file ends within the header's length");
  for (size_t i = 0; i < length_bytes; ++i) {
    frame.bytes |= size_t{file[kMagicBytes + 2 + i]} << (8 * i);
  }
  if (frame.bytes > kHeaderBytesMax) {
    return Invalid(absl::StrCat("expected a header of at most ", kHeaderBytesMax, " bytes, got ",
                                frame.bytes));
  }
  return frame;
}

absl::StatusOr<uint64_t> DataBytes(const Header& header) {
  uint64_t bytes = DTypeBytes(header.dtype);
  for (int64_t dim : header.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return Invalid(absl::StrCat("the shape (", absl::StrJoin(header.shape, ", "),
                                  ") has more than 2^64 bytes"));
    }
  }
  return bytes;
}

// Parses the header and checks that `file_bytes` is exactly the size that it implies.
absl::StatusOr<Header> CheckedHeader(absl::string_view text, uint64_t begin, uint64_t file_bytes) {
  STARLING_ASSIGN_OR_RETURN(Header header, ParseHeader(text));
  STARLING_ASSIGN_OR_RETURN(const uint64_t wanted, DataBytes(header));
  const uint64_t given = file_bytes - begin - text.size();
  if (wanted != given) {
    return Invalid(absl::StrCat("expected ", wanted, " bytes of data for ",
                                DTypeWords(header.dtype), " of shape (",
                                absl::StrJoin(header.shape, ", "), "), got ", given));
  }
  return header;
}

}  // namespace

absl::StatusOr<Array> ReadFile(const std::string& path, uint64_t data_bytes_max) {
  STARLING_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path));
  const int fd = file.fd.get();
  const uint64_t file_bytes = file.bytes;

  std::vector<uint8_t> head(std::min<uint64_t>(file_bytes, kFrameBytesMax));
  STARLING_RETURN_IF_ERROR(ReadWithin(fd, 0, absl::MakeSpan(head), path));
  const auto frame = ReadFrame(head);
  if (!frame.ok()) return Prefixed(path, frame.status());
  if (file_bytes - frame->begin < frame->bytes) {
    return Prefixed(path, Invalid("the file ends within the header"));
  }
  std::vector<uint8_t> text(frame->bytes);
  STARLING_RETURN_IF_ERROR(ReadWithin(fd, frame->begin, absl::MakeSpan(text), path));
  const auto header = CheckedHeader({reinterpret_cast<const char*>(text.data()), text.size()},
                                    frame->begin, file_bytes);
  if (!header.ok()) return Prefixed(path, header.status());

  Array array{header->dtype, header->shape, {}};
  const uint64_t data_begin = frame->begin + frame->bytes;
  if (file_bytes - data_begin > data_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": npy: expected at most ",
                                                     data_bytes_max, " bytes of data, got ",
                                                     file_bytes - data_begin, ": split the array"));
  }
  array.bytes.resize(file_bytes - data_begin);
  STARLING_RETURN_IF_ERROR(ReadWithin(fd, data_begin, absl::MakeSpan(array.bytes), path));
  return array;
}

absl::Status WriteFile(const std::string& path, const Array& array) {
  const Header header{array.dtype, array.shape};
  const auto wanted = DataBytes(header);
  STARLING_CHECK(wanted.ok() && *wanted == array.bytes.size(), "bytes of another shape");
  const absl::string_view data(reinterpret_cast<const char*>(array.bytes.data()),
                               array.bytes.size());
  return ReplaceFile(path, {EncodeHeader(header), data});
}

}  // namespace starling::npy
