// A regular file, read at any place.
#ifndef STARLING_WORKER_DATA_RANDOM_ACCESS_FILE_H_
#define STARLING_WORKER_DATA_RANDOM_ACCESS_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace starling {

// Safe from any number of threads. Errors name the path: kNotFound, kUnavailable (the system's
// error), kInvalidArgument (not a regular file, or shorter than it should be).
class RandomAccessFile {
 public:
  static absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path);
  ~RandomAccessFile();
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  // Fills `out` with the bytes from `offset` on. Blocks on the disk. kInvalidArgument: the file ends
  // before that.
  absl::Status ReadAt(uint64_t offset, absl::Span<uint8_t> out) const;

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }  // when it was opened

 private:
  RandomAccessFile(std::string path, int fd, uint64_t bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

  const std::string path_;
  const int fd_;
  const uint64_t bytes_;
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_RANDOM_ACCESS_FILE_H_
