#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/bundle/bench_job.h"
#include "tools/bundle/check_parts.h"
#include "tools/bundle/local_cluster.h"

namespace starling::bundle {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kMeasured = absl::Seconds(15);  // on each side
// The time limit of a net, including both sides' start and warm-up. With less time left, it is not
// started.
constexpr absl::Duration kNetPatience = absl::Seconds(65);
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(250);
constexpr uint64_t kWarmUpSteps = 10;  // as many as local_trainer

// Runs each command of the client in a process and returns its output.
class Client {
 public:
  Client(const Site& site, std::string address) : site_(site), address_(std::move(address)) {}

  absl::StatusOr<std::string> Run(std::vector<std::string> command) {
    const std::string log = absl::StrCat("client-", ++commands_);
    command.insert(command.begin(), "starling");
    command.insert(command.end(), {"--coordinator", address_});
    return bundle::Run(site_, log, command);
  }

  absl::StatusOr<Json> Ask(std::vector<std::string> command) {
    command.insert(command.end(), {"-o", "json"});
    STARLING_ASSIGN_OR_RETURN(const std::string text, Run(command));
    Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_discarded()) return json;
    return absl::InternalError(absl::StrCat("expected JSON of the client, got: ", text));
  }

 private:
  const Site& site_;
  const std::string address_;
  int commands_ = 0;
};

// Global batches that the job has finished.
absl::StatusOr<uint64_t> Steps(Client& client, const std::string& job) {
  STARLING_ASSIGN_OR_RETURN(const Json about, client.Ask({"describe", "job", job}));
  const Json& status = about.value("status", Json::object());
  const std::string state = status.value("state", "");
  if (state == "FAILED" || state == "CANCELLED" || state == "SUCCEEDED") {
    return absl::InternalError(
        absl::StrCat("the job ", job, " is ", state, ": ", status.value("reason", "")));
  }
  const Json step = status.value("step", Json(0));
  uint64_t steps = 0;
  if (step.is_number()) return step.get<uint64_t>();
  if (step.is_string() && absl::SimpleAtoi(step.get<std::string>(), &steps)) return steps;
  return absl::InternalError(absl::StrCat("expected a step in the status, got ", step.dump()));
}

// The moment at which the job was seen to have done `steps`.
struct Seen {
  uint64_t steps;
  absl::Time when;
};
absl::StatusOr<Seen> WaitForStep(const Site& site, Client& client, const std::string& job,
                                 uint64_t at_least) {
  for (;;) {
    STARLING_ASSIGN_OR_RETURN(const uint64_t steps, Steps(client, job));
    if (steps >= at_least) return Seen{steps, absl::Now()};
    if (absl::Now() > site.deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the job ", job, " did not get to step ", at_least, " in time"));
    }
    absl::SleepFor(kBetweenLooks);
  }
}

// Samples per second of a cluster's job; ends the job. Measured between two observed changes of the
// step, so the coordinator's delay affects both ends alike.
absl::StatusOr<double> ClusterRate(const Site& site, Client& client, const BenchJob& job) {
  STARLING_RETURN_IF_ERROR(client.Run({"submit", "-f", job.file}).status());
  STARLING_ASSIGN_OR_RETURN(Seen first, WaitForStep(site, client, job.name, kWarmUpSteps));
  STARLING_ASSIGN_OR_RETURN(first, WaitForStep(site, client, job.name, first.steps + 1));
  absl::SleepFor(kMeasured);
  STARLING_ASSIGN_OR_RETURN(const uint64_t then, Steps(client, job.name));
  STARLING_ASSIGN_OR_RETURN(const Seen last, WaitForStep(site, client, job.name, then + 1));
  STARLING_RETURN_IF_ERROR(client.Run({"cancel", job.name}).status());
  for (;;) {  // until the worker has freed its GPU memory
    STARLING_ASSIGN_OR_RETURN(const Json workers, client.Ask({"get", "workers"}));
    bool idle = true;
    for (const Json& worker : workers) idle = idle && worker.value("state", "") == "idle";
    if (idle) break;
    if (absl::Now() > site.deadline) return absl::DeadlineExceededError("no worker became idle");
    absl::SleepFor(kBetweenLooks);
  }
  return static_cast<double>((last.steps - first.steps) * job.batch) /
         absl::ToDoubleSeconds(last.when - first.when);
}

// Samples per second of the same job without servers.
absl::StatusOr<double> LocalRate(const Site& site, const BenchJob& job, double expected) {
  const std::string log = absl::StrCat("local-", job.name);
  const auto steps = static_cast<int64_t>(expected * absl::ToDoubleSeconds(kMeasured) / job.batch);
  STARLING_ASSIGN_OR_RETURN(
      const std::string said,
      Run(site, log,
          {"local_trainer", job.file, "gpu", absl::StrCat(std::max<int64_t>(5, steps))}));
  double rate = 0;
  const std::string text = Find(said, "samples_per_second=([0-9.]+)");
  if (absl::SimpleAtod(text, &rate) && rate > 0) return rate;
  return absl::InternalError(absl::StrCat(log, " says no samples_per_second"));
}

absl::StatusOr<Outcome> Compare(const Site& site, const std::vector<std::string>& nets) {
  const std::string folder = absl::StrCat(site.folder, "/servers");
  STARLING_RETURN_IF_ERROR(MakeFolder(folder));
  LocalCluster cluster(site, "servers");
  STARLING_ASSIGN_OR_RETURN(const std::string address, cluster.Begin(folder));
  Client client(site, address);
  std::vector<std::string> ratios;
  Outcome outcome = {Outcome::kPassed, ""};
  for (const std::string& net : nets) {
    if (absl::Now() + kNetPatience > site.deadline) {
      ratios.push_back(absl::StrCat(net, " NOT RUN, no time for it"));
      continue;
    }
    STARLING_ASSIGN_OR_RETURN(const BenchJob job, WriteBenchJob(net, folder));
    STARLING_ASSIGN_OR_RETURN(const double servers, ClusterRate(site, client, job));
    STARLING_ASSIGN_OR_RETURN(const double local, LocalRate(site, job, servers));
    outcome.figures.push_back({.name = absl::StrCat("servers-", net, "-bf16"),
                               .values = {{"servers", absl::StrFormat("%.1f", servers)},
                                          {"local", absl::StrFormat("%.1f", local)},
                                          {"ratio", absl::StrFormat("%.3f", servers / local)}}});
    Print(outcome.figures.back());
    ratios.push_back(absl::StrFormat("%s %.3f", net, servers / local));
  }
  outcome.text = absl::StrCat("samples/s with two shards at staleness 1, of the local update's: ",
                              absl::StrJoin(ratios, ", "));
  return outcome;
}

}  // namespace

Outcome MeasureServers(const Site& site, const std::vector<std::string>& nets) {
  if (absl::Now() + kNetPatience > site.deadline) return {Outcome::kNotRun, "no time for it"};
  absl::StatusOr<Outcome> outcome =
      Compare(site, nets.empty() ? std::vector<std::string>{"resnet50", "gpt2"} : nets);
  if (outcome.ok()) return *std::move(outcome);
  return {Outcome::kFailed, std::string(outcome.status().message())};
}

}  // namespace starling::bundle
