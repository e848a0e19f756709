#include "tools/cli/job_values.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/placement/layout.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/progress.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kReadDeadline = absl::Minutes(5);
constexpr int kAttempts = 3;  // the next epoch's copy may replace one while it is read
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(300);  // shards report what changed
// Shards report a job's final state shortly after its end, or, after a coordinator's restart, with
// their first report. And a shard's death is noticed, and another copy takes over.
constexpr absl::Duration kSettlePatience = absl::Seconds(10);

// The coordinator was reached, so the exit code must differ from kExitUnreachable.
absl::Status NotUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) ? absl::InternalError(status.message()) : status;
}

// The values at the job's end, or the newest epoch's copy.
absl::StatusOr<ReadPoint> WhatToRead(const JobReply& job) {
  const JobStatus& status = job.status();
  if (status.state() != RUNNING) return ValuesAtTheEnd(job);
  const EpochResult* evaluation = LastEvaluation(status);
  if (evaluation != nullptr) return ReadPoint{.epoch = evaluation->epoch()};
  return absl::FailedPreconditionError(
      absl::StrCat(status.name(),
                   " is RUNNING and has no complete copy of its parameters yet: wait for an "
                   "evaluation, or for its end "
                   "(starling wait ",
                   status.name(), ")"));
}

bool SameViews(const JobReply& a, const JobReply& b) {
  return std::ranges::equal(a.views(), b.views(),
                            [](const View& x, const View& y) { return x.number() == y.number(); });
}

}  // namespace

absl::Status ReadJobValues(const std::string& name, Client& client, Context& context,
                           const JobValuesUser& use) {
  absl::Time settled = context.now() + kSettlePatience;
  absl::Status status;
  JobReply job;
  for (int attempt = 0; attempt < kAttempts;) {
    STARLING_ASSIGN_OR_RETURN(JobReply now, client.GetJob(name));
    if (absl::IsUnavailable(status) && SameViews(job, now)) {
      if (context.now() < settled && context.sleep(kBetweenAttempts)) continue;
      break;
    }
    status = absl::OkStatus();
    job = std::move(now);
    const auto point = WhatToRead(job);
    if (absl::IsUnavailable(point.status()) && context.now() < settled &&
        context.sleep(kBetweenAttempts)) {
      continue;
    }
    if (!point.ok()) return NotUnreachable(point.status());
    ++attempt;
    STARLING_ASSIGN_OR_RETURN(const Layout layout, MakeLayout(job.spec()));
    status = use(job, *point, layout, [&](const SliceConsumer& consume) {
      return context.read_slices(job, layout, *point, context.now() + kReadDeadline, consume);
    });
    const bool may_pass = absl::IsAborted(status) || absl::IsUnavailable(status);
    if (!may_pass || !context.sleep(kBetweenAttempts)) break;
    settled = context.now() + kSettlePatience;
  }
  return NotUnreachable(status);
}

std::string PointText(const ReadPoint& point) {
  return point.epoch ? absl::StrCat(", as they were after epoch ", *point.epoch + 1) : "";
}

}  // namespace starling::cli
