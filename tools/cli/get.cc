// starling get: lists jobs, workers and shards.
#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/loss_text.h"
#include "common/base/status_macros.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

struct GetOptions {
  Kind kind = Kind::kJob;
  Format format = Format::kTable;
  // For lists of jobs; workers and shards are always listed completely.
  bool all = false;
  uint64_t limit = 50;           // unless `all`
  std::vector<JobState> states;  // only these; empty: all
};

Rows JobRows(const ListJobsReply& reply) {
  Rows rows = {{"NAME", "STATE", "POLICY", "EPOCH", "STEP", "LOSS", "ACCURACY", "SAMPLES/S",
                "WORKERS", "REASON"}};
  for (const JobStatus& job : reply.jobs()) {
    const EpochResult* evaluation = LastEvaluation(job);
    rows.push_back({job.name(), JobState_Name(job.state()), job.policy(),
                    EpochText(job.epoch(), job), CountText(job.step()),
                    job.has_train_loss() ? LossText(job.train_loss()) : "-",
                    evaluation != nullptr && evaluation->has_test_accuracy()
                        ? absl::StrFormat("%.4f", evaluation->test_accuracy())
                        : "-",
                    CountText(static_cast<uint64_t>(job.samples_per_second())),
                    absl::StrCat(job.workers()), job.reason()});
  }
  return rows;
}

Rows WorkerRows(const ListWorkersReply& reply) {
  Rows rows = {{"NAME", "STATE", "JOB", "CLOCK", "ADDRESS", "INCARNATION", "SEEN", "VERSION"}};
  for (const WorkerStatus& worker : reply.workers()) {
    rows.push_back(
        {worker.name(), worker.state(), worker.job().empty() ? "-" : worker.job(),
         absl::StrCat(worker.clock()), worker.address(), absl::StrCat(worker.incarnation()),
         absl::StrCat(DurationText(worker.seconds_since_report()), " ago"), worker.version()});
  }
  return rows;
}

Rows ShardRows(const ListShardsReply& reply) {
  Rows rows = {
      {"NAME", "STATE", "PARTITIONS", "VALUES", "ADDRESS", "INCARNATION", "SEEN", "VERSION"}};
  for (const ShardStatus& shard : reply.shards()) {
    rows.push_back(
        {shard.name(), shard.state(), absl::StrCat(shard.partitions()),
         BytesText(shard.value_bytes()), shard.address(), absl::StrCat(shard.incarnation()),
         absl::StrCat(DurationText(shard.seconds_since_report()), " ago"), shard.version()});
  }
  return rows;
}

// Writes a list as JSON or YAML, entry by entry: never holds all of it.
class ListWriter {
 public:
  ListWriter(Format format, Context& context) : format_(format), context_(context) {}

  void Add(const google::protobuf::Message& entry) {
    const auto json = nlohmann::ordered_json::array({ToJson(entry)});
    if (format_ == Format::kYaml) {
      context_.out << YamlText(json);
    } else {  // the inside of a one-element array's brackets
      const std::string text = JsonText(json);
      context_.out << (count_ == 0 ? "[\n" : ",\n") << text.substr(2, text.size() - 5);
    }
    ++count_;
  }
  void End() {
    if (count_ == 0) context_.out << "[]\n";
    if (count_ > 0 && format_ == Format::kJson) context_.out << "\n]\n";
  }

 private:
  const Format format_;
  Context& context_;
  size_t count_ = 0;
};

std::string MoreText(uint64_t more) {
  return absl::StrCat("and ", CountText(more), more == 1 ? " more job" : " more jobs",
                      ": all with --all, others with --limit N or --state STATE\n");
}

absl::StatusOr<int> GetJobs(const GetOptions& options, Client& client, Context& context) {
  ListJobsRequest request;
  for (const JobState state : options.states) request.add_states(state);
  uint64_t listed = 0;
  std::set<uint64_t> seen;  // a job that ends between two pages is on both
  ListWriter writer(options.format, context);
  ListJobsReply table;
  for (;;) {
    const uint64_t left =
        options.all ? std::numeric_limits<uint32_t>::max() : options.limit - listed;
    request.mutable_page()->set_size(
        static_cast<uint32_t>(std::min<uint64_t>(left, std::numeric_limits<uint32_t>::max())));
    STARLING_ASSIGN_OR_RETURN(ListJobsReply page, client.ListJobs(request));
    if (listed == 0) context.err << WarningsText(page.warnings());
    listed += static_cast<uint64_t>(page.jobs_size());
    for (JobStatus& job : *page.mutable_jobs()) {
      if (!seen.insert(job.uid()).second) continue;
      if (options.format == Format::kTable) {
        *table.add_jobs() = std::move(job);
      } else {
        writer.Add(job);
      }
    }
    request.mutable_page()->set_after(page.next());
    if (!page.next().empty() && (options.all || listed < options.limit)) continue;
    if (options.format == Format::kTable) {
      context.out << TableText(JobRows(table));
    } else {
      writer.End();
    }
    context.out << std::flush;
    if (!page.next().empty())
      context.err << MoreText(page.total() - std::min(page.total(), listed));
    return kExitOk;
  }
}

template <typename Reply, typename MakeRows>
absl::StatusOr<int> Print(const absl::StatusOr<Reply>& reply, const char* list, Format format,
                          MakeRows make_rows, Context& context) {
  if (!reply.ok()) return reply.status();
  context.err << WarningsText(reply->warnings());
  if (format == Format::kTable) {
    context.out << TableText(make_rows(*reply));
    return kExitOk;
  }
  context.out << FormatText(format, ToJson(*reply)[list]);
  return kExitOk;
}

absl::StatusOr<int> RunGet(const GetOptions& options, Client& client, Context& context) {
  const Format format = options.format;
  switch (options.kind) {
    case Kind::kJob: return GetJobs(options, client, context);
    case Kind::kWorker: return Print(client.ListWorkers(), "workers", format, WorkerRows, context);
    case Kind::kShard: return Print(client.ListShards(), "shards", format, ShardRows, context);
  }
  return kExitError;
}

}  // namespace

void AddGet(CommandLine& line) {
  const auto [get, options] = line.Verb<GetOptions>("get", "list jobs, workers or shards", RunGet);
  AddKind(get, &options->kind);
  CLI::Option* all = get->add_flag("--all", options->all, "all jobs, however many");
  AddNumber(get, "--limit", &options->limit, CLI::Range(uint64_t{1}, uint64_t{1} << 40),
            "so many jobs, those that live and the newest first")
      ->excludes(all);
  get->add_option("--state", options->states,
                  "jobs that are pending, running, succeeded, failed or cancelled; repeatable")
      ->allow_extra_args(false)
      ->transform(OneOf<JobState>({{"pending", PENDING},
                                   {"running", RUNNING},
                                   {"succeeded", SUCCEEDED},
                                   {"failed", FAILED},
                                   {"cancelled", CANCELLED}}));
  AddFormat(get, &options->format);
}

}  // namespace starling::cli
