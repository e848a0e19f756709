#include "server/shard/apply/verify.h"

#include <algorithm>
#include <cstring>

namespace starling {
namespace {

constexpr uint32_t kExponent = 0x7f800000;  // all ones: infinite or NaN
constexpr size_t kBlockBytes = 16 << 10;    // well within the first-level cache

typedef uint32_t UnalignedBits __attribute__((aligned(1), may_alias));

// A plain reduction, which the compiler vectorizes as wide as the target allows.
__attribute__((always_inline)) inline bool AnyNonFinite(const UnalignedBits* bits, size_t count) {
  uint32_t found = 0;
  for (size_t i = 0; i < count; ++i) found |= (bits[i] & kExponent) == kExponent ? 1u : 0u;
  return found != 0;
}

bool AnyNonFinitePortable(const UnalignedBits* bits, size_t count) {
  return AnyNonFinite(bits, count);
}
#if defined(__x86_64__)
STARLING_APPLY_AVX2 bool AnyNonFiniteAvx2(const UnalignedBits* bits, size_t count) {
  return AnyNonFinite(bits, count);
}
STARLING_APPLY_AVX512 bool AnyNonFiniteAvx512(const UnalignedBits* bits, size_t count) {
  return AnyNonFinite(bits, count);
}
#endif

using Check = bool (*)(const UnalignedBits*, size_t);

Check CheckFor(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return AnyNonFiniteAvx512;
  if (set == InstructionSet::kAvx2) return AnyNonFiniteAvx2;
#endif
  (void)set;
  return AnyNonFinitePortable;
}

// -1: none.
int64_t FirstIn(Check check, const UnalignedBits* bits, size_t count) {
  if (!check(bits, count)) return -1;
  int64_t bad = 0;
  while ((bits[bad] & kExponent) != kExponent) ++bad;
  return bad;
}

}  // namespace

PayloadCheck::PayloadCheck(InstructionSet set) : set_(set) { XXH3_64bits_reset(&digest_); }

void PayloadCheck::Add(PayloadPiece piece) {
  for (size_t begin = 0; begin < piece.size(); begin += kBlockBytes) {
    const size_t size = std::min(kBlockBytes, piece.size() - begin);
    XXH3_64bits_update(&digest_, piece.data() + begin, size);
    Scan(piece.data() + begin, size);
  }
}

PayloadVerdict PayloadCheck::verdict() const {
  return {XXH3_64bits_digest(&digest_), first_non_finite_};
}

void PayloadCheck::Scan(const uint8_t* bytes, size_t size) {
  if (carried_ > 0) {
    const size_t take = std::min(sizeof(carry_) - carried_, size);
    std::memcpy(carry_ + carried_, bytes, take);
    carried_ += take;
    bytes += take;
    size -= take;
    if (carried_ < sizeof(carry_)) return;
    Look(carry_, 1);
    carried_ = 0;
  }
  Look(bytes, size / sizeof(float));
  carried_ = size % sizeof(float);
  std::memcpy(carry_, bytes + size - carried_, carried_);
}

void PayloadCheck::Look(const uint8_t* bytes, size_t count) {
  const UnalignedBits* bits =
      reinterpret_cast<const UnalignedBits*>(bytes);  // auto would lose the alignment
  const int64_t bad = first_non_finite_ < 0 ? FirstIn(CheckFor(set_), bits, count) : -1;
  if (bad >= 0) first_non_finite_ = static_cast<int64_t>(element_) + bad;
  element_ += count;
}

PayloadVerdict VerifyPayload(Payload payload, InstructionSet set) {
  PayloadCheck check(set);
  for (const PayloadPiece piece : payload) check.Add(piece);
  return check.verdict();
}

int64_t FirstNonFinite(const float* values, size_t count, InstructionSet set) {
  const UnalignedBits* bits = reinterpret_cast<const UnalignedBits*>(values);
  return FirstIn(CheckFor(set), bits, count);
}

}  // namespace starling
