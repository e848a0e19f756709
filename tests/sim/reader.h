// A client that reads jobs' values from their shards as common/values does, but never blocks.
#ifndef STARLING_TESTS_SIM_READER_H_
#define STARLING_TESTS_SIM_READER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/values/slice_reader.h"
#include "tests/sim/sim_streams.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"

namespace starling::sim {

class Cluster;

class Reader : public Process {
 public:
  Reader(Cluster* cluster, const std::string& process_name);
  ~Reader();

  // Holds received payloads, and with them the stream's credit, for so long.
  void set_hold_for(absl::Duration time) { hold_for_ = time; }

  using Done = std::function<void(absl::StatusOr<ReadValues>)>;
  // Reads all slices of the layout at `point`, from the shards that `job` names. `done` runs once.
  // kAborted: a shard refused; its text. kUnavailable: a stream ended. kDeadlineExceeded: a pull
  // got no answer although its stream was up.
  void Read(const JobReply& job, const Layout& layout, const ReadPoint& point, Done done);

 private:
  class Reading;

  Cluster* const cluster_;
  absl::Duration hold_for_;
  std::unique_ptr<StreamClient> client_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_READER_H_
