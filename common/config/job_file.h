// Parses a job file into a JobSpec, strictly: docs/job_file.md, printed by `starling schema`.
#ifndef STARLING_COMMON_CONFIG_JOB_FILE_H_
#define STARLING_COMMON_CONFIG_JOB_FILE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace starling::config {

inline constexpr uint32_t kGuardWindowMax = 10'000;      // batches
inline constexpr uint32_t kRecomputeBlocksMax = 10'000;  // more than any model has

struct JobFileOptions {
  std::string directory;  // where relative data paths start; absolute
  // Looks up $VAR in data paths, and HOME for ~. nullopt: unset; the error names the variable.
  std::function<std::optional<std::string>(const std::string&)> environment;
  // The files that match a pattern of *, ? and [...], in any order, for lists of paths. Null:
  // patterns are refused.
  std::function<std::vector<std::string>(const std::string& pattern)> matching_files;
  // "a.b=value" from the command line: replaces or adds. Paths start at the root or at `spec`; the
  // value is YAML. Setting one alternative of a one-of removes the other.
  std::vector<std::string> overrides;
};

// kInvalidArgument names the line, the key, what was expected and what came. The model stays a
// ModelSource: the coordinator resolves it once the data's shape is known. Reads no data file.
// Thread-safe.
absl::StatusOr<JobSpec> ParseJobFile(const std::string& text, const JobFileOptions& options);

// Checks that need no file: ranges and relations. The coordinator repeats them on every spec that
// it receives. kInvalidArgument begins with the key, whose path starts at the file's root or at
// `spec`.
absl::Status ValidateSpec(const JobSpec& spec);

// One sentence for each key that the job sets and nothing reads: most likely a mistake.
std::vector<std::string> UnusedKeys(const JobSpec& spec);

// Whether the policy supports this gradient clipping. kInvalidArgument says why not.
absl::Status CheckClip(const Clip& clip, Policy::Kind policy);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_JOB_FILE_H_
