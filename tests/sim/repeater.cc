#include "tests/sim/repeater.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/workload.h"

namespace starling::sim {
namespace {

constexpr uint64_t kCompareStateEvery = 10;  // positions

bool SameBytes(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::string Encoded(const Record& record) {
  std::string bytes;
  EncodeRecord(record, &bytes);
  return bytes;
}

}  // namespace

Repeater::Repeater(World* world, const PartitionConfig& config, const JobTruth& truth)
    : world_(world), config_(config), state_(&config_) {
  for (const PartitionConfig::SliceInfo& info : config_.slices) {
    const Slice& slice = truth.layout().slices[info.id.value];
    UpdateRule rule;
    if (info.updated) rule = MakeUpdateRule(truth.workload().spec, slice).value();
    values_.AddSlice(info.id, rule, InitialValues(slice));
  }
}

void Repeater::OnCarriedOut(const Record& record, Payload payload, const HostedSlice& slice) {
  if (failed_) return;
  const absl::StatusOr<Record> decoded = DecodeRecord(Encoded(record));
  if (!decoded.ok()) return Violate(decoded.status().message());
  if (decoded->lsn <= carried_out_) return Violate("carries an update out before an earlier one");
  carried_out_ = decoded->lsn;
  const absl::Span<const float> now = values_.Values(decoded->slice);
  const std::vector<float> before(now.begin(), now.end());
  if (const absl::Status fits = values_.Repeat(*decoded, payload); !fits.ok())
    return Violate(fits.message());
  world_->Count("repeated: updates compared");
  CompareSlice(slice);
  if (slice.before.empty()) return;
  world_->Count("repeated: earlier versions compared");
  if (!SameBytes(slice.before, before)) Violate("has another version before its newest");
}

void Repeater::OnEffect(const Partition& partition, const Record& record) {
  if (failed_) return;
  const std::string bytes = Encoded(record);
  const absl::StatusOr<Record> decoded = DecodeRecord(bytes);
  if (!decoded.ok()) return Violate(decoded.status().message());
  const absl::Status fits = state_.Repeat(*decoded, LogDigest(state_.digest(), bytes));
  if (!fits.ok()) return Violate(fits.message());
  if (decoded->kind == RecordKind::kApply && decoded->lsn > carried_out_)
    return Violate("was not carried out before it took effect");
  world_->Count("repeated: positions compared");
  if (state_.lsn() != partition.applied().lsn() || state_.digest() != partition.applied().digest())
    return Violate("has another digest");
  if (state_.lsn().value % kCompareStateEvery == 0) CompareState(partition);
}

// What was read back goes on in place of what was written, so nothing can be left out.
void Repeater::CompareState(const Partition& partition) {
  const std::string bytes = state_.Write();
  world_->Count("repeated: states compared");
  world_->Count("repeated: bytes of states compared", bytes.size());
  if (partition.applied().Write() != bytes) return Violate("has another state");
  PartitionState read(&config_);
  if (const absl::Status status = read.Read(bytes); !status.ok()) return Violate(status.message());
  if (read.Write() != bytes) return Violate("reads another state than it wrote");
  state_ = std::move(read);
}

void Repeater::CompareSlice(const HostedSlice& hosted) {
  world_->Count("repeated: bytes of values compared", hosted.newest.size() * sizeof(float));
  if (!SameBytes(hosted.newest, values_.Values(hosted.id))) return Violate("has other values");
  for (size_t i = 0; i < hosted.slots.size(); ++i) {
    world_->Count("repeated: bytes of slots compared", hosted.slots[i].size() * sizeof(float));
    if (!SameBytes(hosted.slots[i], values_.Slot(hosted.id, i))) return Violate("has other slots");
  }
}

void Repeater::OnGone(const Partition& partition, absl::Span<const HostedSlice> slices) {
  if (failed_) return;
  if (partition.applied().lsn() != state_.lsn()) return Violate("ends at another position");
  world_->Count("repeated: states compared at the end");
  CompareState(partition);
  ValuesDigest digest;
  for (const HostedSlice& slice : slices) {
    CompareSlice(slice);
    digest.Add(slice.newest);
    for (const absl::Span<const float> slot : slice.slots) {
      if (!slot.empty()) digest.Add(slot);
    }
  }
  if (digest.digest() != values_.Digest()) Violate("has another digest of values and slots");
}

void Repeater::Violate(absl::string_view what) {
  if (std::exchange(failed_, true)) return;
  world_->Violate(
      Promise::kRepeat,
      absl::StrCat("partition ", config_.partition.value, " of job ", config_.run.job.value,
                   ": what repeats its records, at position ", state_.lsn().value, " now, ", what));
}

}  // namespace starling::sim
