// The client's exit codes: part of its interface, for scripts.
#ifndef STARLING_TOOLS_CLI_EXIT_CODE_H_
#define STARLING_TOOLS_CLI_EXIT_CODE_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace starling::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitError = 1,
  kExitUsage = 2,  // wrong arguments, or an invalid job
  kExitJobFailed = 3,
  kExitJobCancelled = 4,
  kExitNotFound = 5,
  kExitUnreachable = 6,  // the coordinator is unreachable
  kExitTimeout = 7,
};

// For an error: kInvalidArgument, kNotFound and kUnavailable have their own codes, others
// kExitError.
int ExitCodeFor(const absl::Status& status);

// The error as one of this machine, not of a job or the coordinator that is not found: kExitError,
// or kExitUsage for kInvalidArgument.
absl::Status Local(const absl::Status& status);

// For a job that has ended; kExitError for a state that is not an end.
int ExitCodeFor(JobState end);

// SUCCEEDED, FAILED or CANCELLED.
bool IsEnd(JobState state);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_EXIT_CODE_H_
