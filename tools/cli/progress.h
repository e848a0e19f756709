// A running job in one line. Pure.
#ifndef STARLING_TOOLS_CLI_PROGRESS_H_
#define STARLING_TOOLS_CLI_PROGRESS_H_

#include <string>

#include "absl/types/optional.h"
#include "proto/coordinator.pb.h"

namespace starling::cli {

// Seconds until the job's steps or its wall time run out at its present speed, without evaluation.
// nullopt while the speed is unknown.
absl::optional<double> SecondsLeft(const JobStatus& status, const JobSpec& spec);

// "digits  epoch 2/5  step 812/2,345  4,213 samples/s  loss 0.1312  staleness 1/2  83% hidden  ETA
// 1m12s"; a pending job's line says what it waits for. Totals that are mere default limits are
// omitted.
std::string ProgressLine(const JobStatus& status, const JobSpec& spec);

// The same without the job's name and in fewer words, for a terminal of 80 columns.
std::string ShortProgressLine(const JobStatus& status, const JobSpec& spec);

// "epoch 2/5: train loss 0.0912, test loss 0.0771, test accuracy 0.9768, 9.1s"
std::string EpochLine(const EpochResult& result, const JobStatus& status);

// The last evaluation's result; nullptr if there was none.
const EpochResult* LastEvaluation(const JobStatus& status);

// "epoch 2/5, step 812/2,345"; without totals that are mere default limits.
std::string PositionText(const JobStatus& status, const char* separator);
std::string StalenessText(uint64_t now, uint64_t bound);         // "1/2"; "7" without a bound
std::string EpochText(uint32_t epoch, const JobStatus& status);  // "2/5" for epoch 1

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_PROGRESS_H_
