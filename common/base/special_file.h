// Files that are not on a disk.
#ifndef STARLING_COMMON_BASE_SPECIAL_FILE_H_
#define STARLING_COMMON_BASE_SPECIAL_FILE_H_

#include <sys/stat.h>

#include <string>

namespace starling {

// Whether `path` is a device, a pipe or a socket, which must be written in place: renaming a
// temporary file over it would replace it.
inline bool IsSpecialFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_SPECIAL_FILE_H_
