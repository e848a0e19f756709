// The parts of `starling-bundle check`. Each part runs programs of the bundle as processes, prints
// what it does, and returns its outcome.
#ifndef STARLING_TOOLS_BUNDLE_CHECK_PARTS_H_
#define STARLING_TOOLS_BUNDLE_CHECK_PARTS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace starling::bundle {

// A measurement under names that programs read: {"ours", "2451.0"}.
struct Figure {
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;
};
// Prints "figure NAME KEY=VALUE ...".
void Print(const Figure& figure);

struct Outcome {
  enum Verdict { kPassed, kFailed, kNotRun };
  Verdict verdict;
  std::string text;  // one line: figures, or the reason
  std::vector<Figure> figures = {};
};

enum class Where { kCpu, kGpu };

// One part at a time, on the main thread.
struct Site {
  std::string program;  // absolute path of starling-bundle
  std::string folder;   // absolute; for logs and data
  absl::Time deadline;  // of this part: kills its processes and fails it
};

// Versions of the machine's NVIDIA software. Empty texts: not found, or not looked for.
struct GpuVersions {
  std::string driver;  // "580.95.05, CUDA 13.0"
  std::string cudnn;   // "9.19.0"
  std::string cublas;  // "13.1.0"
};
// Versions of the libraries that the loader finds. Loads them into this process, which should end
// soon.
GpuVersions LookAtVersions();

// Every operator in every type against the reference.
Outcome CheckConformance(const Site& site, Where where);

// The same on the GPU, under `tool` (memcheck, racecheck) of compute-sanitizer, whose program is
// `sanitizer`.
Outcome CheckSanitized(const Site& site, const std::string& sanitizer, const std::string& tool);

// A coordinator, two shards and a worker on this machine train a residual network on generated
// images; the client submits the job, which must succeed with an accuracy above chance.
Outcome CheckCluster(const Site& site, Where where);

// Measures samples per second of training on the CPU, without servers.
Outcome MeasureCpu(const Site& site);

// A python3 whose PyTorch sees the GPU.
struct TorchPython {
  std::string program;       // empty: none
  std::string library_path;  // LD_LIBRARY_PATH for the libraries that it brings
};
struct GpuBench {
  TorchPython torch;
  std::vector<std::string> nets;  // only these; empty: all
  absl::Time until;  // figures that may take longer are not started, except for the first two
};

// The same on the GPU, where parameters and the optimizer's state stay, alternating with PyTorch.
// Prints and returns, for each net and precision, in samples per second
//   figure resnet50-bf16 ours=... tflops=... torch=... ratio=... least=... greatest=... version=...
// ratio: the median over turns; "none" without PyTorch.
Outcome MeasureGpu(const Site& site, const GpuBench& bench);

// Measures the cost of a parameter server on the same machine at staleness 1, on the GPU, for
// resnet50 and gpt2, or only `nets`: the same job on a cluster, and in one process that updates on
// the GPU. Prints and returns
//   figure servers-resnet50-bf16 servers=... local=... ratio=...
Outcome MeasureServers(const Site& site, const std::vector<std::string>& nets);

// ---- Helpers of the parts -----------------------------------------------------------------------

Outcome OutcomeOf(const absl::StatusOr<std::string>& text);  // kPassed, or kFailed

// The file that receives a process's output.
std::string LogPath(const Site& site, const std::string& name);
std::string ReadFile(const std::string& path);  // empty if it does not exist

// Starts `starling-bundle ARGUMENT...` (or, by StartProgram, another program, whose input is read
// from the file `input`), with its output appended to LogPath(site, log).
absl::StatusOr<pid_t> Start(const Site& site, const std::string& log,
                            std::vector<std::string> arguments);
absl::StatusOr<pid_t> StartProgram(const Site& site, const std::string& log,
                                   const std::vector<std::string>& argv,
                                   const std::string& input = "/dev/null");

// Waits for its end; returns waitpid's status. Kills it at the deadline: kDeadlineExceeded.
absl::StatusOr<int> WaitFor(pid_t pid, absl::Time deadline);

// Starts `starling-bundle ARGUMENT...`, and waits for its end until the site's deadline. Returns
// its output, or WithLastWords if the exit status is not 0.
absl::StatusOr<std::string> Run(const Site& site, const std::string& log,
                                const std::vector<std::string>& arguments);

// kInternal with this text and the log's last lines.
absl::Status WithLastWords(const Site& site, const std::string& log, const std::string& text);

}  // namespace starling::bundle

#endif  // STARLING_TOOLS_BUNDLE_CHECK_PARTS_H_
