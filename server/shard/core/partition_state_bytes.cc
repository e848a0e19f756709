// A partition's state as bytes. Little-endian, fields one behind the other:
//   magic u32, version u16, 0 u16, run (job u64, era u32), partition u32, slices u32,
//   the parts in the order of Write, XXH3-64 of all before as u64
#include <bit>
#include <deque>
#include <vector>

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
constexpr size_t kReplicaBytes = 33;

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

// A count that is believed: so many items are really there.
absl::Status GetCount(ByteReader& in, size_t most, size_t bytes_each, absl::string_view what,
                      uint32_t* count) {
  *count = in.Get<uint32_t>();
  if (in.ok() && *count <= most && *count * bytes_each <= in.left()) return absl::OkStatus();
  return Damaged(absl::StrCat("it says ", *count, " ", what, ", and has ", in.left(), " bytes"));
}

template <typename T>
absl::Status GetList(ByteReader& in, size_t most, absl::string_view what, std::deque<T>* list) {
  uint32_t count = 0;
  STARLING_RETURN_IF_ERROR(GetCount(in, most, sizeof(T), what, &count));
  for (list->resize(count); T & item : *list) in(item);
  return absl::OkStatus();
}

uint64_t DigestOf(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace

// What is remembered of single updates follows.
template <typename IO, LikeType<SliceState> T>
void Fields(IO& io, T& slice) {
  io(slice.updates, slice.updates_in_epoch, slice.skipped, slice.version_lsn[0],
     slice.version_lsn[1]);
}

template <typename IO, LikeType<StepDecision> T>
void Fields(IO& io, T& decision) {
  io(decision.step, decision.scale, decision.skipped);
}

template <typename IO, typename State>
void PartitionState::FirstFields(IO& io, State& s) {
  io(s.lsn_, s.digest_, s.view_, s.policy_, s.was_bsp_);
}

template <typename IO, typename State>
void PartitionState::LastFields(IO& io, State& s) {
  io(s.copy_, s.copy_lsn_, s.applied_min_, s.applied_max_, s.loss_scale_.log2, s.loss_scale_.clean,
     s.loss_scale_log2_[0], s.loss_scale_log2_[1], s.decided_, s.next_decision_);
}

std::string PartitionState::Write() const {
  std::string bytes;
  ByteWriter out(&bytes);
  out(kPartitionStateMagic, kPartitionStateVersion, uint16_t{0}, config_->run.job, config_->run.era,
      config_->partition, static_cast<uint32_t>(slices_.size()));
  FirstFields(out, *this);
  out.Each(lags_);

  out(roster_, clocks_.min(), clocks_.max(), static_cast<uint32_t>(clocks_.replicas().size()));
  for (const auto& [id, replica] : clocks_.replicas()) {
    out(replica.member, DefenceMasked(Defence::kStateClocks) ? Clock{0} : replica.clock,
        replica.active);
  }
  for (const auto& [id, slice] : slices_) {
    out(id, slice.state);
    out.Each(slice.state.recent);
  }

  out(cut_epochs_, static_cast<uint32_t>(all_covered_.size()));
  for (const auto& [epoch, covered] : all_covered_) {
    out(epoch, covered.floor(), static_cast<uint32_t>(covered.ranges().size()));
    for (const auto& [begin, end] : covered.ranges()) out(begin, end);
  }
  out(static_cast<uint32_t>(partly_covered_.size()));
  for (const auto& [item, covered] : partly_covered_) {
    out(item.first, item.second);
    for (const uint64_t word : covered.slices) out(word);
  }

  LastFields(out, *this);
  out(DigestOf(bytes));
  return bytes;
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
  PartitionState read(config_);
  STARLING_RETURN_IF_ERROR(read.ReadFields(in));
  if (!in.ok() || in.left() != 0) {
    return Damaged(in.ok() ? absl::StrCat("it has ", in.left(), " bytes too many")
                           : std::string("it ends too early"));
  }
  // What is out of order, twice there, or contradicts itself is not what Write gives.
  if (read.Write() != bytes) return Damaged("its parts contradict each other");
  *this = std::move(read);
  return absl::OkStatus();
}

absl::Status PartitionState::ReadFields(ByteReader& in) {
  FirstFields(in, *this);
  if (policy_.policy.kind < PolicyKind::kBsp || policy_.policy.kind > PolicyKind::kAsync)
    return Damaged("its policy is of no known kind");
  STARLING_RETURN_IF_ERROR(GetList(in, kLagsRemembered, "lags", &lags_));
  STARLING_RETURN_IF_ERROR(ReadClocks(in));
  STARLING_RETURN_IF_ERROR(ReadSlices(in));
  STARLING_RETURN_IF_ERROR(ReadCoverage(in));
  LastFields(in, *this);
  for (const int log2 : loss_scale_log2_) {
    if (log2 < LossScale::kLeastLog2 || log2 > LossScale::kMostLog2)
      return Damaged(absl::StrCat("it has a loss scale of 2^", log2));
  }
  if (LossScale scale; !scale.Restore(loss_scale_))
    return Damaged(absl::StrCat("it has a loss scale of 2^", loss_scale_.log2));
  return absl::OkStatus();
}

absl::Status PartitionState::ReadClocks(ByteReader& in) {
  Clock min = 0;
  Clock max = 0;
  in(roster_, min, max);
  uint32_t count = 0;
  STARLING_RETURN_IF_ERROR(
      GetCount(in, limits::kWorkersPerJobMax, kReplicaBytes, "members", &count));
  std::vector<ClockTable::Replica> replicas(count);
  for (ClockTable::Replica& replica : replicas) {
    in(replica.member, replica.clock, replica.active);
    if (replica.clock < 0 || replica.clock > limits::kClockMax + 1)
      return Damaged(absl::StrCat("a replica has clock ", replica.clock));
  }
  clocks_.Restore(replicas, min, max);
  return absl::OkStatus();
}

absl::Status PartitionState::ReadSlices(ByteReader& in) {
  for (auto& [id, slice] : slices_) {
    if (const auto came = in.Get<SliceId>(); came != id)
      return Damaged(absl::StrCat("slice ", id.value, " is missing; came ", came.value));
    SliceState& state = slice.state;
    in(state);
    STARLING_RETURN_IF_ERROR(GetList(in, kUpdatesRemembered, "updates of a slice", &state.recent));
    Lsn before;
    for (const Lsn lsn : state.recent) {
      if (lsn <= before || lsn > lsn_)
        return Damaged(absl::StrCat("slice ", id.value, " was updated at ", lsn.value));
      before = lsn;
    }
    if (state.skipped > state.updates)
      return Damaged(absl::StrCat("slice ", id.value, " skipped more than it counted"));
  }
  return absl::OkStatus();
}

// Of the open epoch alone: what was cut is covered, and nothing is counted beyond.
absl::Status PartitionState::ReadCoverage(ByteReader& in) {
  in(cut_epochs_);
  if (cut_epochs_ > config_->Epochs() || in.Get<uint32_t>() != 1 ||
      in.Get<uint32_t>() != cut_epochs_)
    return Damaged(absl::StrCat("it has cut ", cut_epochs_, " epochs, and covers another"));
  const uint64_t items = config_->StepsIn(cut_epochs_);
  Coverage all(items);
  all.MarkRange(0, in.Get<uint64_t>());
  uint32_t ranges = 0;
  STARLING_RETURN_IF_ERROR(
      GetCount(in, in.left(), 2 * sizeof(uint64_t), "ranges of steps", &ranges));
  for (uint32_t i = 0; i < ranges; ++i) {
    const auto begin = in.Get<uint64_t>();
    all.MarkRange(begin, in.Get<uint64_t>());
  }
  all_covered_.clear();
  all_covered_.try_emplace(cut_epochs_, all);

  const size_t words = (updated_slices_ + 63) / 64;
  uint32_t partly = 0;
  STARLING_RETURN_IF_ERROR(GetCount(in, in.left(), sizeof(uint32_t) + (1 + words) * 8,
                                    "steps that some slices cover", &partly));
  for (uint32_t i = 0; i < partly; ++i) {
    const auto epoch = in.Get<uint32_t>();
    const auto item = in.Get<uint64_t>();
    PartlyCovered covered;
    for (size_t word = 0; word < words; ++word) {
      covered.slices.push_back(in.Get<uint64_t>());
      covered.count += static_cast<uint32_t>(std::popcount(covered.slices.back()));
    }
    const uint32_t spare = static_cast<uint32_t>(64 * words) - updated_slices_;
    const bool beyond = spare != 0 && covered.slices.back() >> (64 - spare) != 0;
    if (epoch != cut_epochs_ || item >= items || all.Has(item) || covered.count == 0 ||
        covered.count >= updated_slices_ || beyond)
      return Damaged(
          absl::StrCat("step ", item, " of epoch ", epoch, " is covered as none can be"));
    partly_covered_.try_emplace({epoch, item}, std::move(covered));
  }
  return absl::OkStatus();
}

}  // namespace starling
