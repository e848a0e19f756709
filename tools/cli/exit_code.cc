#include "tools/cli/exit_code.h"

namespace starling::cli {

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return kExitOk;
    case absl::StatusCode::kInvalidArgument: return kExitUsage;
    case absl::StatusCode::kNotFound: return kExitNotFound;
    case absl::StatusCode::kUnavailable: return kExitUnreachable;
    default: return kExitError;
  }
}

absl::Status Local(const absl::Status& status) {
  if (status.ok() || absl::IsInvalidArgument(status)) return status;
  return absl::InternalError(status.message());
}

int ExitCodeFor(JobState end) {
  switch (end) {
    case SUCCEEDED: return kExitOk;
    case FAILED: return kExitJobFailed;
    case CANCELLED: return kExitJobCancelled;
    default: return kExitError;
  }
}

bool IsEnd(JobState state) { return state == SUCCEEDED || state == FAILED || state == CANCELLED; }

}  // namespace starling::cli
