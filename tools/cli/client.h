// The coordinator's interface for the client's verbs. Tests fake it; grpc_client.h is the real one.
#ifndef STARLING_TOOLS_CLI_CLIENT_H_
#define STARLING_TOOLS_CLI_CLIENT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace starling::cli {

// How long verbs that follow a job go on asking a coordinator that does not answer.
inline constexpr absl::Duration kUnreachableMax = absl::Seconds(30);

// Every call has a deadline. kUnavailable says which address was not reached, for how long, with
// which last error, and what would start it. Other errors carry the coordinator's own message. Not
// thread-safe.
class Client {
 public:
  virtual ~Client() = default;

  virtual absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request) = 0;
  virtual absl::StatusOr<JobReply> GetJob(const std::string& name) = 0;
  virtual absl::StatusOr<ListJobsReply> ListJobs(const ListJobsRequest& request) = 0;  // one page
  virtual absl::StatusOr<ListWorkersReply> ListWorkers() = 0;                          // all pages
  virtual absl::StatusOr<ListShardsReply> ListShards() = 0;                            // all pages
  virtual absl::Status CancelJob(const std::string& name) = 0;
  virtual absl::Status DeleteJob(const std::string& name) = 0;
  virtual absl::StatusOr<SetPolicyReply> SetPolicy(const SetPolicyRequest& request) = 0;
  virtual absl::StatusOr<CurvesReply> Curves(const std::string& name) = 0;
  virtual absl::StatusOr<LogsReply> Logs(const LogsRequest& request) = 0;
  virtual absl::StatusOr<ExplainReply> Explain(const std::string& name) = 0;
  virtual absl::StatusOr<CreateCheckpointReply> CreateCheckpoint(
      const CreateCheckpointRequest& request) = 0;
  // All pages. `job` "": of all jobs.
  virtual absl::StatusOr<ListCheckpointsReply> ListCheckpoints(const std::string& job) = 0;
  virtual absl::Status DeleteCheckpoint(const std::string& id) = 0;
};

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_CLIENT_H_
