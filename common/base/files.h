// Files by their descriptors: what readers and writers of whole files share. Thread-safe. Reading
// and writing block on the disk. Errors name the path.
#ifndef STARLING_COMMON_BASE_FILES_H_
#define STARLING_COMMON_BASE_FILES_H_

#include <sys/types.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
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

// A file whose content is replaced at once or not at all: it is written to a temporary file beside
// it, which Commit syncs and renames. If destroyed before, nothing remains. A file that was there
// keeps its permissions but not its owner; a new one gets what the umask leaves of 0666. Not
// thread-safe.
class FileReplacement {
 public:
  // Follows links: what they lead to is replaced; one that leads nowhere is replaced itself. A
  // device, a pipe or a socket is written in place, and after an error has a part of the content.
  // kInvalidArgument: `path` is empty or a folder. SystemError.
  static absl::StatusOr<FileReplacement> Begin(const std::string& path);

  // The file `name` in `folder`, which is open for reading. Follows no link, neither for it nor for
  // the temporary file, which is called NAME.partial; removes one that an earlier process left.
  // kFailedPrecondition: something else than a file has that name. `shown`: the path, for errors.
  static absl::StatusOr<FileReplacement> BeginIn(OwnedFd folder, const std::string& name,
                                                 const std::string& shown);

  FileReplacement(FileReplacement&&) = default;
  FileReplacement& operator=(FileReplacement&&) = delete;
  ~FileReplacement();

  absl::Status Write(absl::string_view bytes);  // appends
  absl::Status Commit();                        // syncs the file, renames it, syncs the folder

 private:
  FileReplacement(OwnedFd folder, std::string shown, std::string name, std::string temporary,
                  std::optional<mode_t> mode, OwnedFd file);

  OwnedFd folder_;     // contains `name_` and `temporary_`; none: the file is written in place
  std::string shown_;  // for errors
  std::string name_;
  std::string temporary_;
  std::optional<mode_t> mode_;  // of the file that was there
  OwnedFd file_;
};

// The file's content becomes `parts`, one behind the other. FileReplacement::Begin's errors.
absl::Status ReplaceFile(const std::string& path, std::initializer_list<absl::string_view> parts);

}  // namespace starling

#endif  // STARLING_COMMON_BASE_FILES_H_
