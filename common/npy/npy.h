// NumPy's file format for one array
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): input and output of
// `starling predict`.
//
// "\x93NUMPY", version (major, minor), header length (u16 in version 1, u32 in version 2, both
// little-endian), the header (a Python dict of descr, fortran_order and shape, padded with blanks
// and ended by a newline), then the elements in C order.
//
// Thread-safe. Pure, except for ReadFile and WriteFile.
#ifndef STARLING_COMMON_NPY_NPY_H_
#define STARLING_COMMON_NPY_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starling::npy {

inline constexpr size_t kHeaderBytesMax = 64 << 10;
inline constexpr size_t kDimsMax = 16;
inline constexpr uint64_t kDataBytesMax = uint64_t{8} << 30;

// Little-endian, as written: "<f4", "<f8", "<i4", "<i8", "|u1". Others are rejected by name.
enum class DType : uint8_t { kF32, kF64, kI32, kI64, kU8 };

const char* DTypeName(DType dtype);   // "<f4"
const char* DTypeWords(DType dtype);  // "float32"
size_t DTypeBytes(DType dtype);       // per element

struct Array {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // {}: a scalar; a zero: no elements
  std::vector<uint8_t> bytes;  // in C order

  int64_t elements() const;
  // The elements, for their own type only; aligned as by operator new.
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
};

struct Header {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

// Parses a header. kInvalidArgument: not such a dict; a missing, unknown or duplicate key; an
// unsupported dtype; Fortran order; a dimension that is negative, too large or one too many.
absl::StatusOr<Header> ParseHeader(absl::string_view text);

// Magic, version 1 (2 if the header is too long), length and header, padded so that the data is
// aligned to 64 bytes.
std::string EncodeHeader(const Header& header);

// Errors have the path. kNotFound; kInvalidArgument: as ParseHeader; another magic or version; a
// header that is cut short or too long; fewer or more bytes of data than the shape implies;
// kResourceExhausted: more than `data_bytes_max` of data, checked before allocating; kDataLoss:
// became shorter; or SystemError (files.h).
absl::StatusOr<Array> ReadFile(const std::string& path, uint64_t data_bytes_max = kDataBytesMax);

// Writes to a temporary file beside `path` and renames it (a device or a pipe is written in place),
// so that a reader sees the old file or the whole new one. After an error (kUnavailable) nothing
// remains. CHECKs that the bytes match the shape.
absl::Status WriteFile(const std::string& path, const Array& array);

}  // namespace starling::npy

#endif  // STARLING_COMMON_NPY_NPY_H_
