// A partition's state as bytes. Little-endian, fields one behind the other:
//   magic u32, version u16, 0 u16, run (job u64, era u32), partition u32, slices u32,
//   the parts in the order of Write, XXH3-64 of all before as u64
#include <bit>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/byte_io.h"
#include "common/base/status_macros.h"
#include "common/defences.h"
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

void Put(ByteWriter& out, const Origin& origin) {
  out.Put(origin.replica.value);
  out.Put(origin.worker.value);
  out.Put(origin.incarnation.value);
  out.Put(origin.attempt);
}

Origin GetOrigin(ByteReader& in) {
  Origin origin;
  origin.replica = ReplicaId(in.Get<uint32_t>());
  origin.worker = WorkerId(in.Get<uint32_t>());
  origin.incarnation = Incarnation(in.Get<uint64_t>());
  origin.attempt = in.Get<uint32_t>();
  return origin;
}

void Put(ByteWriter& out, const PolicyAt& policy) {
  out.Put(policy.number.value);
  out.Put(static_cast<uint8_t>(policy.policy.kind));
  out.Put(policy.policy.staleness);
  out.Put(policy.step);
}

PolicyAt GetPolicy(ByteReader& in) {
  PolicyAt policy;
  policy.number = PolicyNumber(in.Get<uint32_t>());
  policy.policy.kind = static_cast<PolicyKind>(in.Get<uint8_t>());
  policy.policy.staleness = in.Get<uint32_t>();
  policy.step = in.Get<uint64_t>();
  return policy;
}

uint64_t DigestOf(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace

std::string PartitionState::Write() const {
  std::string bytes;
  ByteWriter out(&bytes);
  out.Put(kPartitionStateMagic);
  out.Put(kPartitionStateVersion);
  out.Put(uint16_t{0});
  out.Put(config_->run.job.value);
  out.Put(config_->run.era);
  out.Put(config_->partition.value);
  out.Put(static_cast<uint32_t>(slices_.size()));

  out.Put(lsn_.value);
  out.Put(digest_);
  out.Put(view_.value);
  Put(out, policy_);
  out.Put(static_cast<uint8_t>(was_bsp_));
  out.Put(static_cast<uint32_t>(lags_.size()));
  for (const uint64_t lag : lags_) out.Put(lag);

  out.Put(roster_.value);
  out.Put(clocks_.min());
  out.Put(clocks_.max());
  out.Put(static_cast<uint32_t>(clocks_.replicas().size()));
  for (const auto& [id, replica] : clocks_.replicas()) {
    out.Put(id.value);
    out.Put(replica.member.worker.value);
    out.Put(replica.member.incarnation.value);
    out.Put(replica.member.joined);
    out.Put(DefenceMasked(Defence::kStateClocks) ? Clock{0} : replica.clock);
    out.Put(static_cast<uint8_t>(replica.active));
  }

  for (const auto& [id, slice] : slices_) {
    out.Put(id.value);
    out.Put(slice.state.updates);
    out.Put(slice.state.updates_in_epoch);
    out.Put(slice.state.skipped);
    for (const Lsn lsn : slice.state.version_lsn) out.Put(lsn.value);
    out.Put(static_cast<uint32_t>(slice.state.recent.size()));
    for (const Lsn lsn : slice.state.recent) out.Put(lsn.value);
  }

  out.Put(cut_epochs_);
  out.Put(static_cast<uint32_t>(all_covered_.size()));
  for (const auto& [epoch, covered] : all_covered_) {
    out.Put(epoch);
    out.Put(covered.floor());
    out.Put(static_cast<uint32_t>(covered.ranges().size()));
    for (const auto& [begin, end] : covered.ranges()) {
      out.Put(begin);
      out.Put(end);
    }
  }
  out.Put(static_cast<uint32_t>(partly_covered_.size()));
  for (const auto& [item, covered] : partly_covered_) {
    out.Put(item.first);
    out.Put(item.second);
    for (const uint64_t word : covered.slices) out.Put(word);
  }

  out.Put(static_cast<uint8_t>(copy_.has_value()));
  out.Put(copy_.value_or(0));
  out.Put(copy_lsn_.value);
  out.Put(applied_min_);
  out.Put(applied_max_);

  out.Put(loss_scale_.log2);
  out.Put(loss_scale_.clean);
  for (const int log2 : loss_scale_log2_) out.Put(log2);
  const StepDecision decided = decided_.value_or(StepDecision());
  out.Put(static_cast<uint8_t>(decided_.has_value()));
  out.Put(decided.step);
  out.Put(decided.scale);
  out.Put(static_cast<uint8_t>(decided.skipped.has_value()));
  Put(out, decided.skipped.value_or(Origin()));
  out.Put(next_decision_);

  out.Put(DigestOf(bytes));
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
  lsn_ = Lsn(in.Get<uint64_t>());
  digest_ = in.Get<uint64_t>();
  view_ = ViewNumber(in.Get<uint64_t>());
  policy_ = GetPolicy(in);
  if (policy_.policy.kind < PolicyKind::kBsp || policy_.policy.kind > PolicyKind::kAsync)
    return Damaged("its policy is of no known kind");
  was_bsp_ = in.Get<uint8_t>() != 0;
  uint32_t lags = 0;
  STARLING_RETURN_IF_ERROR(GetCount(in, kLagsRemembered, sizeof(uint64_t), "lags", &lags));
  for (uint32_t i = 0; i < lags; ++i) lags_.push_back(in.Get<uint64_t>());
  STARLING_RETURN_IF_ERROR(ReadClocks(in));
  STARLING_RETURN_IF_ERROR(ReadSlices(in));
  STARLING_RETURN_IF_ERROR(ReadCoverage(in));
  const bool has_copy = in.Get<uint8_t>() != 0;
  copy_ = in.Get<uint32_t>();
  if (!has_copy) copy_.reset();
  copy_lsn_ = Lsn(in.Get<uint64_t>());
  applied_min_ = in.Get<uint64_t>();
  applied_max_ = in.Get<uint64_t>();

  loss_scale_.log2 = in.Get<int32_t>();
  loss_scale_.clean = in.Get<uint32_t>();
  for (int& log2 : loss_scale_log2_) {
    log2 = in.Get<int32_t>();
    if (log2 < LossScale::kLeastLog2 || log2 > LossScale::kMostLog2)
      return Damaged(absl::StrCat("it has a loss scale of 2^", log2));
  }
  if (LossScale scale; !scale.Restore(loss_scale_))
    return Damaged(absl::StrCat("it has a loss scale of 2^", loss_scale_.log2));
  const bool has_decided = in.Get<uint8_t>() != 0;
  StepDecision decided;
  decided.step = in.Get<int64_t>();
  decided.scale = in.GetFloat();
  const bool skipped = in.Get<uint8_t>() != 0;
  const Origin by = GetOrigin(in);
  if (skipped) decided.skipped = by;
  if (has_decided) decided_ = decided;
  next_decision_ = in.Get<int64_t>();
  return absl::OkStatus();
}

absl::Status PartitionState::ReadClocks(ByteReader& in) {
  roster_ = RosterNumber(in.Get<uint64_t>());
  const auto min = in.Get<int64_t>();
  const auto max = in.Get<int64_t>();
  uint32_t count = 0;
  STARLING_RETURN_IF_ERROR(
      GetCount(in, limits::kWorkersPerJobMax, kReplicaBytes, "members", &count));
  std::vector<ClockTable::Replica> replicas(count);
  for (ClockTable::Replica& replica : replicas) {
    replica.member.replica = ReplicaId(in.Get<uint32_t>());
    replica.member.worker = WorkerId(in.Get<uint32_t>());
    replica.member.incarnation = Incarnation(in.Get<uint64_t>());
    replica.member.joined = in.Get<int64_t>();
    replica.clock = in.Get<int64_t>();
    replica.active = in.Get<uint8_t>() != 0;
    if (replica.clock < 0 || replica.clock > limits::kClockMax + 1)
      return Damaged(absl::StrCat("a replica has clock ", replica.clock));
  }
  clocks_.Restore(replicas, min, max);
  return absl::OkStatus();
}

absl::Status PartitionState::ReadSlices(ByteReader& in) {
  for (auto& [id, slice] : slices_) {
    if (const auto came = in.Get<uint32_t>(); came != id.value)
      return Damaged(absl::StrCat("slice ", id.value, " is missing; came ", came));
    slice.state.updates = in.Get<uint64_t>();
    slice.state.updates_in_epoch = in.Get<uint64_t>();
    slice.state.skipped = in.Get<uint64_t>();
    for (Lsn& lsn : slice.state.version_lsn) lsn = Lsn(in.Get<uint64_t>());
    uint32_t recent = 0;
    STARLING_RETURN_IF_ERROR(
        GetCount(in, kUpdatesRemembered, sizeof(uint64_t), "updates of a slice", &recent));
    for (uint32_t i = 0; i < recent; ++i) {
      const Lsn lsn(in.Get<uint64_t>());
      const Lsn before = slice.state.recent.empty() ? Lsn() : slice.state.recent.back();
      if (lsn <= before || lsn > lsn_)
        return Damaged(absl::StrCat("slice ", id.value, " was updated at ", lsn.value));
      slice.state.recent.push_back(lsn);
    }
    if (slice.state.skipped > slice.state.updates)
      return Damaged(absl::StrCat("slice ", id.value, " skipped more than it counted"));
  }
  return absl::OkStatus();
}

// Of the open epoch alone: what was cut is covered, and nothing is counted beyond.
absl::Status PartitionState::ReadCoverage(ByteReader& in) {
  cut_epochs_ = in.Get<uint32_t>();
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
