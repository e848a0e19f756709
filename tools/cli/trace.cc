// starling trace: what a job's daemons do during some steps, on one clock, for ui.perfetto.dev.
#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"
#include "tools/trace/merge.h"
#include "tools/trace/perfetto.h"

namespace starling::cli {
namespace {

struct TraceOptions {
  std::string name;
  uint64_t steps = 10;
  std::string file;
};

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kAppliesWait = absl::Seconds(5);  // for the applies of the last pushes
constexpr size_t kSpansMax = 500'000;
constexpr int kClockTripsMin = 16;
constexpr int kClockTripsMax = 200;
constexpr int64_t kClockErrorGoodMicros = 100;
constexpr int64_t kClockErrorMaxMicros = 1000;  // larger errors are reported

// One daemon of the job and what it has reported.
struct Source {
  trace::ProcessSpans process;
  uint64_t cursor = 0;  // number of spans that it had recorded at the last read
  bool lost = false;
};

trace::RecordedSpan Recorded(const Span& span) {
  return {.name = span.name(),
          .category = span.category(),
          .begin_us = static_cast<int64_t>(span.begin_us()),
          .duration_us = static_cast<int64_t>(span.duration_us()),
          .thread = span.thread(),
          .clock = span.clock(),
          .slice = span.slice(),
          .flow = span.flow()};
}

class Tracer {
 public:
  Tracer(const TraceOptions& options, Client& client, Context& context)
      : options_(options), client_(client), context_(context), daemons_(context.daemons()) {}

  absl::StatusOr<int> Run() {
    STARLING_ASSIGN_OR_RETURN(const JobReply job, client_.GetJob(options_.name));
    STARLING_RETURN_IF_ERROR(CheckRuns(job.status()));
    absl::StatusOr<FileReplacement> file = FileReplacement::Begin(options_.file);
    if (!file.ok()) return Local(file.status());
    STARLING_RETURN_IF_ERROR(Record(job));
    STARLING_RETURN_IF_ERROR(Local(file->Write(trace::PerfettoJson(
        options_.name, processes(), window_, trace::Merge(processes(), window_)))));
    STARLING_RETURN_IF_ERROR(Local(file->Commit()));
    Summarize();
    return kExitOk;
  }

 private:
  static absl::Status CheckRuns(const JobStatus& status) {
    if (status.state() == RUNNING) return absl::OkStatus();
    if (IsEnd(status.state())) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", status.name(), " has ended (", JobState_Name(status.state()),
                       "): its daemons keep only what they did lately, and may serve others by "
                       "now. Trace a job while it runs; ",
                       "what this one did over time: starling metrics ", status.name()));
    }
    return absl::FailedPreconditionError(absl::StrCat("job ", status.name(), " does not run yet (",
                                                      status.reason(), "): trace it when it does"));
  }

  absl::Status Record(const JobReply& job) {
    STARLING_RETURN_IF_ERROR(FindDaemons(job));
    for (Source& source : sources_) Estimate(source);
    for (Source& source : sources_) SkipThePast(source);
    if (absl::c_all_of(sources_, [](const Source& source) { return source.lost; })) {
      return absl::UnavailableError(
          absl::StrCat("none of job ", options_.name, "'s daemons was reached"));
    }
    STARLING_RETURN_IF_ERROR(WaitForSteps());
    for (Source& source : sources_) {
      source.process.clock.BeginSecondRound();
      Estimate(source);
    }
    WaitForApplies();
    std::erase_if(sources_, [](const Source& source) { return !source.process.clock.known(); });
    return absl::OkStatus();
  }

  absl::Status FindDaemons(const JobReply& job) {
    STARLING_ASSIGN_OR_RETURN(const ListWorkersReply workers, client_.ListWorkers());
    STARLING_ASSIGN_OR_RETURN(const ListShardsReply shards, client_.ListShards());
    for (const WorkerStatus& worker : workers.workers()) {
      const bool gone = worker.state() == "lost" || worker.state() == "left";
      if (worker.job() == options_.name && !gone) AddSource(worker.name(), true, worker.address());
    }
    std::set<uint32_t> hosts;
    for (const View& view : job.views()) hosts.insert(view.primary());
    for (const ShardStatus& shard : shards.shards()) {
      if (hosts.contains(shard.id()) && shard.state() != "lost")
        AddSource(shard.name(), false, shard.address());
    }
    if (!sources_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("job ", options_.name, " has no daemon at the moment"));
  }

  void AddSource(const std::string& name, bool worker, const std::string& address) {
    Source& source = sources_.emplace_back();
    source.process = {.name = name, .worker = worker, .address = address, .clock = {}, .spans = {}};
  }

  void Lose(Source& source, const absl::Status& status) {
    if (!source.lost)
      context_.err << source.process.name << ": " << std::string(status.message()) << "\n";
    source.lost = true;
  }

  // Asks for the time until an answer comes quickly enough.
  void Estimate(Source& source) {
    for (int i = 0; i < kClockTripsMax && !source.lost; ++i) {
      if (i >= kClockTripsMin && source.process.clock.error() <= kClockErrorGoodMicros) return;
      const int64_t asked = context_.steady_micros();
      const absl::StatusOr<InfoReply> theirs = daemons_->Info(source.process.address);
      const int64_t answered = context_.steady_micros();
      if (!theirs.ok()) return Lose(source, theirs.status());
      source.process.clock.Add(asked, answered, static_cast<int64_t>(theirs->now_us()));
    }
  }

  // The spans that end after `after_us` and were not read before.
  absl::StatusOr<SpansReply> ReadSpans(const Source& source, uint64_t after_us) {
    SpansRequest request;
    request.set_after_us(after_us);
    request.set_after(source.cursor);
    return daemons_->Spans(source.process.address, request);
  }

  // Skips what was recorded so far.
  void SkipThePast(Source& source) {
    if (source.lost) return;
    const auto spans = ReadSpans(source, std::numeric_limits<int64_t>::max());
    if (!spans.ok()) return Lose(source, spans.status());
    source.cursor = spans->recorded();
  }

  void Collect() {
    for (Source& source : sources_) {
      if (source.lost) continue;
      const auto read = ReadSpans(source, 0);
      if (!read.ok()) {
        Lose(source, read.status());
        continue;
      }
      source.cursor = read->recorded();
      source.process.dropped += read->dropped();
      spans_ += static_cast<size_t>(read->spans_size());
      for (const Span& span : read->spans()) source.process.spans.push_back(Recorded(span));
    }
  }

  // Waits until the job has done the requested steps or has ended, or Ctrl-C was pressed.
  absl::Status WaitForSteps() {
    context_.catch_interrupts();
    absl::StatusOr<JobReply> job = client_.GetJob(options_.name);
    window_.begin_us = context_.steady_micros();
    if (!job.ok()) return job.status();
    const uint64_t first = job->status().step();
    absl::Time reached = context_.now();
    for (;;) {
      Collect();
      window_.end_us = context_.steady_micros();
      job = client_.GetJob(options_.name);
      if (job.ok()) {
        reached = context_.now();
        steps_ = job->status().step() - std::min(first, job->status().step());
        ended_ = IsEnd(job->status().state());
      } else if (!absl::IsUnavailable(job.status()) || context_.now() - reached > kUnreachableMax) {
        return job.status();
      }
      if (steps_ >= options_.steps || ended_ || spans_ >= kSpansMax) break;
      if (!context_.sleep(kPollInterval)) break;
    }
    window_.end_us = context_.steady_micros();
    return absl::OkStatus();
  }

  void WaitForApplies() {
    const absl::Time until = context_.now() + kAppliesWait;
    Collect();
    while (trace::PushesWithoutApply(known_processes(), window_) > 0 && context_.now() < until) {
      if (!context_.sleep(kPollInterval)) return;
      Collect();
    }
  }

  std::vector<trace::ProcessSpans> known_processes() const {
    std::vector<trace::ProcessSpans> known;
    for (const Source& source : sources_) {
      if (source.process.clock.known()) known.push_back(source.process);
    }
    return known;
  }
  const std::vector<trace::ProcessSpans>& processes() {
    if (merged_.empty()) merged_ = known_processes();
    return merged_;
  }

  void Summarize() {
    size_t spans = 0;
    int64_t error = 0;
    for (const trace::ProcessSpans& process : processes()) {
      spans += process.spans.size();
      error = std::max(error, process.clock.error());
      if (process.dropped > 0) {
        context_.err << process.name << ": " << CountText(process.dropped)
                     << " spans were overwritten before they were read: its ring is small for so "
                        "many a second\n";
      }
      if (process.clock.error() > kClockErrorMaxMicros) {
        context_.err << process.name << ": its clock is known to "
                     << absl::StrFormat("%.1f", static_cast<double>(process.clock.error()) / 1000)
                     << " ms only (it, or the network, is busy): arrows from and to it may point "
                        "backwards\n";
      }
    }
    if (const size_t missing = trace::PushesWithoutApply(processes(), window_); missing > 0) {
      context_.err << CountText(missing) << " pushes have no apply in the trace\n";
    }
    if (spans_ >= kSpansMax)
      context_.err << "stopped early: " << CountText(spans_) << " spans are the most\n";
    context_.err << "wrote " << CountText(spans) << " spans of " << processes().size()
                 << (processes().size() == 1 ? " process, " : " processes, ") << CountText(steps_)
                 << (ended_ && steps_ < options_.steps ? " steps (then the job ended)" : " steps")
                 << " in "
                 << DurationText(static_cast<double>(window_.end_us - window_.begin_us) / 1e6)
                 << ", to " << options_.file
                 << absl::StrFormat("; clocks agree within %.2f ms",
                                    static_cast<double>(error) / 1000)
                 << "\nopen it at https://ui.perfetto.dev\n";
  }

  const TraceOptions& options_;
  Client& client_;
  Context& context_;
  const std::unique_ptr<Daemons> daemons_;
  std::vector<Source> sources_;
  std::vector<trace::ProcessSpans> merged_;
  trace::Window window_;
  size_t spans_ = 0;
  uint64_t steps_ = 0;
  bool ended_ = false;
};

}  // namespace

void AddTrace(CommandLine& line) {
  const auto [trace, options] = line.Verb<TraceOptions>(
      "trace", "record what a running job's processes do, for ui.perfetto.dev",
      [](const TraceOptions& options, Client& client, Context& context) {
        return Tracer(options, client, context).Run();
      });
  AddName(trace, "the job", &options->name);
  AddNumber(trace, "--steps", &options->steps, CLI::Range(1, 1'000'000), "of the job, from now on");
  trace->add_option("-o,--output", options->file, "the .json file")->required();
}

}  // namespace starling::cli
