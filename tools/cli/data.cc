// starling data inspect: shows what a job would train on, as seen on this machine.
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/read_job_file.h"
#include "tools/cli/verbs.h"
#include "worker/data/contact_sheet.h"
#include "worker/data/data_report.h"

namespace starling::cli {
namespace {

struct DataInspectOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  std::string sheet;                   // .png or .ppm; empty: none
  int64_t samples = 10'000;            // to inspect; 0: all
  int64_t rows = 3;
};

absl::Status Report(const std::string& part, const DataSource& source, const JobSpec& spec,
                    const DataInspectOptions& options, Context& context) {
  DataSetOptions data_options;
  data_options.sample_shape.assign(spec.sample_shape().begin(), spec.sample_shape().end());
  auto data = DataSet::Open(source, spec.normalize(), data_options);
  STARLING_RETURN_IF_ERROR(Prefixed(part, data.status()));
  STARLING_ASSIGN_OR_RETURN(const DataReport report,
                            MakeDataReport(**data, options.samples, options.rows));
  context.out << part << "\n" << ReportText(report) << std::flush;
  return absl::OkStatus();
}

// Writes the training images of the first epoch, as augmented.
absl::Status WriteSheet(const JobSpec& spec, const std::string& file) {
  const bool png = absl::EndsWithIgnoreCase(file, ".png");
  if (!png && !absl::EndsWithIgnoreCase(file, ".ppm")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sheet ", file, ": expected a name that ends in .png or .ppm"));
  }
  DataSetOptions options;
  options.sample_shape.assign(spec.sample_shape().begin(), spec.sample_shape().end());
  options.augment = spec.augment();
  STARLING_ASSIGN_OR_RETURN(const auto data, DataSet::Open(spec.train(), Normalize(), options));
  const AugmentDraw draw{spec.seed(), 0};
  STARLING_ASSIGN_OR_RETURN(const Picture picture, MakeContactSheet(*data, &draw));
  return Local(ReplaceFile(file, {png ? EncodePng(picture) : EncodePpm(picture)}));
}

absl::StatusOr<int> RunDataInspect(const DataInspectOptions& options, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const JobSpec spec,
                            ReadJobFile(options.file, options.overrides, context.environment));
  STARLING_RETURN_IF_ERROR(Report("data.train", spec.train(), spec, options, context));
  if (spec.has_test()) {
    STARLING_RETURN_IF_ERROR(Report("data.test", spec.test(), spec, options, context));
  }
  if (!options.sheet.empty()) STARLING_RETURN_IF_ERROR(WriteSheet(spec, options.sheet));
  return kExitOk;
}

}  // namespace

void AddData(CommandLine& line) {
  const auto [inspect, options] =
      line.Verb<DataInspectOptions>("inspect", "counts, shapes, ranges, classes and a few rows",
                                    RunDataInspect, line.Group("data", "what a job trains on"));
  AddJobFile(inspect, "the job file", &options->file, &options->overrides);
  inspect->add_option("--sheet", options->sheet,
                      "writes the first images into one picture, .png or .ppm");
  AddNumber(inspect, "--samples", &options->samples, CLI::Range(int64_t{0}, int64_t{1} << 40),
            "looks at so many; 0: at all");
  AddNumber(inspect, "--rows", &options->rows, CLI::Range(0, 1000), "shows so many");
}

}  // namespace starling::cli
