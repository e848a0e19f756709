// Paths in a job file. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_PATHS_H_
#define STARLING_COMMON_CONFIG_PATHS_H_

#include <string>
#include <vector>

#include "common/config/job_file.h"
#include "common/config/section.h"

namespace starling::config {

// The absolute path in `key` of `section`: $VAR, ${VAR} and a leading ~/ are expanded, and relative
// paths start at the job file. On error, records it in the section and returns an empty string.
std::string ExpandPath(const Section& section, const std::string& key,
                       const JobFileOptions& options);

// The same for a list of paths, each of which may stand for several: {00000..00004} for each number
// of the range, as wide as its ends are written; *, ? and [...] for the files that match where the
// job file is read, ascending. At most kPathsMax.
std::vector<std::string> ExpandPaths(const Section& section, const std::string& key,
                                     const JobFileOptions& options);

inline constexpr size_t kPathsMax = 100'000;  // per list

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_PATHS_H_
