// starling get: lists of jobs, workers, shards.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

Rows JobRows(const ListJobsReply& reply) {
  Rows rows = {{"NAME", "STATE", "POLICY", "EPOCH", "STEP", "LOSS", "ACCURACY", "SAMPLES/S", "WORKERS", "REASON"}};
  for (const JobStatus& job : reply.jobs()) {
    const EpochResult* evaluation = LastEvaluation(job);
    rows.push_back({job.name(), JobState_Name(job.state()), job.policy(), EpochText(job.epoch(), job),
                    CountText(job.step()), job.step() > 0 ? absl::StrFormat("%.4f", job.train_loss()) : "-",
                    evaluation == nullptr ? "-" : absl::StrFormat("%.4f", evaluation->test_accuracy()),
                    CountText(static_cast<uint64_t>(job.samples_per_second())), absl::StrCat(job.workers()),
                    job.reason()});
  }
  return rows;
}

Rows WorkerRows(const ListWorkersReply& reply) {
  Rows rows = {{"NAME", "STATE", "JOB", "CLOCK", "ADDRESS", "INCARNATION", "SEEN", "VERSION"}};
  for (const WorkerStatus& worker : reply.workers()) {
    rows.push_back({worker.name(), worker.state(), worker.job().empty() ? "-" : worker.job(),
                    absl::StrCat(worker.clock()), worker.address(), absl::StrCat(worker.incarnation()),
                    absl::StrCat(DurationText(worker.seconds_since_report()), " ago"), worker.version()});
  }
  return rows;
}

Rows ShardRows(const ListShardsReply& reply) {
  Rows rows = {{"NAME", "STATE", "PARTITIONS", "VALUES", "ADDRESS", "INCARNATION", "SEEN", "VERSION"}};
  for (const ShardStatus& shard : reply.shards()) {
    rows.push_back({shard.name(), shard.state(), absl::StrCat(shard.partitions()), BytesText(shard.value_bytes()),
                    shard.address(), absl::StrCat(shard.incarnation()),
                    absl::StrCat(DurationText(shard.seconds_since_report()), " ago"), shard.version()});
  }
  return rows;
}

template <typename Reply, typename MakeRows>
int Print(const absl::StatusOr<Reply>& reply, const char* list, Format format, MakeRows make_rows,
          Context& context) {
  if (!reply.ok()) return Fail(reply.status(), context);
  context.err << WarningsText(reply->warnings());
  if (format == Format::kTable) {
    context.out << TableText(make_rows(*reply));
    return kExitOk;
  }
  const nlohmann::ordered_json json = ToJson(*reply)[list];
  context.out << (format == Format::kJson ? JsonText(json) : YamlText(json));
  return kExitOk;
}

}  // namespace

int RunGet(Kind kind, Format format, Client& client, Context& context) {
  switch (kind) {
    case Kind::kJob: return Print(client.ListJobs(), "jobs", format, JobRows, context);
    case Kind::kWorker: return Print(client.ListWorkers(), "workers", format, WorkerRows, context);
    case Kind::kShard: return Print(client.ListShards(), "shards", format, ShardRows, context);
  }
  return kExitError;
}

}  // namespace starling::cli
