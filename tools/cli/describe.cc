// starling describe: everything known about one job, worker or shard.
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/loss_text.h"
#include "common/base/status_macros.h"
#include "common/graph/recompute.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

constexpr double kOverdueSecondsShown = 1;  // each is due for the moment that it takes

struct DescribeOptions {
  Kind kind = Kind::kJob;
  std::string name;
  Format format = Format::kTable;
};

std::string Indented(const Rows& rows) {
  std::string out;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(TableText(rows), '\n'))) {
    if (!line.empty()) absl::StrAppend(&out, "  ", line, "\n");
  }
  return out;
}

std::string CoverageText(const JobStatus& status) {
  if (status.coverage_expected() == 0) return "no epoch is complete yet";
  return absl::StrCat("min ", status.coverage_min(), ", max ", status.coverage_max(), " of ",
                      status.coverage_expected(), " updates per slice in the last complete epoch");
}

std::string LagText(const JobStatus& status) {
  std::vector<std::string> parts;
  for (int i = 0; i < status.lag_histogram_size(); ++i) {
    if (status.lag_histogram(i) == 0) continue;
    const bool last = i + 1 == status.lag_histogram_size();
    parts.push_back(
        absl::StrCat(i, last && i > 0 ? "+" : "", ": ", CountText(status.lag_histogram(i))));
  }
  return parts.empty() ? "no pulls yet" : absl::StrJoin(parts, ", ");
}

// "fp32", "fp32, products in tf32 on GPUs", "fp16, loss scale 32,768, 3 steps skipped"
std::string PrecisionText(const JobReply& reply) {
  const JobStatus& status = reply.status();
  switch (reply.spec().precision()) {
    case PRECISION_BF16: return "bf16";
    case PRECISION_FP16: break;
    default: return reply.spec().tf32() ? "fp32, products in tf32 on GPUs" : "fp32";
  }
  if (status.loss_scale() <= 0) return "fp16";
  return absl::StrCat("fp16, loss scale ", CountText(static_cast<uint64_t>(status.loss_scale())),
                      ", ", CountText(status.skipped_steps()),
                      status.skipped_steps() == 1 ? " step" : " steps", " skipped");
}

std::string OutputText(const OutputStatus& output) {
  switch (output.state()) {
    case OutputStatus::WAITING: return absl::StrCat(output.path(), ", when the job has succeeded");
    case OutputStatus::WRITING: return absl::StrCat(output.path(), ", is being written");
    case OutputStatus::WRITTEN:
      return absl::StrCat(output.path(), ", ", BytesText(output.bytes()),
                          ", on the coordinator's machine");
    default: return absl::StrCat("not written to ", output.path(), ": ", output.error());
  }
}

// "two of each partition", "two of 5 of 8 partitions, one of the others, for 12s"
std::string CopiesText(const JobStatus& status) {
  std::string text = "two of each partition";
  if (status.durability() != "replicated") {
    text =
        absl::StrCat("one of each partition: a shard's death ",
                     IsEnd(status.state())            ? "takes the values with it"
                     : status.restarts_left() == 0    ? "ends the job"
                     : status.checkpoint().has_last() ? "takes the job back to its last checkpoint"
                     : status.restored_from().empty()
                         ? "takes the job back to its start"
                         : "takes the job back to the checkpoint that it began with");
  } else if (status.partitions_whole() < status.partitions()) {
    text = absl::StrCat("two of ", status.partitions_whole(), " of ", status.partitions(),
                        " partitions, one of the others");
    if (status.unreplicated_seconds() > 0)
      absl::StrAppend(&text, ", for ", DurationText(status.unreplicated_seconds()));
  }
  if (status.backup_behind() > 0) {
    absl::StrAppend(&text, "; a second copy lacks at most ", CountText(status.backup_behind()),
                    status.backup_behind() == 1 ? " record" : " records");
  }
  if (status.failovers() > 0) {
    absl::StrAppend(&text, "; ", CountText(status.failovers()), " taken over by another shard");
  }
  return text;
}

// "every 10m", "every 500 steps", "on request"
std::string CheckpointRuleText(const JobSpec& spec) {
  const Checkpoint& rule = spec.checkpoint();
  if (!spec.has_checkpoint()) return "on request";
  return absl::StrCat("every ", rule.every_steps() > 0
                                    ? absl::StrCat(CountText(rule.every_steps()), " steps")
                                    : DurationText(rule.every_seconds()));
}

// "every 10m; the last one, 00c0ffee00c0ffee-12-3, is of step 812, 42s old, 4.6 MiB; ..."
std::string CheckpointText(const JobReply& reply) {
  const CheckpointStatus& status = reply.status().checkpoint();
  std::string text = CheckpointRuleText(reply.spec());
  if (status.has_last()) {
    absl::StrAppend(&text, "; the last one, ", status.last().id(), ", is of step ",
                    CountText(status.last().step()), ", ", DurationText(status.age_seconds()),
                    " old, ", BytesText(status.last().bytes()));
  } else {
    absl::StrAppend(&text, "; there is none yet");
  }
  if (status.overdue_seconds() >= kOverdueSecondsShown)
    absl::StrAppend(&text, "; one has been due for ", DurationText(status.overdue_seconds()));
  if (!status.stage().empty())
    absl::StrAppend(&text, "; one is being taken (", status.stage(), ")");
  return text;
}

Rows JobFacts(const JobReply& reply) {
  const JobStatus& status = reply.status();
  const bool bounded = status.staleness_bound() != std::numeric_limits<uint64_t>::max();
  Rows rows = {{"Name:", status.name()}, {"State:", JobState_Name(status.state())}};
  if (!status.reason().empty()) rows.push_back({"Reason:", status.reason()});
  for (const std::string& warning : status.warnings()) rows.push_back({"Warning:", warning});
  if (reply.spec().labels_size() > 0) {
    const std::map<std::string, std::string> labels(reply.spec().labels().begin(),
                                                    reply.spec().labels().end());
    rows.push_back({"Labels:", absl::StrJoin(labels, ", ", absl::PairFormatter("="))});
  }
  rows.push_back({"Policy:", status.policy()});
  rows.push_back({"Submitted:", absl::StrCat(status.submitted(), ", running for ",
                                             DurationText(status.running_seconds()))});
  if (!status.kept_until().empty()) {
    rows.push_back(
        {"Kept until:", absl::StrCat(status.kept_until(),
                                     ", then the coordinator deletes it (--keep-ended-for)")});
  }
  rows.push_back({"Progress:", PositionText(status, ", ")});
  rows.push_back(
      {"Speed:",
       absl::StrFormat("%s samples/s, %.0f%% of communication hidden%s",
                       CountText(static_cast<uint64_t>(status.samples_per_second())),
                       100 * status.hidden_share(), IsEnd(status.state()) ? ", on average" : "")});
  for (const std::string& late : status.late_workers()) rows.push_back({"Late:", late});
  rows.push_back({"Parameters:", CountText(status.parameters())});
  rows.push_back({"Recompute:", RecomputeText(reply.spec().recompute())});
  rows.push_back({"Precision:", PrecisionText(reply)});
  rows.push_back(
      {"Staleness:",
       absl::StrCat("now ", status.staleness(), ", max ", status.staleness_max(), ", bound ",
                    bounded ? absl::StrCat(status.staleness_bound()) : "none")});
  rows.push_back({"Lag of pulls:", LagText(status)});
  rows.push_back({"Coverage:", CoverageText(status)});
  rows.push_back({"Reproducible:", status.reproducible()
                                       ? "yes"
                                       : absl::StrCat("no: ", status.not_reproducible_because())});
  if (status.partitions() > 0) rows.push_back({"Copies:", CopiesText(status)});
  if (!status.copies_trouble().empty()) rows.push_back({"", status.copies_trouble()});
  if (status.has_checkpoint()) rows.push_back({"Checkpoints:", CheckpointText(reply)});
  if (const CheckpointStatus& checkpoint = status.checkpoint(); !checkpoint.trouble().empty()) {
    rows.push_back({"", absl::StrCat("the last attempt failed (", checkpoint.failures(), " in all",
                                     checkpoint.failing_seconds() > 0
                                         ? absl::StrCat(", and none got through for ",
                                                        DurationText(checkpoint.failing_seconds()))
                                         : "",
                                     "): ", checkpoint.trouble())});
  }
  if (status.restarts() > 0) {
    rows.push_back(
        {"Went back:", absl::StrCat(status.restarts(), status.restarts() == 1 ? " time" : " times",
                                    "; the last one: ", status.last_restart())});
  }
  if (!status.restored_from().empty()) {
    rows.push_back({"Started from:", absl::StrCat("checkpoint ", status.restored_from())});
  }
  if (status.has_output()) rows.push_back({"Output:", OutputText(status.output())});
  rows.push_back(
      {"Run:", absl::StrCat("job ", status.uid(), ", era ", status.era(), ", roster ",
                            status.roster(), ", coordinator's generation ", status.generation())});
  return rows;
}

Rows EpochRows(const JobStatus& status) {
  Rows rows = {{"EPOCH", "TRAIN LOSS", "TEST LOSS", "TEST ACCURACY", "TIME"}};
  for (const EpochResult& result : status.epochs_done()) {
    const bool evaluated = result.evaluated();
    rows.push_back(
        {CountText(uint64_t{result.epoch()} + 1),
         result.has_train_loss() ? TrainLossText(result) : "-",
         evaluated ? LossText(result.test_loss()) : "-",
         result.has_test_accuracy() ? absl::StrFormat("%.4f", result.test_accuracy()) : "-",
         DurationText(result.seconds())});
  }
  return rows;
}

// A policy that never changed needs no table. What only gave a checkpoint its step is no change.
std::string PoliciesText(const JobStatus& status) {
  std::vector<PolicyRecord> policies(status.policies().begin(), status.policies().end());
  std::erase_if(policies, [](const PolicyRecord& record) { return record.checkpoint(); });
  if (policies.size() < 2) return "";
  Rows rows = {{"NUMBER", "POLICY", "FROM CLOCK", "STATE", "BY"}};
  for (size_t i = 0; i < policies.size(); ++i) {
    const PolicyRecord& record = policies[i];
    const bool over = i + 1 < policies.size() && policies[i + 1].in_force();
    rows.push_back({absl::StrCat(record.number()), PolicyText(record.policy()),
                    record.has_step() ? CountText(record.step()) : "-",
                    over                ? "was"
                    : record.in_force() ? "in force"
                                        : "waits",
                    record.by()});
  }
  return absl::StrCat("Policies:\n", Indented(rows));
}

// The column REPEATS is there if the job has backup workers.
Rows JobWorkerRows(const std::string& job, const ListWorkersReply& workers) {
  const bool backups = std::any_of(
      workers.workers().begin(), workers.workers().end(),
      [&](const auto& worker) { return worker.job() == job && !worker.repeats().empty(); });
  Rows rows = {
      {"WORKER", "STATE", "CLOCK", "PLANNED", "ACTIVATIONS", "PEAK", "ADDRESS", "INCARNATION"}};
  if (backups) rows.front().push_back("REPEATS");
  for (const WorkerStatus& worker : workers.workers()) {
    if (worker.job() != job) continue;
    const MemoryUse& memory = worker.memory();
    // The peak of the memory that the plan covers.
    const uint64_t peak =
        memory.device_peak_bytes() > 0 ? memory.device_peak_bytes() : memory.peak_bytes();
    const auto bytes = [](uint64_t count) { return count == 0 ? "-" : BytesText(count); };
    rows.push_back({worker.name(), worker.state(), absl::StrCat(worker.clock()),
                    bytes(memory.planned_bytes()), bytes(memory.activation_bytes()), bytes(peak),
                    worker.address(), absl::StrCat(worker.incarnation())});
    if (backups) rows.back().push_back(worker.repeats().empty() ? "-" : worker.repeats());
  }
  return rows;
}

// "0-3,7" for ascending numbers.
std::string RangesText(const std::vector<uint32_t>& numbers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end - i == 1 ? absl::StrCat(numbers[i])
                                 : absl::StrCat(numbers[i], "-", numbers[end - 1]));
    i = end;
  }
  return absl::StrJoin(parts, ",");
}

Rows JobShardRows(const JobReply& reply, const ListShardsReply& shards) {
  std::map<uint32_t, std::string> names;
  for (const ShardStatus& shard : shards.shards()) names[shard.id()] = shard.name();
  struct Hosted {
    std::vector<uint32_t> primaries, backups;  // partitions
  };
  std::map<std::pair<uint32_t, std::string>, Hosted> hosted;
  for (const View& view : reply.views()) {
    hosted[{view.primary(), view.primary_address()}].primaries.push_back(view.partition());
    if (view.backup() != 0)
      hosted[{view.backup(), view.backup_address()}].backups.push_back(view.partition());
  }
  const auto text = [](std::vector<uint32_t>& partitions) -> std::string {
    std::sort(partitions.begin(), partitions.end());
    return partitions.empty() ? "-"
                              : absl::StrCat(partitions.size(), " (", RangesText(partitions), ")");
  };
  Rows rows = {{"SHARD", "ADDRESS", "PARTITIONS", "BACKUPS"}};
  for (auto& [shard, has] : hosted) {
    const auto name = names.find(shard.first);
    rows.push_back({name == names.end() ? absl::StrCat("shard ", shard.first) : name->second,
                    shard.second, text(has.primaries), text(has.backups)});
  }
  return rows;
}

absl::StatusOr<int> DescribeJob(const DescribeOptions& options, Client& client, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const JobReply reply, client.GetJob(options.name));
  context.err << WarningsText(reply.warnings());
  if (options.format != Format::kTable) {
    context.out << FormatText(options.format, ToJson(reply));
    return kExitOk;
  }
  STARLING_ASSIGN_OR_RETURN(const ListWorkersReply workers, client.ListWorkers());
  STARLING_ASSIGN_OR_RETURN(const ListShardsReply shards, client.ListShards());
  context.out << TableText(JobFacts(reply)) << PoliciesText(reply.status()) << "Epochs:\n"
              << Indented(EpochRows(reply.status())) << "Workers:\n"
              << Indented(JobWorkerRows(options.name, workers)) << "Shards:\n"
              << Indented(JobShardRows(reply, shards));
  return kExitOk;
}

// Prints the member of `all` with this name, field by field.
template <typename All>
absl::StatusOr<int> DescribeOne(const All& all, const char* kind, const DescribeOptions& options,
                                Context& context) {
  std::vector<std::string> names;
  for (const auto& one : all) {
    names.push_back(one.name());
    if (one.name() != options.name) continue;
    context.out << FormatText(options.format, ToJson(one));
    return kExitOk;
  }
  return absl::NotFoundError(absl::StrCat("no ", kind, " is called \"", options.name, "\"; there ",
                                          names.size() == 1 ? "is " : "are ",
                                          names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::StatusOr<int> RunDescribe(const DescribeOptions& options, Client& client, Context& context) {
  if (options.kind == Kind::kJob) return DescribeJob(options, client, context);
  if (options.kind == Kind::kWorker) {
    STARLING_ASSIGN_OR_RETURN(const ListWorkersReply reply, client.ListWorkers());
    context.err << WarningsText(reply.warnings());
    return DescribeOne(reply.workers(), "worker", options, context);
  }
  STARLING_ASSIGN_OR_RETURN(const ListShardsReply reply, client.ListShards());
  context.err << WarningsText(reply.warnings());
  return DescribeOne(reply.shards(), "shard", options, context);
}

}  // namespace

void AddDescribe(CommandLine& line) {
  const auto [describe, options] =
      line.Verb<DescribeOptions>("describe", "all about one job, worker or shard", RunDescribe);
  AddKind(describe, &options->kind);
  AddName(describe, "its name", &options->name);
  AddFormat(describe, &options->format);
}

}  // namespace starling::cli
