#include "tools/bundle/local_cluster.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <regex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "tools/local/process.h"

namespace starling::bundle {
namespace {

constexpr absl::Duration kClusterStopPatience = absl::Seconds(15);

// Links the daemons by their names, as `starling local up --bin-dir` expects them.
absl::Status LinkDaemons(const std::string& program, const std::string& folder) {
  for (const char* name : {"starling-coordinator", "starling-ps", "starling-worker"}) {
    if (symlink(program.c_str(), absl::StrCat(folder, "/", name).c_str()) != 0) {
      return SystemError("make a link in", folder);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeFolder(const std::string& folder) {
  return mkdir(folder.c_str(), 0755) == 0 ? absl::OkStatus() : SystemError("make", folder);
}

std::string Find(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

LocalCluster::~LocalCluster() {
  if (pid_ <= 0) return;
  kill(pid_, SIGTERM);
  if (!WaitFor(pid_, absl::Now() + kClusterStopPatience).ok()) {
    std::printf("  the cluster did not stop within %s, and was killed\n",
                absl::FormatDuration(kClusterStopPatience).c_str());
  }
}

absl::StatusOr<std::string> LocalCluster::Begin(const std::string& folder) {
  const std::string programs = absl::StrCat(folder, "/programs");
  STARLING_RETURN_IF_ERROR(MakeFolder(programs));
  STARLING_RETURN_IF_ERROR(LinkDaemons(site_.program, programs));
  STARLING_ASSIGN_OR_RETURN(
      pid_, Start(site_, log_,
                  {"starling", "local", "up", "--shards", "2", "--workers", "1", "--no-restart",
                   "--bin-dir", programs, "--state", absl::StrCat(folder, "/state")}));
  for (;;) {
    const std::string address = Find(ReadFile(LogPath(site_, log_)), "address=(\\S+)\n");
    if (!address.empty()) return address;
    int status = 0;
    std::string why = "was not there in time";
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      why = local::ExitText(status);
    } else if (absl::Now() < site_.deadline) {
      absl::SleepFor(absl::Milliseconds(50));
      continue;
    }
    return WithLastWords(site_, log_, absl::StrCat("the cluster ", why));
  }
}

}  // namespace starling::bundle
