// A cluster on this machine, of the bundle's programs.
#ifndef STARLING_TOOLS_BUNDLE_LOCAL_CLUSTER_H_
#define STARLING_TOOLS_BUNDLE_LOCAL_CLUSTER_H_

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bundle/check_parts.h"

namespace starling::bundle {

// Runs `starling local up` in the foreground, with two shards and a worker; the destructor stops
// all its processes. Main thread only.
class LocalCluster {
 public:
  // `log`: the name of its output's file.
  LocalCluster(const Site& site, std::string log) : site_(site), log_(std::move(log)) {}
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;
  ~LocalCluster();

  // Call once; `folder` exists and is for the cluster's files. Returns the coordinator's address
  // when all daemons have registered. kInternal: with its last output.
  absl::StatusOr<std::string> Begin(const std::string& folder);

 private:
  const Site& site_;
  const std::string log_;
  pid_t pid_ = -1;
};

absl::Status MakeFolder(const std::string& folder);

// The first match of the pattern's first group; empty: none.
std::string Find(const std::string& text, const char* pattern);

}  // namespace starling::bundle

#endif  // STARLING_TOOLS_BUNDLE_LOCAL_CLUSTER_H_
