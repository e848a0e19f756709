// The safetensors file format (https://github.com/huggingface/safetensors), for exports and
// checkpoints.
//
// u64 little-endian N, N bytes of UTF-8 JSON {"name": {"dtype", "shape", "data_offsets"}, ...,
// "__metadata__": {string: string}}, then the tensors' bytes, which fill the rest without gaps.
#ifndef STARLING_COMMON_SAFETENSORS_SAFETENSORS_H_
#define STARLING_COMMON_SAFETENSORS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/files.h"
#include "common/base/owned_fd.h"

namespace starling::safetensors {

inline constexpr uint64_t kHeaderBytesMax = 100'000'000;
inline constexpr size_t kTensorsMax = 1'000'000;
inline constexpr size_t kDimsMax = 64;

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};

const char* DTypeName(DType dtype);                   // "F32"
uint64_t DTypeBytes(DType dtype);                     // per element
bool ParseDType(absl::string_view name, DType* out);  // false: unknown, *out unchanged

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape = {};  // empty: a scalar; a zero: no elements
  uint64_t begin = 0;  // bytes from the start of the data; the writer sets begin and end
  uint64_t end = 0;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// The product of the dimensions times the element size. kInvalidArgument if it overflows.
absl::StatusOr<uint64_t> TensorBytes(DType dtype, absl::Span<const uint64_t> shape);

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;  // ascending `begin`, then `end`
  uint64_t data_begin = 0;          // offset of the data in the file: 8 + N
};

// Parses and checks the JSON of a header whose data is `data_bytes` long. Rejects (kInvalidArgument
// with the tensor's name): text that is not JSON, duplicate names, unknown or missing fields,
// unknown dtypes, wrong sizes, a gap, an overlap, a first offset other than 0, and a last end other
// than the data's end. `data_begin` becomes 8 + json.size().
absl::StatusOr<Header> ParseHeader(absl::string_view json, uint64_t data_bytes);

// The header of a file of `file_bytes` bytes. `read` fills its argument with the bytes that begin
// at an offset; its errors are returned. kInvalidArgument: ParseHeader's, or the file is too short.
absl::StatusOr<Header> ReadHeader(
    uint64_t file_bytes,
    absl::FunctionRef<absl::Status(uint64_t offset, absl::Span<uint8_t> out)> read);

// Reads a file's tensors one at a time. Open checks the whole header. Read is thread-safe.
class Reader {
 public:
  // kNotFound, kInvalidArgument (malformed, with the path), kUnavailable (the system's error).
  static absl::StatusOr<Reader> Open(const std::string& path);

  const Header& header() const { return header_; }
  const TensorInfo* Find(absl::string_view name) const;  // nullptr: no such tensor

  // Reads bytes [offset, offset + out.size()) of the tensor; kOutOfRange beyond its end.
  absl::Status Read(const TensorInfo& tensor, uint64_t offset, absl::Span<uint8_t> out) const;
  absl::StatusOr<std::vector<float>> ReadFloats(absl::string_view name) const;  // F32 only

 private:
  Reader(std::string path, OwnedFd fd, Header header);

  std::string path_;
  OwnedFd fd_;
  Header header_;
};

// Writes a file of any size with little memory: the header first, then the tensors' bytes in the
// given order. A reader sees the old file or, after Finish, the whole new one (FileReplacement,
// common/base/files.h). Not thread-safe.
class Writer {
 public:
  // `tensors`: begin and end are ignored and computed. "format": "pt" is added to the metadata
  // unless it has a format: some loaders refuse files without one.
  static absl::StatusOr<Writer> Create(const std::string& path, std::vector<TensorInfo> tensors,
                                       std::map<std::string, std::string> metadata);

  // Writes the file `name` in `folder`, as FileReplacement::BeginIn does.
  static absl::StatusOr<Writer> CreateIn(OwnedFd folder, const std::string& name,
                                         const std::string& shown, std::vector<TensorInfo> tensors,
                                         std::map<std::string, std::string> metadata);

  // Appends bytes of the data: any number of calls per tensor. kOutOfRange beyond the last tensor.
  absl::Status Append(absl::Span<const uint8_t> bytes);
  absl::Status AppendFloats(absl::Span<const float> values);

  // kFailedPrecondition: bytes are missing. Otherwise FileReplacement::Commit.
  absl::Status Finish();

  uint64_t file_bytes() const { return header_bytes_ + data_bytes_; }

 private:
  Writer(std::string path, FileReplacement file) : path_(std::move(path)), file_(std::move(file)) {}
  static absl::StatusOr<Writer> Begin(const std::string& path, absl::StatusOr<FileReplacement> file,
                                      std::vector<TensorInfo> tensors,
                                      std::map<std::string, std::string> metadata);

  std::string path_;  // for errors
  FileReplacement file_;
  uint64_t header_bytes_ = 0;
  uint64_t data_bytes_ = 0;
  uint64_t written_ = 0;
};

// The header's bytes, length first, padded so that the data is 8-byte aligned. Sets begin and end.
absl::StatusOr<std::string> EncodeHeader(std::vector<TensorInfo>* tensors,
                                         std::map<std::string, std::string> metadata);

}  // namespace starling::safetensors

#endif  // STARLING_COMMON_SAFETENSORS_SAFETENSORS_H_
