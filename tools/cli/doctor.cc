// starling doctor: whether machines and network are fit for a job.
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "nlohmann/json.hpp"
#include "tools/cli/command_line.h"
#include "tools/cli/doctor_checks.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

constexpr size_t kPathsMax = 256;
constexpr size_t kDaemonsAtOnce = 8;
constexpr size_t kMeasurementsAtOnce = 2;  // a daemon's limit
constexpr size_t kWorkersAtOnce = 4;
constexpr uint64_t kPathBytes = 4 << 20;  // in each direction
constexpr double kPathSeconds = 5;

// Calls run(i) for i below `count`, `at_once` at a time.
void InParallel(size_t count, size_t at_once, const std::function<void(size_t)>& run) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < std::min(at_once, count); ++thread) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < count; i = next++) run(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

MeasureRequest Measurement(const std::string& address, uint64_t bytes) {
  MeasureRequest request;
  request.set_address(address);
  request.set_bytes(bytes);
  request.set_deadline_seconds(kPathSeconds);
  return request;
}

absl::StatusOr<Survey> ListDaemons(const std::string& coordinator, Client& client) {
  STARLING_ASSIGN_OR_RETURN(const ListWorkersReply workers, client.ListWorkers());
  STARLING_ASSIGN_OR_RETURN(const ListShardsReply shards, client.ListShards());
  Survey survey;
  survey.daemons.push_back({"coordinator", COORDINATOR, coordinator});
  const auto add = [&](const auto& daemon, Role role, auto& listed) {
    if (daemon.state() == "left") return;  // left in good order
    listed.push_back(daemon);
    if (daemon.state() != "lost") survey.daemons.push_back({daemon.name(), role, daemon.address()});
  };
  for (const ShardStatus& shard : shards.shards()) add(shard, SHARD, survey.shards);
  for (const WorkerStatus& worker : workers.workers()) add(worker, WORKER, survey.workers);
  return survey;
}

void AskDaemons(const std::string& coordinator, Daemons& daemons, Survey& survey) {
  InParallel(survey.daemons.size(), kDaemonsAtOnce, [&](size_t i) {
    SurveyedDaemon& daemon = survey.daemons[i];
    auto info = daemons.Info(daemon.address);
    auto node = info.ok() ? daemons.Node(daemon.address) : info.status();
    daemon.reached = node.status();
    if (info.ok()) daemon.info = *std::move(info);
    if (node.ok()) daemon.node = *std::move(node);
  });
  InParallel(survey.daemons.size(), kMeasurementsAtOnce, [&](size_t i) {
    SurveyedDaemon& daemon = survey.daemons[i];
    if (daemon.role == COORDINATOR) return;
    auto back = daemons.Measure(coordinator, Measurement(daemon.address, 0));
    daemon.asked_back = back.status();
    if (back.ok()) daemon.back = *std::move(back);
  });
}

// Measures each worker's paths one after the other, a few workers at a time.
void MeasurePaths(Daemons& daemons, Survey& survey) {
  std::map<const SurveyedDaemon*, std::vector<size_t>> of_worker;
  std::map<size_t, const SurveyedDaemon*> shard_of;
  for (const SurveyedDaemon& worker : survey.daemons) {
    if (worker.role != WORKER || !worker.reached.ok()) continue;
    for (const SurveyedDaemon& shard : survey.daemons) {
      if (shard.role != SHARD) continue;
      if (survey.paths.size() == kPathsMax) {
        ++survey.paths_left_out;
        continue;
      }
      of_worker[&worker].push_back(survey.paths.size());
      shard_of[survey.paths.size()] = &shard;
      survey.paths.push_back({worker.name, shard.name, absl::OkStatus(), {}});
    }
  }
  std::vector<std::pair<const SurveyedDaemon*, std::vector<size_t>>> workers(of_worker.begin(),
                                                                             of_worker.end());
  InParallel(workers.size(), kWorkersAtOnce, [&](size_t i) {
    for (const size_t path : workers[i].second) {
      auto measured = daemons.Measure(workers[i].first->address,
                                      Measurement(shard_of.at(path)->address, kPathBytes));
      survey.paths[path].asked = measured.status();
      if (measured.ok()) survey.paths[path].measured = *std::move(measured);
    }
  });
}

nlohmann::ordered_json ChecksJson(const std::vector<Check>& checks, size_t paths_left_out) {
  nlohmann::ordered_json json;
  json["checks"] = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    json["checks"].push_back({{"check", check.check},
                              {"subject", check.subject},
                              {"ok", check.ok},
                              {"text", check.text},
                              {"remedy", check.remedy}});
  }
  json["pathsLeftOut"] = paths_left_out;
  return json;
}

int Print(const std::vector<Check>& checks, size_t paths_left_out, Format format,
          Context& context) {
  const size_t failed =
      std::count_if(checks.begin(), checks.end(), [](const Check& check) { return !check.ok; });
  const int status = failed == 0 ? kExitOk : kExitError;
  if (format != Format::kTable) {
    context.out << FormatText(format, ChecksJson(checks, paths_left_out));
    return status;
  }
  for (const Check& check : checks) {
    context.out << (check.ok ? "ok    " : "FAIL  ") << check.check << ", "
                << PrintableText(check.subject) << ": " << PrintableText(check.text) << "\n";
    if (!check.ok) context.out << "  try: " << PrintableText(check.remedy) << "\n";
  }
  if (paths_left_out > 0) {
    context.out << paths_left_out << " more paths from workers to shards were not measured\n";
  }
  if (failed > 0) {
    context.out << failed << " of " << checks.size() << " checks failed\n";
  } else {
    context.out << "nothing wrong" << (paths_left_out > 0 ? " in what was measured" : "") << ": "
                << checks.size() << " checks\n";
  }
  return status;
}

int RunDoctorOfNode(Format format, Context& context) {
  const NodeReply node = context.describe_node();
  const auto cpu = CreateCpuDevice();  // as a worker here would compute
  std::vector<Check> checks = CheckNode(node.host(), node);
  for (Check& row : NodeRows(node, cpu.ok() ? (*cpu)->instruction_set() : ""))
    checks.push_back(std::move(row));
  return Print(checks, 0, format, context);
}

struct DoctorOptions {
  bool node = false;
  Format format = Format::kTable;
};

absl::StatusOr<int> RunDoctor(const DoctorOptions& options, const CommandLine& line,
                              Context& context) {
  if (options.node) return RunDoctorOfNode(options.format, context);
  STARLING_ASSIGN_OR_RETURN(const std::string coordinator, line.Coordinator(context));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, line.Connect(context));
  STARLING_ASSIGN_OR_RETURN(Survey survey, ListDaemons(coordinator, *client));
  const std::unique_ptr<Daemons> daemons = context.daemons();
  AskDaemons(coordinator, *daemons, survey);
  MeasurePaths(*daemons, survey);
  return Print(CheckSurvey(survey), survey.paths_left_out, options.format, context);
}

}  // namespace

void AddDoctor(CommandLine& line) {
  const auto [doctor, options] = line.Verb<DoctorOptions>(
      "doctor", "whether machines and network are fit for a job (exit status 1: a check failed)",
      RunDoctor);
  doctor->add_flag("--node", options->node, "this machine by itself, without a cluster");
  AddFormat(doctor, &options->format);
}

}  // namespace starling::cli
