// Paths in a job file. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_PATHS_H_
#define STARLING_COMMON_CONFIG_PATHS_H_

#include <string>
#include <vector>

#include "common/config/job_file.h"
#include "common/config/section.h"

namespace starling::config {

// The path that `key` of `section` holds, absolute: $VAR, ${VAR} and a leading ~/ are expanded, and
// relative paths start at the job file. An error is recorded in the section, and the path is then
// empty.
std::string ExpandPath(const Section& section, const std::string& key,
                       const JobFileOptions& options);

// The same for a list of paths, of which each may stand for several: {00000..00004} for each number
// of the range, as wide as its ends are written, and *, ? and [...] for the files that match where
// the job file is read, ascending. At most kPathsMax.
std::vector<std::string> ExpandPaths(const Section& section, const std::string& key,
                                     const JobFileOptions& options);

inline constexpr size_t kPathsMax = 100'000;  // of one list

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_PATHS_H_
