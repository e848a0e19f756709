// Files by their descriptors: what readers and writers of whole files share. Thread-safe. Reading
// and writing block on the disk. Errors name the path.
#ifndef STARLING_COMMON_BASE_FILES_H_
#define STARLING_COMMON_BASE_FILES_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/owned_fd.h"

namespace starling {

// "cannot open /a/b: No such file or directory", from `doing`, `path` and errno. kNotFound,
// kResourceExhausted (no space is left) or kUnavailable.
absl::Status SystemError(absl::string_view doing, absl::string_view path);

struct RegularFile {
  OwnedFd fd;
  uint64_t bytes = 0;  // at the time of opening
};

// Opens for reading. SystemError, or kInvalidArgument: not a regular file.
absl::StatusOr<RegularFile> OpenRegularFile(const std::string& path);

// Reads from `offset` and returns the number of bytes, which is less than the size of `out` only at
// the file's end.
absl::StatusOr<size_t> ReadFileAt(int fd, uint64_t offset, absl::Span<uint8_t> out,
                                  const std::string& path);
// Fills `out`, which lies within the file's size. kDataLoss: the file became shorter.
absl::Status ReadWithin(int fd, uint64_t offset, absl::Span<uint8_t> out, const std::string& path);

// The whole file, which may be one of /proc. SystemError.
absl::StatusOr<std::string> ReadText(const std::string& path);

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path);

// How many entries a folder has, without "." and ".."; 0 if it cannot be read.
uint64_t CountEntries(const char* folder);

// Whether `path` is a device, a pipe or a socket, which must be written in place: renaming a
// temporary file over it would replace it. ReplaceFile does so.
bool IsSpecialFile(const std::string& path);

// The file's content becomes `parts`, one behind the other, at once or not at all: they are synced
// to a temporary file beside it, which is renamed. Links are followed: what they lead to is
// replaced; one that leads nowhere is replaced itself. A file that was there keeps its mode but not
// its owner; a new one gets what the umask leaves of 0666. A special file is written in place, and
// after an error has a part of the content. SystemError.
absl::Status ReplaceFile(const std::string& path, std::initializer_list<absl::string_view> parts);

}  // namespace starling

#endif  // STARLING_COMMON_BASE_FILES_H_
