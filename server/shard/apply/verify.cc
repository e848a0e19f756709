#include "server/shard/apply/verify.h"

#include <algorithm>

#include "common/base/xxh3.h"

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

// Tracks elements across blocks that may start and end inside one.
class FiniteScan {
 public:
  explicit FiniteScan(Check check) : check_(check) {}

  void Add(const uint8_t* bytes, size_t size) {
    while (carried_ > 0 && size > 0) {
      carry_[carried_++] = *bytes++;
      --size;
      if (carried_ == sizeof(float)) {
        Look(carry_, 1);
        carried_ = 0;
      }
    }
    Look(bytes, size / sizeof(float));
    for (size_t i = size - size % sizeof(float); i < size; ++i) carry_[carried_++] = bytes[i];
  }

  int64_t first_non_finite() const { return first_; }

 private:
  void Look(const uint8_t* bytes, size_t count) {
    const UnalignedBits* bits =
        reinterpret_cast<const UnalignedBits*>(bytes);  // auto would lose the alignment
    const int64_t bad = first_ < 0 ? FirstIn(check_, bits, count) : -1;
    if (bad >= 0) first_ = static_cast<int64_t>(element_) + bad;
    element_ += count;
  }

  const Check check_;
  uint8_t carry_[sizeof(float)];
  size_t carried_ = 0;
  uint64_t element_ = 0;
  int64_t first_ = -1;
};

}  // namespace

PayloadVerdict VerifyPayload(Payload payload, InstructionSet set) {
  FiniteScan scan(CheckFor(set));
  XXH3_state_t digest;
  XXH3_64bits_reset(&digest);
  for (const PayloadPiece piece : payload) {
    for (size_t begin = 0; begin < piece.size(); begin += kBlockBytes) {
      const size_t size = std::min(kBlockBytes, piece.size() - begin);
      XXH3_64bits_update(&digest, piece.data() + begin, size);
      scan.Add(piece.data() + begin, size);
    }
  }
  return {XXH3_64bits_digest(&digest), scan.first_non_finite()};
}

int64_t FirstNonFinite(const float* values, size_t count, InstructionSet set) {
  const UnalignedBits* bits = reinterpret_cast<const UnalignedBits*>(values);
  return FirstIn(CheckFor(set), bits, count);
}

}  // namespace starling
