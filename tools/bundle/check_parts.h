// What `starling-bundle check` does on a machine, part by part. Each part runs programs of the
// bundle as processes, prints what it does, and says how it ended.
#ifndef STARLING_TOOLS_BUNDLE_CHECK_PARTS_H_
#define STARLING_TOOLS_BUNDLE_CHECK_PARTS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace starling::bundle {

struct Outcome {
  enum Verdict { kPassed, kFailed, kNotRun };
  Verdict verdict;
  std::string text;  // one line: figures, or why
};

enum class Where { kCpu, kGpu };

// One part may run at a time, on the main thread.
struct Site {
  std::string program;  // absolute path of starling-bundle
  std::string folder;   // absolute; for logs and data
  absl::Time deadline;  // of everything: what runs then is killed, and its part has failed
};

// Every operator in every type against the reference.
Outcome CheckConformance(const Site& site, Where where);

// A coordinator, two shards and a worker on this machine train a residual network on made images;
// the client submits the job and must see it succeed with an accuracy that guessing does not have.
Outcome CheckCluster(const Site& site, Where where);

// Samples per second of training on the CPU, without servers.
Outcome MeasureCpu(const Site& site);

// A python3 whose PyTorch sees the GPU.
struct TorchPython {
  std::string program;       // empty: there is none
  std::string library_path;  // LD_LIBRARY_PATH for it, which brings libraries of its own
};
struct GpuBench {
  TorchPython torch;
  std::string net;   // only this one; empty: all
  absl::Time until;  // figures that may take longer are not begun, but for the first two
};

// The same on the GPU, where parameters and the optimizer's state then stay, beside PyTorch's in
// turns. Prints, for each net and precision, in samples per second
//   figure resnet50-bf16 ours=... tflops=... torch=... ratio=... least=... greatest=... version=...
// ratio: the median of its turns'; "none" where there is no PyTorch.
Outcome MeasureGpu(const Site& site, const GpuBench& bench);

// What a parameter server on the same machine costs at staleness 1, on the GPU, for resnet50 and
// gpt2, or only `net`: the same job by a cluster, and by one process whose update is on the GPU.
// Prints
//   figure servers-resnet50-bf16 servers=... local=... ratio=...
Outcome MeasureServers(const Site& site, const std::string& net);

// ---- For the parts ------------------------------------------------------------------------------

double Median(std::vector<double> values);  // of one at least

// Where a process's output goes.
std::string LogPath(const Site& site, const std::string& name);
std::string ReadFile(const std::string& path);  // empty: there is none

// Starts `starling-bundle ARGUMENT...` (or, by StartProgram, another program), its output appended
// to LogPath(site, log), its input read from the file `input`.
absl::StatusOr<pid_t> Start(const Site& site, const std::string& log,
                            std::vector<std::string> arguments,
                            const std::string& input = "/dev/null");
absl::StatusOr<pid_t> StartProgram(const Site& site, const std::string& log,
                                   const std::vector<std::string>& argv,
                                   const std::string& input = "/dev/null");

// Waits for its end, as waitpid has it. Killed at the deadline: kDeadlineExceeded.
absl::StatusOr<int> WaitFor(pid_t pid, absl::Time deadline);

// WaitFor, and kInternal with the log's last lines where it did not exit with status 0.
absl::Status Succeeded(const Site& site, const std::string& log, pid_t pid);

}  // namespace starling::bundle

#endif  // STARLING_TOOLS_BUNDLE_CHECK_PARTS_H_
