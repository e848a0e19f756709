#include "server/coordinator/core/checkpoints.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace starling::coordinator {
namespace {

constexpr uint64_t kStepsAhead = 2;
constexpr int kDoublingsMax = 20;
constexpr absl::Duration kRetryWait = absl::Seconds(10);
constexpr absl::Duration kRetryWaitMax = absl::Minutes(10);
constexpr absl::Duration kLead = absl::Seconds(1);  // some take longer than the one before
constexpr size_t kDigestBytes = 16;

// Ascends from older to newer: other clusters' by their time, this one's by their numbers.
auto Age(uint64_t cluster, const CheckpointId& id, const CheckpointInfo& info) {
  const bool own = id.cluster == cluster;
  return std::tuple(own, own ? std::string() : info.created(), id);
}

}  // namespace

bool IsCheckpointDue(const Checkpoint& rule, uint64_t steps, absl::Duration time,
                     absl::Duration takes) {
  if (steps == 0) return false;
  if (rule.every_steps() > 0) return steps >= rule.every_steps();
  const absl::Duration every = absl::Seconds(rule.every_seconds());
  return rule.every_seconds() > 0 && time + std::min(takes + kLead, every / 2) >= every;
}

absl::Duration CheckpointRetryWait(const Checkpoint& rule, int failures) {
  const absl::Duration wait = kRetryWait * (1 << std::min(failures - 1, 10));
  const absl::Duration most =
      rule.every_seconds() > 0 ? absl::Seconds(rule.every_seconds()) : absl::InfiniteDuration();
  return std::clamp(std::min(wait, most), kRetryWait, kRetryWaitMax);
}

std::optional<uint64_t> BoundaryStep(const BoundaryEvidence& evidence) {
  const uint64_t ahead = (kStepsAhead + evidence.recent)
                         << std::min(evidence.misses, kDoublingsMax);
  const uint64_t step = evidence.begun + ahead;
  if (step >= evidence.end) return std::nullopt;
  return step;
}

// ---- A shard's part ----

bool HasCaptured(const CheckpointPart& part, uint32_t partitions) {
  switch (part.state()) {
    case CheckpointPart::WAITING:
    case CheckpointPart::WRITING:
    case CheckpointPart::WRITTEN: return part.captured() == partitions;
    default: return false;
  }
}

absl::Status CheckWrittenPart(const CheckpointPart& part, ShardId shard, uint64_t step,
                              std::optional<uint32_t> copy_epoch) {
  const CheckpointFile& file = part.file();
  if (file.name() != ShardFileName(shard) || file.bytes() == 0 ||
      file.xxh3().size() != kDigestBytes) {
    return absl::InternalError(absl::StrCat("expected the file ", ShardFileName(shard),
                                            " with its size and digest, got \"", file.name(),
                                            "\" of ", file.bytes(), " bytes"));
  }
  if (part.step() != step) {
    return absl::InternalError(
        absl::StrCat("expected the values of step ", step, ", got those of step ", part.step()));
  }
  if (copy_epoch && (!part.has_copy_epoch() || part.copy_epoch() != *copy_epoch)) {
    return absl::InternalError(absl::StrCat(
        "expected the copy of epoch ", *copy_epoch + 1, ", which is being evaluated, got ",
        part.has_copy_epoch() ? absl::StrCat("that of epoch ", part.copy_epoch() + 1) : "none"));
  }
  return absl::OkStatus();
}

// A part without updated slices, or without the slice that keeps the loss scale, has 0.
absl::Status JoinParts(const std::vector<const CheckpointPart*>& parts,
                       CheckpointManifest& manifest) {
  for (const CheckpointPart* part : parts) {
    *manifest.add_files() = part->file();
    if (part->skipped() != 0 && manifest.skipped() != 0 && part->skipped() != manifest.skipped()) {
      return absl::InternalError(
          absl::StrCat("the shards disagree about the skipped updates: ", part->skipped(), " and ",
                       manifest.skipped(), "; see their logs"));
    }
    manifest.set_skipped(std::max(manifest.skipped(), part->skipped()));
    manifest.set_loss_scale_log2(std::max(manifest.loss_scale_log2(), part->loss_scale_log2()));
    manifest.set_loss_scale_clean(std::max(manifest.loss_scale_clean(), part->loss_scale_clean()));
  }
  return absl::OkStatus();
}

// ---- Which ones ----

std::vector<CheckpointId> SurplusCheckpoints(const KnownCheckpoints& known, uint64_t cluster,
                                             JobUid job, uint32_t keep,
                                             const std::set<CheckpointId>& sources) {
  std::vector<CheckpointId> by_rule;  // ascending
  for (auto it = known.lower_bound({cluster, job, 0});
       it != known.end() && it->first.cluster == cluster && it->first.job == job; ++it) {
    if (!it->second.asked_for()) by_rule.push_back(it->first);
  }
  by_rule.resize(by_rule.size() - std::min<size_t>(by_rule.size(), keep));
  std::erase_if(by_rule, [&](const CheckpointId& id) { return sources.contains(id); });
  return by_rule;
}

const CheckpointInfo* LastCheckpoint(const KnownCheckpoints& known, uint64_t cluster, JobUid job,
                                     uint64_t below) {
  auto it = known.lower_bound({cluster, job, below});
  if (it == known.begin()) return nullptr;
  --it;
  return it->first.cluster == cluster && it->first.job == job ? &it->second : nullptr;
}

std::optional<CheckpointId> NewestNamed(const KnownCheckpoints& known, uint64_t cluster,
                                        absl::string_view name) {
  auto newest = known.end();
  for (auto it = known.begin(); it != known.end(); ++it) {
    if (it->second.job() != name) continue;
    if (newest == known.end() ||
        Age(cluster, newest->first, newest->second) < Age(cluster, it->first, it->second)) {
      newest = it;
    }
  }
  if (newest == known.end()) return std::nullopt;
  return newest->first;
}

std::vector<CheckpointId> NewestFirst(const KnownCheckpoints& known, uint64_t cluster,
                                      absl::string_view name) {
  std::vector<CheckpointId> ids;
  for (const auto& [id, info] : known) {
    if (name.empty() || info.job() == name) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(), [&](const CheckpointId& a, const CheckpointId& b) {
    return Age(cluster, b, known.at(b)) < Age(cluster, a, known.at(a));
  });
  return ids;
}

std::string SizeText(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace starling::coordinator
