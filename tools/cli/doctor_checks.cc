#include "tools/cli/doctor_checks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/cli/output.h"

namespace starling::cli {
namespace {

constexpr double kClockAheadMax = 0.25;  // seconds, beyond the measurement's error
constexpr double kDelayMax = 0.05;       // seconds, round trip
constexpr double kFarDelay = 0.005;      // from here on congestion control matters
constexpr double kRateMin = 2e6;         // bytes a second
constexpr uint64_t kAvailableBytesMin = 256 << 20;
constexpr double kAvailableShareMin = 0.03;
constexpr uint64_t kOpenFilesMin = 1024;
constexpr double kOpenFilesShareMax = 0.8;

class Checks {
 public:
  void Add(const char* check, const std::string& subject, bool ok, std::string text,
           const std::string& remedy) {
    checks_.push_back({check, subject, ok, std::move(text), ok ? "" : remedy});
  }
  std::vector<Check> Take() {
    std::stable_sort(checks_.begin(), checks_.end(),
                     [](const Check& a, const Check& b) { return a.ok < b.ok; });
    return std::move(checks_);
  }

 private:
  std::vector<Check> checks_;
};

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:");
}

std::string RateText(double bytes_per_second) {
  return absl::StrCat(BytesText(static_cast<uint64_t>(bytes_per_second)), "/s");
}

void CheckMemory(const std::string& subject, const NodeReply& node, Checks& checks) {
  if (node.memory_bytes() == 0 || node.available_bytes() == 0) return;  // unknown
  const bool ok = node.available_bytes() >= kAvailableBytesMin &&
                  static_cast<double>(node.available_bytes()) >=
                      kAvailableShareMin * static_cast<double>(node.memory_bytes());
  checks.Add("memory", subject, ok,
             absl::StrCat(BytesText(node.available_bytes()), " of ", BytesText(node.memory_bytes()),
                          " are available"),
             "end what else uses it, or raise the container's limit");
}

void CheckFiles(const std::string& subject, const NodeReply& node, Checks& checks) {
  if (node.open_files_max() == 0) return;
  const bool ok = node.open_files_max() >= kOpenFilesMin &&
                  static_cast<double>(node.open_files()) <=
                      kOpenFilesShareMax * static_cast<double>(node.open_files_max());
  checks.Add(
      "open-files", subject, ok,
      absl::StrCat(node.open_files(), " files are open of ", node.open_files_max()),
      "raise the limit before the daemon starts: `ulimit -n 65536`, or LimitNOFILE of its unit");
}

// A machine with a GPU must have everything that using it needs.
void CheckGpu(const std::string& subject, const NodeReply& node, Checks& checks) {
  if (node.gpus().empty() && node.driver().empty()) return;
  std::vector<std::string> missing;
  if (node.gpus().empty()) missing.push_back("a GPU");
  if (node.driver().empty()) missing.push_back("the driver");
  if (node.cuda().empty()) missing.push_back("the CUDA runtime (libcudart)");
  if (node.cudnn().empty()) missing.push_back("cuDNN (libcudnn)");
  std::string text =
      absl::StrCat(node.gpus().empty() ? std::string("no GPU") : absl::StrJoin(node.gpus(), ", "),
                   "; driver ", node.driver().empty() ? "-" : node.driver(), ", CUDA ",
                   node.cuda().empty() ? "-" : node.cuda(), ", cuDNN ",
                   node.cudnn().empty() ? "-" : node.cudnn());
  checks.Add("gpu", subject, missing.empty(), std::move(text),
             absl::StrCat("jobs for GPUs need ", absl::StrJoin(missing, " and "),
                          " as well: install it where the dynamic linker finds it"));
}

template <typename Status>
void CheckLost(const char* role, const Status& daemon, const std::string& what, Checks& checks) {
  if (daemon.state() != "lost") return;
  checks.Add("lost", daemon.name(), false,
             absl::StrCat("the ", role, " at ", daemon.address(), " is lost: it last reported ",
                          DurationText(daemon.seconds_since_report()), " ago", what),
             absl::StrCat("see its log, and start it again under the name ", daemon.name()));
}

// What the coordinator says of a shard. What is as it should be is not listed.
void CheckState(const ShardStatus& shard, Checks& checks) {
  const uint32_t alone = shard.partitions();
  CheckLost("shard", shard,
            alone == 0 ? "; no job lacks values because of it"
                       : absl::StrCat("; the values of ", alone,
                                      alone == 1 ? " partition that had" : " partitions that had",
                                      " no other copy are gone"),
            checks);
  if (shard.state() == "silent") {
    checks.Add("silent", shard.name(), false,
               absl::StrCat("the coordinator has not heard of it for ",
                            DurationText(shard.seconds_since_report()),
                            "; other shards lead what they have copies of"),
               "see its log and whether its machine is busy or cut off: it is lost if this lasts");
  }
  if (!shard.trouble().empty()) {
    checks.Add("trouble", shard.name(), false, shard.trouble(),
               "see its log; a folder of checkpoints must be mounted there, and the shard started "
               "with --checkpoint-root and its path");
  }
}

void CheckState(const WorkerStatus& worker, Checks& checks) {
  CheckLost("worker", worker, "", checks);
  if (worker.state() == "quarantined") {
    checks.Add("quarantined", worker.name(), false, worker.trouble(),
               "look for broken memory or a broken GPU on its machine, then start it again: no job "
               "uses it before");
  } else if (!worker.trouble().empty()) {
    checks.Add("trouble", worker.name(), false, worker.trouble(), "see its log");
  }
}

void CheckReach(const SurveyedDaemon& daemon, Checks& checks) {
  checks.Add("reach", daemon.name, daemon.reached.ok(),
             daemon.reached.ok() ? absl::StrCat("answers at ", daemon.address)
                                 : std::string(daemon.reached.message()),
             "see that it runs, and that nothing between here and there stops the connection");
  if (daemon.role == COORDINATOR) return;
  const std::string error =
      !daemon.asked_back.ok() ? std::string(daemon.asked_back.message()) : daemon.back.error();
  checks.Add("reach-back", daemon.name, error.empty(),
             error.empty()
                 ? absl::StrFormat("the coordinator reaches it, in %.2f ms there and back",
                                   1e3 * daemon.back.delay_seconds())
                 : absl::StrCat("from the coordinator: ", error),
             "give it an --advertise-address that others can reach, and open its port to them");
}

void CheckAddress(const SurveyedDaemon& daemon, const std::set<std::string>& hosts,
                  Checks& checks) {
  const std::string& advertised = daemon.node.advertised_address();
  if (advertised.empty()) return;
  const bool same = daemon.role == COORDINATOR || advertised == daemon.address;
  const bool alone = IsLoopback(advertised) && hosts.size() > 1;
  const bool unbound = !IsLoopback(advertised) && IsLoopback(daemon.node.bound_address());
  std::string text =
      absl::StrCat("listens on ", daemon.node.bound_address(), ", advertises ", advertised);
  if (!same) absl::StrAppend(&text, ", but the coordinator tells others ", daemon.address);
  if (alone)
    absl::StrAppend(&text, ", which other machines (", hosts.size(), " in all) cannot reach");
  if (unbound) absl::StrAppend(&text, ", and listens to its own machine only");
  checks.Add("address", daemon.name, same && !alone && !unbound, std::move(text),
             "set --listen and --advertise-address so that the other machines reach it");
}

void CheckClock(const SurveyedDaemon& daemon, Checks& checks) {
  if (daemon.role == COORDINATOR || !daemon.asked_back.ok() || !daemon.back.error().empty()) return;
  const double ahead = daemon.back.clock_ahead_seconds();
  const bool ok = std::abs(ahead) - daemon.back.delay_seconds() / 2 <= kClockAheadMax;
  checks.Add("clock", daemon.name, ok,
             absl::StrFormat("its clock is %.3f s %s the coordinator's", std::abs(ahead),
                             ahead >= 0 ? "ahead of" : "behind"),
             "run a time service (chrony, systemd-timesyncd) on both machines");
}

// Of what there should be one in the cluster: releases, and the instruction sets of workers, on
// which the bits of BSP depend.
void CheckClasses(const std::vector<SurveyedDaemon>& daemons, Checks& checks) {
  std::map<std::string, std::vector<std::string>> releases, instruction_sets;
  for (const SurveyedDaemon& daemon : daemons) {
    if (!daemon.reached.ok()) continue;
    releases[daemon.info.version().version()].push_back(daemon.name);
    if (daemon.role != WORKER) continue;
    instruction_sets[daemon.info.instruction_set()].push_back(
        daemon.node.cpu().empty() ? daemon.name
                                  : absl::StrCat(daemon.name, " (", daemon.node.cpu(), ")"));
  }
  const auto add = [&](const char* check, const auto& classes, const char* remedy) {
    std::vector<std::string> parts;
    for (const auto& [name, of] : classes)
      parts.push_back(absl::StrCat(name, ": ", absl::StrJoin(of, ", ")));
    checks.Add(check, "cluster", classes.size() <= 1, absl::StrJoin(parts, "; "), remedy);
  };
  add("version", releases, "install one release everywhere");
  if (instruction_sets.empty()) return;
  add("cpu-class", instruction_sets,
      "for results that are bitwise the same, take workers of one class only");
}

// Gradients go one way and values the other: each end uses its own congestion control.
void CheckCongestionControl(const SurveyedPath& path,
                            const std::map<std::string, std::string>& congestion, Checks& checks) {
  bool ok = true;
  std::vector<std::string> ends;
  for (const std::string& end : {path.from, path.to}) {
    const auto control = congestion.find(end);
    if (control == congestion.end()) continue;
    ok = ok && control->second == "bbr";
    ends.push_back(absl::StrCat(end, " uses ", control->second));
  }
  if (ends.empty()) return;
  checks.Add("congestion-control", absl::StrCat(path.from, " -> ", path.to), ok,
             absl::StrCat(absl::StrJoin(ends, ", "), " on a long way"),
             "`sysctl net.ipv4.tcp_congestion_control=bbr` on both machines");
}

void CheckPath(const SurveyedPath& path, const std::map<std::string, std::string>& congestion,
               Checks& checks) {
  const std::string subject = absl::StrCat(path.from, " -> ", path.to);
  const MeasureReply& measured = path.measured;
  const std::string error = path.asked.ok() ? measured.error() : std::string(path.asked.message());
  if (!error.empty()) {
    checks.Add("path", subject, false, error, "open the shard's port to the worker's machine");
    return;
  }
  const double rate = std::min(measured.to_bytes_per_second(), measured.from_bytes_per_second());
  checks.Add("bandwidth", subject, rate >= kRateMin,
             absl::StrCat(RateText(measured.to_bytes_per_second()), " there, ",
                          RateText(measured.from_bytes_per_second()), " back"),
             "look for what else uses the network, and for its rate limits");
  const double delay = measured.delay_seconds();
  checks.Add("delay", subject, delay <= kDelayMax,
             absl::StrFormat("%.2f ms there and back", 1e3 * delay),
             "put workers and shards nearer to each other");
  if (delay >= kFarDelay) CheckCongestionControl(path, congestion, checks);
}

}  // namespace

std::vector<Check> CheckNode(const std::string& subject, const NodeReply& node) {
  Checks checks;
  CheckMemory(subject, node, checks);
  CheckFiles(subject, node, checks);
  CheckGpu(subject, node, checks);
  return checks.Take();
}

std::vector<Check> NodeRows(const NodeReply& node, const std::string& instruction_set) {
  const auto known = [](const std::string& text) { return text.empty() ? "not known" : text; };
  Checks checks;
  checks.Add("cpu", node.host(), true,
             absl::StrCat(known(node.cpu()), ", ", node.cores(), " cores, instruction set ",
                          known(instruction_set)),
             "");
  checks.Add("system", node.host(), true,
             absl::StrCat("kernel ", known(node.kernel()), ", congestion control ",
                          known(node.congestion_control())),
             "");
  return checks.Take();
}

std::vector<Check> CheckSurvey(const Survey& survey) {
  Checks checks;
  std::set<std::string> hosts;
  std::map<std::string, std::string> congestion;
  for (const SurveyedDaemon& daemon : survey.daemons) {
    if (!daemon.reached.ok()) continue;
    hosts.insert(daemon.node.host());
    if (!daemon.node.congestion_control().empty()) {
      congestion[daemon.name] = daemon.node.congestion_control();
    }
  }
  for (const ShardStatus& shard : survey.shards) CheckState(shard, checks);
  for (const WorkerStatus& worker : survey.workers) CheckState(worker, checks);
  for (const SurveyedDaemon& daemon : survey.daemons) {
    CheckReach(daemon, checks);
    CheckClock(daemon, checks);
    if (!daemon.reached.ok()) continue;
    CheckAddress(daemon, hosts, checks);
    for (const Check& check : CheckNode(daemon.name, daemon.node)) {
      checks.Add(check.check.c_str(), check.subject, check.ok, check.text, check.remedy);
    }
  }
  CheckClasses(survey.daemons, checks);
  for (const SurveyedPath& path : survey.paths) CheckPath(path, congestion, checks);
  return checks.Take();
}

}  // namespace starling::cli
