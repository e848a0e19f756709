// From a job file's text to a JobSpec, strictly: docs/job_file.md, printed by `starling schema`.
#ifndef STARLING_COMMON_CONFIG_JOB_FILE_H_
#define STARLING_COMMON_CONFIG_JOB_FILE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "proto/job.pb.h"

namespace starling::config {

inline constexpr uint32_t kGuardWindowMax = 10'000;      // batches
inline constexpr uint32_t kRecomputeBlocksMax = 10'000;  // more than any model has

struct JobFileOptions {
  std::string directory;  // relative data paths start here; absolute
  // Looks up $VAR in data paths, and HOME for ~; nullopt: unset, an error that names it.
  std::function<absl::optional<std::string>(const std::string&)> environment;
  // The files that match a pattern of *, ? and [...], in any order, for lists of paths. Null: lists
  // with patterns are refused.
  std::function<std::vector<std::string>(const std::string& pattern)> matching_files;
  // "a.b=value", from the command line: replaces or adds. Paths start at the root or at `spec`;
  // value is YAML. Inside a one-of the named alternative replaces the other.
  std::vector<std::string> overrides;
};

// kInvalidArgument names line, key, what was expected and what came. The model stays a ModelSource:
// the coordinator resolves it when the data's shape is known. Reads no data file. Thread-safe.
absl::StatusOr<JobSpec> ParseJobFile(const std::string& text, const JobFileOptions& options);

// Checks that need no file: ranges and relations. The coordinator runs them again on what it is
// sent.
absl::Status ValidateSpec(const JobSpec& spec);

// What the job says and nothing reads, a sentence each: most likely it was meant otherwise.
std::vector<std::string> UnusedKeys(const JobSpec& spec);

// Whether gradients can be clipped so under that policy. kInvalidArgument says why not.
absl::Status CheckClip(const Clip& clip, Policy::Kind policy);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_JOB_FILE_H_
