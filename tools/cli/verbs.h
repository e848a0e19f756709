// The client's verbs: one function and one file each. app.cc reads the flags. Each verb returns the
// process's exit code (exit_code.h), writes data to context.out and everything else to context.err.
#ifndef STARLING_TOOLS_CLI_VERBS_H_
#define STARLING_TOOLS_CLI_VERBS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/cli/client.h"
#include "tools/cli/context.h"

namespace starling::cli {

enum class Format { kTable, kJson, kYaml };
enum class Kind { kJob, kWorker, kShard };

struct SubmitOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  std::string name;                    // --name: replaces metadata.name
  bool replace = false;                // deletes an ended job of that name
  bool watch = false;
  bool dry_run = false;
};
// Called to connect only once the file is valid.
using Connector = std::function<absl::StatusOr<std::unique_ptr<Client>>()>;
int RunSubmit(const SubmitOptions& options, const Connector& connect, Context& context);

// For lists of jobs; workers and shards are always listed completely.
struct ListOptions {
  bool all = false;
  uint64_t limit = 50;           // unless `all`
  std::vector<JobState> states;  // only these; empty: all
};
// In the coordinator's order. The number of jobs not shown is printed on err.
int RunGet(Kind kind, const ListOptions& list, Format format, Client& client, Context& context);

// Everything known about one job, worker or shard.
int RunDescribe(Kind kind, const std::string& name, Format format, Client& client,
                Context& context);

// What slows or stops the job, and what to try. kExitError if there is anything, kExitOk if nothing
// is wrong.
int RunExplain(const std::string& name, Format format, Client& client, Context& context);

// Whether the cluster's machines and the network between them are fit for a job; the second one,
// whether this machine is. kExitError if a check failed. `coordinator`: its address.
int RunDoctor(const std::string& coordinator, Format format, Client& client, Context& context);
int RunDoctorOfNode(Format format, Context& context);

// The job's log; with `follow`, until the job has ended.
int RunLogs(const std::string& name, bool follow, Client& client, Context& context);

struct MetricsOptions {
  std::string name;
  Format format = Format::kTable;
  bool watch = false;       // repeats every second until the job has ended
  std::string tensorboard;  // a folder for event files; empty: none
};
// The job's curves: sparklines, all points (JSON, YAML), or TensorBoard's event files.
int RunMetrics(const MetricsOptions& options, Client& client, Context& context);

inline constexpr int kPlotJobsMax = 6;  // as many as there are colours
// One job's curves as an SVG, or those of several jobs, one colour per job.
int RunPlot(const std::vector<std::string>& names, const std::string& file, Client& client,
            Context& context);

struct TraceOptions {
  std::string name;
  uint64_t steps = 10;
  std::string file;
};
// What the daemons of a running job do during the given number of steps, as a trace for Perfetto.
// Refuses a job that is not running (kExitError). Ctrl-C writes what was collected.
int RunTrace(const TraceOptions& options, Client& client, Context& context);

// Follows the job to its end: progress on err, then test_accuracy on out. Bounded by `timeout`.
int RunWait(const std::string& name, absl::Duration timeout, Client& client, Context& context);

// `assignment`: consistency=bsp, consistency=ssp:3 or consistency=async. Returns when the change is
// durable; it takes effect at a clock that no worker has started.
int RunSet(const std::string& name, const std::string& assignment, Client& client,
           Context& context);

int RunCancel(const std::string& name, Client& client, Context& context);
// `ended`: all ended jobs, instead of `names`. Continues after a job that cannot be deleted, and
// returns the first failure's exit code.
int RunDelete(const std::vector<std::string>& names, bool ended, Client& client, Context& context);

// Writes the job's parameters, with statistics, as a safetensors file: those at its end or, while
// it runs, those of the newest evaluated epoch. Refuses if there are neither (kExitError).
int RunExport(const std::string& name, const std::string& file, Client& client, Context& context);

// A file of tensors or a job (use_model.h).
struct ModelChoice {
  std::string model;
  std::string job_file;  // -f: describes the model of a file without such a description
};

enum class PredictAs { kOutputs, kProbabilities, kClasses };

struct PredictOptions {
  ModelChoice choice;
  std::string input;  // .npy files
  std::string output;
  PredictAs as = PredictAs::kOutputs;
  int threads = 0;  // 0: one per core
};
// Writes the model's outputs for the input's samples, in order. Needs a coordinator only for a
// job's model.
int RunPredict(const PredictOptions& options, const Connector& connect, Context& context);

struct GenerateVerbOptions {
  ModelChoice choice;
  std::string prompt;  // exactly one of the two
  std::string tokens;  // "1,2,3"
  int64_t max_new = 200;
  double temperature = 1;
  int64_t top_k = 0;
  uint64_t seed = 0;
  int threads = 0;
};
// Writes the prompt and its continuation, byte by byte or token by token, as it is computed.
int RunGenerate(const GenerateVerbOptions& options, const Connector& connect, Context& context);

struct DataInspectOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  std::string sheet;                   // .png or .ppm; empty: none
  int64_t samples = 10'000;            // to inspect; 0: all
  int64_t rows = 3;
};
// What the job's data contain, read on this machine without a coordinator.
int RunDataInspect(const DataInspectOptions& options, Context& context);

struct AdviseOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  int lanes = 0;                       // 0: one per core, as in a worker
  int64_t memory_bytes = 0;            // that a job may plan; 0: nine tenths of what is available
  std::string device = "auto";         // as a worker's --device
  std::string cuda_library;            // as a worker's
  int seconds = 2;                     // to measure each batch size
};
// The largest batch of the job that fits into the memory of this machine, or of its GPU if a worker
// would use it, by plan, with and without recomputing; and the fastest one, by real steps. Needs no
// coordinator. kExitError if no batch fits.
int RunAdviseBatch(const AdviseOptions& options, Context& context);

int RunSchema(Context& context);
int RunVersion(Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_VERBS_H_
