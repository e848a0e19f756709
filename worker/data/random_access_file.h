// A regular file, read at any place, or kept in memory.
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

namespace starling {

// Safe from any number of threads, but for Keep. Errors name the path: kNotFound, kUnavailable (the
// system's error), kInvalidArgument (not a regular file, or shorter than it should be).
class RandomAccessFile {
 public:
  static absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path);
  ~RandomAccessFile();
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  // Fills `out` with the bytes from `offset` on. Blocks on the disk. kInvalidArgument: the file
  // ends before that.
  absl::Status ReadAt(uint64_t offset, absl::Span<uint8_t> out) const;

  // Reads the file into memory, and closes it: it is served from there. Before others use it. A
  // small read at a place of its own costs a call into the system, several microseconds on some
  // machines.
  absl::Status Keep();

  // Bytes of a file that is kept, valid as long as this; none where it is not, or ends before that.
  std::optional<absl::Span<const uint8_t>> Kept(uint64_t offset, uint64_t bytes) const;

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }  // when it was opened

 private:
  RandomAccessFile(std::string path, int fd, uint64_t bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

  void Close();
  absl::Status Truncated(uint64_t offset, size_t expected, size_t got) const;

  const std::string path_;
  int fd_;  // -1: closed
  const uint64_t bytes_;
  bool is_kept_ = false;
  std::vector<uint8_t> kept_;
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_RANDOM_ACCESS_FILE_H_
