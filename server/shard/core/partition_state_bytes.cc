// A partition's state as bytes: little-endian fields without padding:
//   magic u32, version u16, 0 u16, run (job u64, era u32), partition u32, slices u32,
//   the parts in the order of PartitionState::Fields, XXH3-64 of all before as u64
#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/defences.h"
#include "common/protocol/fields.h"
#include "common/protocol/limits.h"
#include "server/shard/core/partition_state.h"
#include "xxhash.h"

namespace starling {
namespace {

constexpr size_t kDigestBytes = sizeof(uint64_t);

absl::Status Refuse(absl::string_view field, absl::string_view expected, absl::string_view came,
                    absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat("partition state: ", field, " must be ", expected,
                                                 ", not ", came, "; ", advice));
}

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("partition state: ", what, "; it is damaged: read it again, or another copy"));
}

template <typename T>
absl::Status CheckEqual(absl::string_view field, T expected, T came, absl::string_view advice) {
  if (came == expected) return absl::OkStatus();
  return Refuse(field, absl::StrCat(expected), absl::StrCat(came), advice);
}

uint64_t DigestOf(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace

template <typename IO, LikeType<SliceState> T>
void Fields(IO& io, T& slice) {
  io(slice.updates, slice.updates_in_epoch, slice.skipped, slice.version_lsn[0],
     slice.version_lsn[1], slice.recent);
}

template <typename IO, LikeType<StepDecision> T>
void Fields(IO& io, T& decision) {
  io(decision.step, decision.scale, decision.skipped);
}

template <typename IO, LikeType<ClockTable::Replica> T>
void Fields(IO& io, T& replica) {
  io(replica.member, replica.active);
  if (!DefenceMasked(Defence::kStateClocks)) io(replica.clock);
}

void Fields(ByteWriter& out, const Coverage& covered) { out(covered.floor(), covered.ranges()); }

// Keeps its number of items.
void Fields(ByteReader& in, Coverage& covered) {
  Coverage::Ranges ranges;
  covered.MarkRange(0, in.Get<uint64_t>());
  in(ranges);
  for (const auto& [begin, end] : ranges) covered.MarkRange(begin, end);
}

template <typename IO, typename State>
void PartitionState::Fields(IO& io, State& s) {
  io(s.lsn_, s.digest_, s.view_, s.policy_, s.was_bsp_, s.lags_, s.roster_, s.clocks_,
     s.cut_epochs_);
  if constexpr (!std::is_const_v<State>) s.OpenCoverage(s.cut_epochs_);
  for (auto& [id, slice] : s.slices_) io(slice.state);
  io(s.all_covered_.at(s.cut_epochs_), s.partly_covered_, s.copy_, s.copy_lsn_, s.applied_min_,
     s.applied_max_, s.loss_scale_.log2, s.loss_scale_.clean, s.loss_scale_log2_[0],
     s.loss_scale_log2_[1], s.decided_, s.next_decision_);
}

std::string PartitionState::Write() const {
  std::string bytes;
  ByteWriter out(&bytes);
  out(kPartitionStateMagic, kPartitionStateVersion, uint16_t{0}, config_->run.job, config_->run.era,
      config_->partition, static_cast<uint32_t>(slices_.size()));
  Fields(out, *this);
  out(DigestOf(bytes));
  return bytes;
}

uint64_t PartitionState::BytesMax(const PartitionConfig& config) {
  constexpr uint64_t kFixedBytes = 4096;
  constexpr uint64_t kSliceBytes = 64 + limits::kSliceUpdatesRemembered * sizeof(Lsn);
  constexpr uint64_t kReplicaBytes = 64;
  constexpr uint64_t kOpenItemBytes = 64;  // covered ranges and items of some slices, one bit each
  const uint64_t slices = config.slices.size();
  return kFixedBytes + slices * kSliceBytes + limits::kWorkersPerJobMax * kReplicaBytes +
         config.open_items_max * (kOpenItemBytes + slices / 8);
}

absl::Status PartitionState::Read(absl::string_view bytes) {
  constexpr char kOther[] = "it is of another partition: read that one's own";
  if (bytes.size() < kDigestBytes) return Damaged(absl::StrCat("it has ", bytes.size(), " bytes"));
  const absl::string_view fields = bytes.substr(0, bytes.size() - kDigestBytes);
  ByteReader in(fields);
  STARLING_RETURN_IF_ERROR(CheckEqual("magic", kPartitionStateMagic, in.Get<uint32_t>(), kOther));
  STARLING_RETURN_IF_ERROR(CheckEqual("version", kPartitionStateVersion, in.Get<uint16_t>(),
                                      "read it with the release that wrote it"));
  if (ByteReader(bytes.substr(fields.size())).Get<uint64_t>() != DigestOf(fields))
    return Damaged("its digest is another");
  in.Get<uint16_t>();
  STARLING_RETURN_IF_ERROR(CheckEqual("job", config_->run.job.value, in.Get<uint64_t>(), kOther));
  STARLING_RETURN_IF_ERROR(CheckEqual("era", config_->run.era, in.Get<uint32_t>(), kOther));
  STARLING_RETURN_IF_ERROR(
      CheckEqual("partition", config_->partition.value, in.Get<uint32_t>(), kOther));
  STARLING_RETURN_IF_ERROR(CheckEqual("slices", static_cast<uint32_t>(config_->slices.size()),
                                      in.Get<uint32_t>(), kOther));
  PartitionState read(config_, Empty());
  Fields(in, read);
  if (!in.ok() || in.left() != 0) {
    return Damaged(in.ok() ? absl::StrCat("it has ", in.left(), " bytes too many")
                           : std::string("it ends too early"));
  }
  STARLING_RETURN_IF_ERROR(read.CheckParts());
  // Write never returns parts that are out of order, repeated or contradictory.
  if (read.Write() != bytes) return Damaged("its parts contradict each other");
  *this = std::move(read);
  return absl::OkStatus();
}

// Checks what holds after every sequence of records; a state that passes may still be one that none
// leads to.
absl::Status PartitionState::CheckParts() const {
  if (policy_.policy.kind < PolicyKind::kBsp || policy_.policy.kind > PolicyKind::kAsync)
    return Damaged("its policy is of no known kind");
  for (const auto& [id, replica] : clocks_.replicas()) {
    if (id != replica.member.replica)
      return Damaged(absl::StrCat("replica ", id.value, " has the name of another"));
    if (replica.clock < 0 || replica.clock > limits::kClockMax + 1)
      return Damaged(absl::StrCat("a replica has clock ", replica.clock));
  }
  if (lags_.size() > kLagsRemembered)
    return Damaged(absl::StrCat("it has ", lags_.size(), " lags"));
  for (const auto& [id, slice] : slices_) {
    const SliceState& state = slice.state;
    if (state.skipped > state.updates)
      return Damaged(absl::StrCat("slice ", id.value, " skipped more than it counted"));
    if (state.recent.size() > limits::kSliceUpdatesRemembered ||
        !std::is_sorted(state.recent.begin(), state.recent.end()))
      return Damaged(absl::StrCat("the last updates of slice ", id.value, " are out of order"));
  }
  if (cut_epochs_ > config_->Epochs())
    return Damaged(absl::StrCat("it has cut ", cut_epochs_, " epochs"));
  const Coverage& all = all_covered_.at(cut_epochs_);
  const uint32_t spare = 64 * static_cast<uint32_t>(SliceWords()) - updated_slices_;
  for (const auto& [item, slices] : partly_covered_) {
    const auto [epoch, step] = item;
    const uint32_t count = CountOf(slices);
    if (epoch != cut_epochs_ || step >= all.items() || all.Has(step) ||
        slices.size() != SliceWords() || count == 0 || count >= updated_slices_ ||
        (spare != 0 && slices.back() >> (64 - spare) != 0))
      return Damaged(
          absl::StrCat("step ", step, " of epoch ", epoch, " is covered as none can be"));
  }
  for (const int log2 : loss_scale_log2_) {
    if (log2 < LossScale::kLeastLog2 || log2 > LossScale::kMostLog2)
      return Damaged(absl::StrCat("it has a loss scale of 2^", log2));
  }
  if (LossScale scale; !scale.Restore(loss_scale_))
    return Damaged(absl::StrCat("it has a loss scale of 2^", loss_scale_.log2));
  return absl::OkStatus();
}

}  // namespace starling
