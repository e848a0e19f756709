#include "common/data_plan/epoch_order.h"

#include <Random123/philox.h>

#include <bit>

#include "common/base/check.h"
#include "common/protocol/limits.h"

namespace starling {
namespace {

// Separates these draws from all other uses of the job's seed.
constexpr uint32_t kPurpose = 0x4F524452;  // "ORDR"

}  // namespace

EpochOrder::EpochOrder(uint64_t seed, uint32_t epoch, int64_t samples)
    : samples_(static_cast<uint64_t>(samples)) {
  STARLING_CHECK(samples >= 1 && samples <= limits::kSamplesMax, "samples out of range");
  const int bits = std::bit_width(samples_ - 1);
  low_bits_ = bits / 2;
  low_mask_ = (uint64_t{1} << low_bits_) - 1;
  high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}};
  for (int i = 0; i < kRounds; i += 2) {
    const r123::Philox4x32::ctr_type counter = {{static_cast<uint32_t>(i), epoch, 0, kPurpose}};
    const auto random = r123::Philox4x32()(counter, key);
    keys_[i] = random[0] | uint64_t{random[1]} << 32;
    keys_[i + 1] = random[2] | uint64_t{random[3]} << 32;
  }
}

int64_t SampleAt(uint64_t seed, uint32_t epoch, int64_t position, int64_t samples) {
  return EpochOrder(seed, epoch, samples).SampleAt(position);
}

}  // namespace starling
