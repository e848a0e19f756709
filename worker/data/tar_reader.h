// Lists the members of a tar file by reading only their headers.
#ifndef STARLING_WORKER_DATA_TAR_READER_H_
#define STARLING_WORKER_DATA_TAR_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "worker/data/random_access_file.h"

namespace starling {

struct TarMember {
  std::string name;
  uint64_t offset = 0;  // of its first byte, in the file
  uint64_t bytes = 0;
};

// Mostly sequential reads of a file, a block at a time, but small reads after a jump. Used by one
// thread at a time.
class BlockReader {
 public:
  explicit BlockReader(const RandomAccessFile& file) : file_(file) {}

  // `count` bytes (at most kBlockBytes) from `offset` on, valid until the next call. Errors as
  // RandomAccessFile::ReadAt.
  absl::StatusOr<absl::Span<const uint8_t>> At(uint64_t offset, size_t count);

  static constexpr size_t kBlockBytes = 64 << 10;
  static constexpr size_t kHeaderBytes = 4 << 10;  // read when not continuing the last block

 private:
  const RandomAccessFile& file_;
  uint64_t begin_ = 0;
  std::vector<uint8_t> block_;
};

// Used by one thread at a time. Supports ustar, with GNU's long names and sizes and pax path and
// size. Refuses, naming the file and the offset: a wrong checksum, a member beyond the file's end,
// no end mark (a truncated file), links and devices, a name of more than 4 KiB.
class TarReader {
 public:
  TarReader(const RandomAccessFile& file, BlockReader* reader) : file_(file), reader_(*reader) {}

  // The next regular file, or nullopt at the end. Directories are skipped.
  absl::StatusOr<absl::optional<TarMember>> Next();

 private:
  struct Header {
    TarMember member;
    char type = '0';
    bool end = false;
  };
  absl::StatusOr<Header> ReadHeader();
  absl::StatusOr<std::string> ReadExtension(const TarMember& member);
  absl::Status TakePax(const std::string& records);
  template <typename... Args>
  absl::Status Error(const Args&... what) const;

  const RandomAccessFile& file_;
  BlockReader& reader_;
  uint64_t at_ = 0;
  // What an extension header says about the next member.
  std::string long_name_;
  absl::optional<uint64_t> long_bytes_;
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_TAR_READER_H_
