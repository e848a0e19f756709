// The client's verbs: one function and one file each. Flags are read by app.cc. All return the
// process's exit code (exit_code.h), write data to context.out and everything else to context.err.
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
  std::string name;                    // --name: in place of metadata.name
  bool replace = false;                // deletes a job of that name that is over
  bool watch = false;
  bool dry_run = false;
};
// Connects only once the file is known to be good.
using Connector = std::function<absl::StatusOr<std::unique_ptr<Client>>()>;
int RunSubmit(const SubmitOptions& options, const Connector& connect, Context& context);

// Of a list of jobs; of workers and shards all are listed.
struct ListOptions {
  bool all = false;
  uint64_t limit = 50;           // otherwise
  std::vector<JobState> states;  // only those; none: all
};
// In the coordinator's order. How many more jobs there are is said on err.
int RunGet(Kind kind, const ListOptions& list, Format format, Client& client, Context& context);

// All that is known of one.
int RunDescribe(Kind kind, const std::string& name, Format format, Client& client,
                Context& context);

// What slows or stops the job, and what to try. kExitError where there is something, kExitOk where
// nothing is wrong.
int RunExplain(const std::string& name, Format format, Client& client, Context& context);

// Whether the machines of the cluster and the network between them are fit for a job; the second
// one, whether this machine is. kExitError where a check failed. `coordinator`: its address.
int RunDoctor(const std::string& coordinator, Format format, Client& client, Context& context);
int RunDoctorOfNode(Format format, Context& context);

// The job's log; with `follow` until the job has ended.
int RunLogs(const std::string& name, bool follow, Client& client, Context& context);

struct MetricsOptions {
  std::string name;
  Format format = Format::kTable;
  bool watch = false;       // again each second, until the job has ended
  std::string tensorboard;  // a folder for event files; empty: none
};
// The job's curves: sparklines, all points (JSON, YAML), or TensorBoard's event files.
int RunMetrics(const MetricsOptions& options, Client& client, Context& context);

inline constexpr int kPlotJobsMax = 6;  // as there are colours
// The curves of a job as an SVG; of several, those of each job in a colour of its own.
int RunPlot(const std::vector<std::string>& names, const std::string& file, Client& client,
            Context& context);

struct TraceOptions {
  std::string name;
  uint64_t steps = 10;
  std::string file;
};
// What the daemons of a running job do while it does so many steps, as a trace for Perfetto.
// Refuses a job that does not run (kExitError). Ctrl-C writes what there is.
int RunTrace(const TraceOptions& options, Client& client, Context& context);

// Follows the job to its end: progress on err, then test_accuracy on out. Bounded by `timeout`.
int RunWait(const std::string& name, absl::Duration timeout, Client& client, Context& context);

// `assignment`: consistency=bsp, consistency=ssp:3 or consistency=async. Returns when the change is
// durable; it takes effect at a clock that no worker has begun.
int RunSet(const std::string& name, const std::string& assignment, Client& client,
           Context& context);

int RunCancel(const std::string& name, Client& client, Context& context);
// `ended`: all that are over, in place of `names`. Goes on behind one that cannot be deleted, and
// returns the first one's exit code.
int RunDelete(const std::vector<std::string>& names, bool ended, Client& client, Context& context);

// Its parameters, statistics included, as a safetensors file: those at its end, or while it runs
// those of the newest epoch that was evaluated. Without either it refuses (kExitError).
int RunExport(const std::string& name, const std::string& file, Client& client, Context& context);

// A file of tensors or a job (use_model.h).
struct ModelChoice {
  std::string model;
  std::string job_file;  // -f: describes the model of a file that does not itself
};

enum class PredictAs { kOutputs, kProbabilities, kClasses };

struct PredictOptions {
  ModelChoice choice;
  std::string input;  // .npy files
  std::string output;
  PredictAs as = PredictAs::kOutputs;
  int threads = 0;  // 0: one per core
};
// Writes what the model makes of the input's samples, in the same order. Only a job needs a
// coordinator.
int RunPredict(const PredictOptions& options, const Connector& connect, Context& context);

struct GenerateVerbOptions {
  ModelChoice choice;
  std::string prompt;  // one of the two
  std::string tokens;  // "1,2,3"
  int64_t max_new = 200;
  double temperature = 1;
  int64_t top_k = 0;
  uint64_t seed = 0;
  int threads = 0;
};
// The prompt and what follows it, byte by byte or token by token, as it is computed.
int RunGenerate(const GenerateVerbOptions& options, const Connector& connect, Context& context);

struct DataInspectOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  std::string sheet;                   // .png or .ppm; empty: none
  int64_t samples = 10'000;            // that are looked at; 0: all
  int64_t rows = 3;
};
// What the job's data hold, read on this machine: no coordinator is asked.
int RunDataInspect(const DataInspectOptions& options, Context& context);

struct AdviseOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  int lanes = 0;                       // 0: one per core, as a worker has them
  int64_t memory_bytes = 0;            // that a job may plan; 0: nine tenths of what is available
  std::string device = "auto";         // as a worker's --device
  std::string cuda_library;            // as a worker's
  int seconds = 2;                     // that a batch is measured for
};
// The largest batch of the job that fits into the memory of this machine, or of its GPU where a
// worker would compute the job there, by plan, with and without recomputing; and the fastest one,
// by real steps. No coordinator is asked. kExitError where no batch fits.
int RunAdviseBatch(const AdviseOptions& options, Context& context);

int RunSchema(Context& context);
int RunVersion(Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_VERBS_H_
