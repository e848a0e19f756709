// starling metrics, starling plot: how a job's loss, accuracy, throughput and staleness went.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/tensorboard/curve_events.h"
#include "common/tensorboard/event_file.h"
#include "tools/cli/command_line.h"
#include "tools/cli/curve_series.h"
#include "tools/cli/curve_svg.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

struct MetricsOptions {
  std::string name;
  Format format = Format::kTable;
  bool watch = false;       // repeats every second until the job has ended
  std::string tensorboard;  // a folder for event files; empty: none
};

constexpr absl::Duration kWatchInterval = absl::Seconds(1);
constexpr int kLabelColumns = 16;
constexpr int kFigureColumns = 34;
constexpr int kSparklineMax = 120;

std::string Line(const Series& series, uint64_t last_step, int width) {
  if (series.points.empty()) return "";
  const auto [low, high] = std::ranges::minmax_element(series.points, {}, &SeriesPoint::value);
  return absl::StrCat(absl::StrFormat("%-*s", kLabelColumns, series.name),
                      Sparkline(series, last_step, width), "  ",
                      absl::StrFormat("%-9s", NumberText(series.points.back().value)), " ",
                      NumberText(low->value), " to ", NumberText(high->value), "\n");
}

std::string Heading(const JobStatus& status) {
  return absl::StrCat(status.name(), "  ", JobState_Name(status.state()), "  ", status.policy(),
                      "  step ", CountText(status.step()), " of ", CountText(status.steps()), ", ",
                      DurationText(status.running_seconds()),
                      status.reason().empty() ? "" : absl::StrCat("  (", status.reason(), ")"),
                      "\n");
}

std::string Report(const CurvesReply& curves, int columns) {
  const CurveSeries all = MakeSeries(curves);
  std::string text = Heading(curves.status());
  if (curves.points_size() == 0) {
    return absl::StrCat(text, "no curve yet: points come with the first finished steps\n");
  }
  uint64_t last = curves.points(curves.points_size() - 1).step();
  if (!all.test_loss.points.empty()) last = std::max(last, all.test_loss.points.back().step);
  const int width = std::clamp(columns - kLabelColumns - kFigureColumns, 10, kSparklineMax);
  absl::StrAppend(&text, absl::StrFormat("%-*s%-*s  last      range\n", kLabelColumns, "", width,
                                         absl::StrCat("steps 1 to ", CountText(last))));
  for (const Series* series :
       {&all.train_loss, &all.test_loss, &all.train_accuracy, &all.test_accuracy,
        &all.learning_rate, &all.samples_per_second, &all.staleness, &all.hidden_share}) {
    absl::StrAppend(&text, Line(*series, last, width));
  }
  return text;
}

absl::Status WriteEvents(const std::string& folder, const CurvesReply& curves, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const auto file,
                            tensorboard::EventFile::Create(folder, 0, context.now()));
  // In the order of steps, as readers expect.
  int epoch = 0;
  const auto write_epochs = [&](uint64_t step) -> absl::Status {
    for (; epoch < curves.status().epochs_done_size(); ++epoch) {
      const EpochResult& result = curves.status().epochs_done(epoch);
      if (result.step() > step) break;
      const std::optional<tensorboard::Event> event = tensorboard::EpochEvent(result);
      if (event) STARLING_RETURN_IF_ERROR(file->Append(*event));
    }
    return absl::OkStatus();
  };
  for (const CurvePoint& point : curves.points()) {
    STARLING_RETURN_IF_ERROR(write_epochs(point.step() - 1));
    STARLING_RETURN_IF_ERROR(file->Append(tensorboard::PointEvent(point)));
  }
  STARLING_RETURN_IF_ERROR(write_epochs(std::numeric_limits<uint64_t>::max()));
  context.err << "wrote " << CountText(static_cast<uint64_t>(curves.points_size())) << " points of "
              << curves.status().name() << " to " << file->path()
              << "\nlook at them with: tensorboard --logdir " << folder << "\n";
  return absl::OkStatus();
}

// Updates in place on a terminal; otherwise prints one report after the other.
absl::StatusOr<int> Watch(const std::string& name, Client& client, Context& context) {
  context.catch_interrupts();
  absl::Time reached = context.now();
  size_t lines = 0;
  for (;;) {
    const auto curves = client.Curves(name);
    if (curves.ok()) {
      reached = context.now();
      const std::string text = Report(*curves, context.columns);
      if (context.terminal && lines > 0) context.out << absl::StrFormat("\x1b[%dA\x1b[J", lines);
      context.out << text << std::flush;
      lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
      if (IsEnd(curves->status().state())) return kExitOk;
    } else if (!absl::IsUnavailable(curves.status()) || context.now() - reached > kUnreachableMax) {
      return curves.status();
    }
    if (!context.sleep(kWatchInterval)) return kExitOk;
  }
}

absl::StatusOr<int> RunMetrics(const MetricsOptions& options, Client& client, Context& context) {
  if (options.watch) return Watch(options.name, client, context);
  STARLING_ASSIGN_OR_RETURN(const CurvesReply curves, client.Curves(options.name));
  if (!options.tensorboard.empty()) {
    STARLING_RETURN_IF_ERROR(WriteEvents(options.tensorboard, curves, context));
    return kExitOk;
  }
  context.out << (options.format == Format::kTable ? Report(curves, context.columns)
                                                   : FormatText(options.format, ToJson(curves)));
  return kExitOk;
}

struct PlotOptions {
  std::vector<std::string> names;
  std::string file;
};

absl::StatusOr<int> RunPlot(const PlotOptions& options, Client& client, Context& context) {
  const auto& [names, file] = options;
  if (!absl::EndsWith(file, ".svg")) {
    return absl::InvalidArgumentError(
        absl::StrCat("-o: expected a name that ends with .svg, got ", file));
  }
  std::vector<CurvesReply> all;
  size_t points = 0;
  for (const std::string& name : names) {
    STARLING_ASSIGN_OR_RETURN(CurvesReply curves, client.Curves(name));
    if (curves.points_size() == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", name, " has no curve yet (", JobState_Name(curves.status().state()),
                       "): points come with the first finished steps"));
    }
    points += MakeSeries(curves).train_loss.points.size();
    all.push_back(std::move(curves));
  }
  STARLING_RETURN_IF_ERROR(
      Local(ReplaceFile(file, {all.size() == 1 ? CurvesSvg(all[0]) : CompareSvg(all)})));
  context.err << "wrote " << points << " points of " << absl::StrJoin(names, ", ") << " to " << file
              << "\n";
  return kExitOk;
}

}  // namespace

void AddCurves(CommandLine& line) {
  const auto [metrics, options] = line.Verb<MetricsOptions>(
      "metrics", "how a job's loss, accuracy, throughput and staleness went", RunMetrics);
  AddName(metrics, "the job", &options->name);
  AddFormat(metrics, &options->format);
  metrics->add_flag("--watch", options->watch, "again each second, until the job has ended")
      ->excludes("-o");
  metrics
      ->add_option("--tensorboard", options->tensorboard,
                   "a folder: write TensorBoard's event files there")
      ->excludes("-o")
      ->excludes("--watch");

  const auto [plot, picture] = line.Verb<PlotOptions>(
      "plot", "draw a job's curves, or those of several to compare", RunPlot);
  plot->add_option("NAME", picture->names, "the jobs")
      ->required()
      ->expected(1, kPlotJobsMax)
      ->check(CheckUtf8);
  plot->add_option("-o,--output", picture->file, "the .svg file")->required();
}

}  // namespace starling::cli
