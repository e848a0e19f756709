// A file's bytes in order, inflated if it is gzip (by its magic, not its name). Any number of gzip
// members, as the format allows.
#ifndef STARLING_WORKER_DATA_BYTE_STREAM_H_
#define STARLING_WORKER_DATA_BYTE_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/files.h"

struct z_stream_s;

namespace starling {

// Used by one thread at a time. Blocks on the disk. Errors name the path: kNotFound, kUnavailable
// (the system's error), kInvalidArgument (a truncated or corrupt gzip stream, not a regular file).
class ByteStream {
 public:
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(const std::string& path);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Fills `out` and returns the number of bytes, which is less than its size only at the end. Never
  // inflates more than `out` holds, so bounding `out` bounds a decompression bomb.
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> out);

  // The most that can still come: exact for a plain file, an upper bound (deflate's maximum ratio)
  // for gzip. Only before the first Read.
  uint64_t bytes_max() const;

  bool gzip() const { return inflate_ != nullptr; }
  const std::string& path() const { return path_; }

 private:
  ByteStream(std::string path, RegularFile file);
  absl::Status Start();
  absl::StatusOr<size_t> ReadFile(absl::Span<uint8_t> out);
  absl::StatusOr<size_t> Inflate(absl::Span<uint8_t> out);
  absl::Status Refill();

  const std::string path_;
  const RegularFile file_;
  uint64_t position_ = 0;                // the next byte of the file to read
  std::vector<uint8_t> input_;           // read, not yet inflated
  std::unique_ptr<z_stream_s> inflate_;  // gzip only
  bool file_ended_ = false;
  bool member_ended_ = false;  // between two gzip members, or after the last
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_BYTE_STREAM_H_
