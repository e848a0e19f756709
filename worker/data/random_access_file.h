// A regular file, read at any offset, or kept in memory.
#ifndef STARLING_WORKER_DATA_RANDOM_ACCESS_FILE_H_
#define STARLING_WORKER_DATA_RANDOM_ACCESS_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/files.h"

namespace starling {

// Safe from any number of threads, except Keep. Errors name the path: kNotFound, kUnavailable (the
// system's error), kInvalidArgument (not a regular file, or shorter than expected).
class RandomAccessFile {
 public:
  static absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path);
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  // Fills `out` with the bytes from `offset` on. Blocks on the disk. kInvalidArgument: the file
  // ends earlier.
  absl::Status ReadAt(uint64_t offset, absl::Span<uint8_t> out) const;

  // Reads the file into memory and closes it; reads are served from there. Call before other
  // threads use it. Avoids a system call per small random read, several microseconds on some
  // machines.
  absl::Status Keep();

  // Bytes of a kept file, valid as long as this; nullopt if it is not kept or ends earlier.
  std::optional<absl::Span<const uint8_t>> Kept(uint64_t offset, uint64_t bytes) const;

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return file_.bytes; }  // at the time of opening

 private:
  RandomAccessFile(std::string path, RegularFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status Truncated(uint64_t offset, size_t expected, size_t got) const;

  const std::string path_;
  RegularFile file_;  // closed if it is kept
  bool is_kept_ = false;
  std::vector<uint8_t> kept_;
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_RANDOM_ACCESS_FILE_H_
