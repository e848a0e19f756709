// Judges the data that `starling doctor` collects. Pure.
#ifndef STARLING_TOOLS_CLI_DOCTOR_CHECKS_H_
#define STARLING_TOOLS_CLI_DOCTOR_CHECKS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"
#include "proto/daemon.pb.h"

namespace starling::cli {

struct SurveyedDaemon {
  std::string name;
  Role role = ROLE_UNSPECIFIED;
  std::string address;   // as the coordinator tells it to other daemons
  absl::Status reached;  // by this client
  InfoReply info;
  NodeReply node;
  absl::Status asked_back;  // whether the coordinator could be asked to measure
  MeasureReply back;        // its path to this daemon; empty for the coordinator itself
};

struct SurveyedPath {
  std::string from, to;  // names
  absl::Status asked;
  MeasureReply measured;
};

struct Survey {
  std::vector<SurveyedDaemon> daemons;  // the coordinator first; those that are not gone
  // As the coordinator sees them, also those that are lost, not those that left in good order.
  std::vector<ShardStatus> shards;
  std::vector<WorkerStatus> workers;
  std::vector<SurveyedPath> paths;  // from workers to shards
  size_t paths_left_out = 0;        // beyond the limit on measurements
};

struct Check {
  std::string check;    // "clock": a stable word
  std::string subject;  // a daemon, a path "worker-0 -> shard-1", or "cluster"
  bool ok = true;
  std::string text;    // what was found
  std::string remedy;  // if the check failed
};

// All checks, failed ones first.
std::vector<Check> CheckSurvey(const Survey& survey);

// Checks of one machine by itself: memory, files, GPU.
std::vector<Check> CheckNode(const std::string& subject, const NodeReply& node);

// Describes a machine, for users to compare; these rows cannot fail.
std::vector<Check> NodeRows(const NodeReply& node, const std::string& instruction_set);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_DOCTOR_CHECKS_H_
