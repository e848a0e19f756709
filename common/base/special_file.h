// Files that are no places on a disk.
#ifndef STARLING_COMMON_BASE_SPECIAL_FILE_H_
#define STARLING_COMMON_BASE_SPECIAL_FILE_H_

#include <sys/stat.h>

#include <string>

namespace starling {

// Whether a device, a pipe or a socket is there: it is written in place. A file that is written
// beside it and renamed would replace it.
inline bool IsSpecialFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace starling

#endif  // STARLING_COMMON_BASE_SPECIAL_FILE_H_
