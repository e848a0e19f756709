// What the client's exit status means: part of its interface, for scripts.
#ifndef STARLING_TOOLS_CLI_EXIT_CODE_H_
#define STARLING_TOOLS_CLI_EXIT_CODE_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace starling::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitError = 1,
  kExitUsage = 2,  // wrong arguments, or a job that is not valid
  kExitJobFailed = 3,
  kExitJobCancelled = 4,
  kExitNotFound = 5,
  kExitUnreachable = 6,  // the coordinator
  kExitTimeout = 7,
};

// Of an error: kInvalidArgument, kNotFound and kUnavailable have their own, others are kExitError.
int ExitCodeFor(const absl::Status& status);

// Of a job that ended: kExitError for a state that is not an end.
int ExitCodeFor(JobState end);

// SUCCEEDED, FAILED or CANCELLED.
bool IsEnd(JobState state);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_EXIT_CODE_H_
