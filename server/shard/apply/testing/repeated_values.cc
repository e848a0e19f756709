#include "server/shard/apply/testing/repeated_values.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/shard/apply/verify.h"
#include "xxhash.h"

namespace starling {
namespace {

absl::Status Refuse(const Record& record, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("payload of record ", record.lsn.value, ": ", what,
                                                 "; read it again from where it came"));
}

absl::Status CheckPayload(const Record& record, size_t elements, Payload payload) {
  if (PayloadBytes(payload) != elements * sizeof(float)) {
    return Refuse(record, absl::StrCat("expected ", elements * sizeof(float), " bytes, came ",
                                       PayloadBytes(payload)));
  }
  const PayloadVerdict verdict = VerifyPayload(payload);
  if (record.digest != 0 && verdict.digest != record.digest) {
    return Refuse(record,
                  absl::StrCat("expected digest ", record.digest, ", came ", verdict.digest));
  }
  if (verdict.first_non_finite < 0) return absl::OkStatus();
  return Refuse(record, absl::StrCat("element ", verdict.first_non_finite, " is not finite"));
}

}  // namespace

void ValuesDigest::Add(absl::Span<const float> values) {
  digest_ = XXH3_64bits_withSeed(values.data(), values.size() * sizeof(float), digest_);
}

void RepeatedValues::AddSlice(SliceId id, UpdateRule rule, std::vector<float> first) {
  Slice& slice = slices_[id];
  const int slots = rule.slots();
  if (slots > 0) slice.slots[0].assign(first.size(), rule.first_slot0);
  if (slots > 1) slice.slots[1].assign(first.size(), 0);
  slice.values = std::move(first);
  slice.rule = std::move(rule);
}

absl::Status RepeatedValues::Repeat(const Record& record, Payload payload) {
  if (record.kind != RecordKind::kApply) return absl::OkStatus();
  const auto it = slices_.find(record.slice);
  if (it == slices_.end())
    return Refuse(record, absl::StrCat("slice ", record.slice.value, " is not here"));
  Slice& slice = it->second;
  if (absl::Status fits = CheckPayload(record, slice.values.size(), payload); !fits.ok())
    return fits;
  if (record.skipped) return absl::OkStatus();
  const auto slot = [&](size_t i) { return slice.slots[i].empty() ? nullptr : &slice.slots[i][0]; };
  ApplyUpdate(slice.rule, record.scalars, payload,
              {slice.values.data(), slice.values.data(), slot(0), slot(1), slice.values.size()});
  return absl::OkStatus();
}

uint64_t RepeatedValues::Digest() const {
  ValuesDigest digest;
  for (const auto& [id, slice] : slices_) {
    digest.Add(slice.values);
    for (int slot = 0; slot < slice.rule.slots(); ++slot) digest.Add(slice.slots[slot]);
  }
  return digest.digest();
}

}  // namespace starling
