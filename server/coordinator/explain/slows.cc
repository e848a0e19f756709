// What slows a job. Primary causes come first: a worker, data, a shard, a link. Only when none is
// found are the workers' waits themselves named.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/placement/layout.h"
#include "server/coordinator/explain/explain.h"
#include "server/coordinator/explain/findings.h"
#include "server/coordinator/explain/shards.h"
#include "server/coordinator/explain/steps.h"

namespace starling::explain {
namespace {

using Steps = std::vector<MeanStep>;

std::string OfStep(double seconds, const MeanStep& step) {
  return absl::StrCat(TimeText(seconds), " of each step's ", TimeText(step.total()), " (",
                      ShareText(seconds / step.total()), ")");
}

// The median step by `get`.
template <typename Get>
const MeanStep& Middle(const Steps& steps, Get get) {
  std::vector<const MeanStep*> sorted;
  for (const MeanStep& step : steps) sorted.push_back(&step);
  std::sort(sorted.begin(), sorted.end(),
            [&](const MeanStep* a, const MeanStep* b) { return get(*a) < get(*b); });
  return *sorted[sorted.size() / 2];
}

// Whether one of them slows the job: a step does not wait for what a backup worker repeats.
bool FindSlowWorkers(const Steps& steps, Findings& findings) {
  bool slows = false;
  for (const MeanStep& step : steps) {
    std::vector<double> others;
    double others_data = 0;
    for (const MeanStep& other : steps) {
      if (&other == &step) continue;
      others.push_back(other.own_per_sample());
      others_data = std::max(others_data, other.data / other.samples);
    }
    const double median = Median(others);
    if (median <= 0) continue;
    const double ratio = step.own_per_sample() / median;
    if (ratio < kSlowWorkerRatioMin) continue;
    const double more = step.own_per_sample() - median;
    const bool by_data = step.data / step.samples - others_data > more / 2;
    const std::string& by = step.worker->repeated_by;
    findings.Add(
        "slow-worker", step.worker->name, ratio,
        absl::StrFormat(
            "worker %s takes %.3g times as long for a sample as the median of "
            "the others, %s against %s, most of the difference in %s%s",
            At(step.worker->name, step.worker->address), ratio, TimeText(step.own_per_sample()),
            TimeText(median), by_data ? "waiting for data" : "computing",
            by.empty() ? ""
                       : absl::StrCat("; no step waits for it, since ", by, " repeats its part")),
        Weight::kSlows, by.empty() ? 1 - 1 / ratio : 0);
    slows = slows || by.empty();
  }
  return slows;
}

void FindDataBound(const Steps& steps, Findings& findings) {
  const auto data_share = [](const MeanStep& s) { return s.data / s.total(); };
  const double share = MedianOf(steps, data_share);
  if (share < kPhaseShareMin) return;
  const MeanStep& step = Middle(steps, data_share);
  findings.Add("data-bound", step.worker->name, step.data,
               absl::StrCat("the job waits for data: ", OfStep(step.data, step),
                            " on a worker in the middle"),
               Weight::kSlows, share);
}

// ---- Links ----------------------------------------------------------------------------------

std::string LinkText(const MeanStep& step, const LinkEvidence& link) {
  return absl::StrCat("worker ", At(step.worker->name, step.worker->address), " to shard ",
                      link.shard, " (", link.link.address(), ")");
}

// One direction of a link.
struct Way {
  const char* text = "";
  double bytes = 0;
  double seconds = 0;  // of use
};

// The direction that is in use for longer. On a long link values are in flight for long, too, so
// the way back counts as full only when a step's values take several round trips.
Way BusierWay(const MeanStep& step, const LinkStatus& link) {
  const Way there{"to the shard", static_cast<double>(link.sent_bytes()), link.sending_seconds()};
  const Way back{"to the worker", static_cast<double>(link.received_bytes()),
                 link.receiving_seconds()};
  const double of_step = back.seconds / static_cast<double>(step.worker->times.units());
  return back.seconds > there.seconds && of_step >= 3 * link.round_trip_seconds() ? back : there;
}

void FindFullLink(const MeanStep& step, const LinkEvidence& evidence, Findings& findings) {
  const Way way = BusierWay(step, evidence.link);
  const double window = step.worker->window_seconds;
  if (window <= 0 || way.seconds < kPhaseShareMin * window || way.bytes == 0) return;
  const double rate = way.bytes / way.seconds;
  const double busy = std::min(1.0, way.seconds / window);
  const LinkStatus& link = evidence.link;
  const bool shared = 2 * link.shared_bytes() > link.sent_bytes() + link.received_bytes();
  findings.Add("saturated-link", absl::StrCat(step.worker->name, " -> ", evidence.shard), rate,
               absl::StrCat("the link from ", LinkText(step, evidence), " is full: ", way.text,
                            " it carries ", RateText(rate), shared ? " through shared memory" : "",
                            ", ", ShareText(busy), " of the time, and the worker waits for ",
                            OfStep(step.waits(), step)),
               Weight::kSlows, busy);
}

// A step that overlaps nothing takes one push with its acknowledgement and one pull with its value.
void FindFarLink(const MeanStep& step, const LinkEvidence& evidence, Findings& findings) {
  const double round_trip = evidence.link.round_trip_seconds();
  const double share = 2 * round_trip / step.total();
  if (share < kPhaseShareMin) return;
  findings.Add(
      "far-link", absl::StrCat(step.worker->name, " -> ", evidence.shard), round_trip,
      absl::StrCat("the way from ", LinkText(step, evidence), " is long: there and back takes ",
                   TimeText(round_trip), ", and the worker waits for ", OfStep(step.waits(), step)),
      Weight::kSlows, std::min(1.0, share));
}

// A link is not blamed for a shard that does not keep up: it takes input slowly and answers late.
void FindSlowLinks(const Steps& steps, const ShardLoads& shards, Findings& findings) {
  for (const MeanStep& step : steps) {
    if (step.waits() < kPhaseShareMin * step.total()) continue;
    for (const LinkEvidence& link : step.worker->links) {
      if (shards.KeepsUp(link.shard)) FindFullLink(step, link, findings);
    }
    if (findings.Has("saturated-link")) continue;  // a full link answers late, too
    for (const LinkEvidence& link : step.worker->links) {
      if (shards.KeepsUp(link.shard)) FindFarLink(step, link, findings);
    }
  }
}

// ---- What workers wait for, when no primary cause is found ----------------------------------

double PushLatency(const WorkerEvidence& worker) {
  double seconds = 0;
  uint64_t pushes = 0;
  for (const LinkEvidence& link : worker.links) {
    seconds += link.link.push_seconds();
    pushes += link.link.pushes();
  }
  return pushes == 0 ? 0 : seconds / static_cast<double>(pushes);
}

void FindLatePushes(const Steps& steps, Findings& findings) {
  for (const MeanStep& step : steps) {
    const double latency = PushLatency(*step.worker);
    if (step.push < kPhaseShareMin * step.total() || latency <= 0) continue;
    findings.Add("push-bound", step.worker->name, latency,
                 absl::StrCat("pushes of worker ", At(step.worker->name, step.worker->address),
                              " are acknowledged after ", TimeText(latency),
                              ", and it waits for that for ", OfStep(step.push, step)),
                 Weight::kSlows, step.push / step.total());
  }
}

void FindLateValues(const Steps& steps, Findings& findings) {
  const auto pull_share = [](const MeanStep& s) { return s.pull / s.total(); };
  const double share = MedianOf(steps, pull_share);
  if (share < kPhaseShareMin) return;
  const MeanStep& step = Middle(steps, pull_share);
  findings.Add("pull-bound", step.worker->name, step.pull,
               absl::StrCat("values come late: workers wait for ", OfStep(step.pull, step),
                            " for what shards have sent"),
               Weight::kSlows, share);
}

// BSP gives every member whole micro-batches; which member has one more changes from step to step.
double LostToUnevenShares(const Evidence& evidence, size_t members) {
  if (evidence.policy.kind() != Policy::BSP || evidence.micro_batches == 0 || members == 0)
    return 0;
  const double each = static_cast<double>(evidence.micro_batches) / static_cast<double>(members);
  const double most = static_cast<double>((evidence.micro_batches + members - 1) / members);
  return 1 - each / most;
}

void FindWaits(const Evidence& evidence, const Steps& steps, Findings& findings) {
  const auto wait_share = [](const MeanStep& s) { return s.wait / s.total(); };
  const MeanStep& longest = *std::max_element(
      steps.begin(), steps.end(),
      [&](const MeanStep& a, const MeanStep& b) { return wait_share(a) < wait_share(b); });
  const double share = wait_share(longest);
  if (share < kPhaseShareMin) return;
  const size_t members =
      SharingMembers(std::count_if(evidence.workers.begin(), evidence.workers.end(),
                                   [](const WorkerEvidence& worker) { return worker.member; }),
                     evidence.backup_workers);
  const double uneven = LostToUnevenShares(evidence, members);
  if (uneven > share / 2) {
    findings.Add(
        "uneven-shares", evidence.job, 100 * uneven,
        absl::StrFormat("%d workers share %d micro-batches of a step, so some have one more "
                        "and the others wait: %s of their time is lost",
                        members, evidence.micro_batches, ShareText(uneven)),
        Weight::kSlows, uneven);
    return;
  }
  const MeanStep& behind =
      *std::min_element(steps.begin(), steps.end(),
                        [](const MeanStep& a, const MeanStep& b) { return a.wait < b.wait; });
  // The worker that hardly waits is the one that others wait for; when all wait, updates arrive
  // late.
  const bool known = behind.wait < longest.wait / 2;
  const std::string who = known ? absl::StrCat("worker ", behind.worker->name, ", which is behind")
                                : std::string("updates that come late");
  findings.Add("staleness-wait", known ? behind.worker->name : longest.worker->name, longest.wait,
               absl::StrCat("worker ", At(longest.worker->name, longest.worker->address),
                            " waits for ", who, ": ", OfStep(longest.wait, longest)),
               Weight::kSlows, share);
}

void FindIdle(const Evidence& evidence, const Steps& steps, Findings& findings) {
  const auto idle_share = [](const MeanStep& s) { return s.idle / s.total(); };
  const double share = MedianOf(steps, idle_share);
  if (share < kPhaseShareMin) return;
  const MeanStep& step = Middle(steps, idle_share);
  findings.Add("idle", evidence.job, step.idle,
               absl::StrCat("workers have nothing to compute for ", OfStep(step.idle, step),
                            evidence.evaluating ? ": the epoch before is being evaluated" : ""),
               Weight::kSlows, share);
}

}  // namespace

void FindSlows(const Evidence& evidence, Findings& findings) {
  const Steps steps = MeanSteps(evidence);
  if (steps.empty()) return;
  const bool slow_worker = FindSlowWorkers(steps, findings);
  FindDataBound(steps, findings);
  const double waits = MedianOf(steps, [](const MeanStep& s) { return s.waits() / s.total(); });
  ShardLoads shards(evidence, MedianOf(steps, [](const MeanStep& s) { return s.total(); }));
  if (waits >= kPhaseShareMin) shards.Find(findings);
  FindSlowLinks(steps, shards, findings);
  FindIdle(evidence, steps, findings);
  // A slow worker, or a problem of a shard or a link, shows in all waits behind it.
  const bool explained = slow_worker || shards.found() || findings.Has("saturated-link") ||
                         findings.Has("far-link") || findings.Has("missing-worker") ||
                         findings.Has("missing-shard") || findings.Has("broken-link") ||
                         findings.Has("policy-change");
  if (explained) return;
  FindLatePushes(steps, findings);
  if (findings.Has("push-bound")) return;
  FindLateValues(steps, findings);
  FindWaits(evidence, steps, findings);
}

}  // namespace starling::explain
