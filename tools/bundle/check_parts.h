// What `starling-bundle check` does on a machine, part by part. Each part runs programs of the
// bundle as processes, prints what it does, and says how it ended.
#ifndef STARLING_TOOLS_BUNDLE_CHECK_PARTS_H_
#define STARLING_TOOLS_BUNDLE_CHECK_PARTS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace starling::bundle {

// What was measured, under names that programs read: {"ours", "2451.0"}.
struct Figure {
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;
};
// Prints "figure NAME KEY=VALUE ...".
void Print(const Figure& figure);

struct Outcome {
  enum Verdict { kPassed, kFailed, kNotRun };
  Verdict verdict;
  std::string text;  // one line: figures, or why
  std::vector<Figure> figures = {};
};

enum class Where { kCpu, kGpu };

// One part may run at a time, on the main thread.
struct Site {
  std::string program;  // absolute path of starling-bundle
  std::string folder;   // absolute; for logs and data
  absl::Time deadline;  // of this part: what runs then is killed, and the part has failed
};

// What the machine has of NVIDIA's. Empty texts: not found, or not asked.
struct GpuVersions {
  std::string driver;  // "580.95.05, CUDA 13.0"
  std::string cudnn;   // "9.19.0"
  std::string cublas;  // "13.1.0"
};
// Of the libraries that the loader finds. Loads them into this process, which is to end soon.
GpuVersions LookAtVersions();

// Every operator in every type against the reference.
Outcome CheckConformance(const Site& site, Where where);

// The same on the GPU, watched by `tool` (memcheck, racecheck) of compute-sanitizer, which is the
// program `sanitizer`.
Outcome CheckSanitized(const Site& site, const std::string& sanitizer, const std::string& tool);

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
  std::vector<std::string> nets;  // only these; empty: all
  absl::Time until;  // figures that may take longer are not begun, but for the first two
};

// The same on the GPU, where parameters and the optimizer's state then stay, beside PyTorch's in
// turns. Prints and returns, for each net and precision, in samples per second
//   figure resnet50-bf16 ours=... tflops=... torch=... ratio=... least=... greatest=... version=...
// ratio: the median of its turns'; "none" where there is no PyTorch.
Outcome MeasureGpu(const Site& site, const GpuBench& bench);

// What a parameter server on the same machine costs at staleness 1, on the GPU, for resnet50 and
// gpt2, or only `nets`: the same job by a cluster, and by one process whose update is on the GPU.
// Prints and returns
//   figure servers-resnet50-bf16 servers=... local=... ratio=...
Outcome MeasureServers(const Site& site, const std::vector<std::string>& nets);

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
