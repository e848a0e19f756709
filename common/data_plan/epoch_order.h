// The order in which an epoch visits the samples: a permutation that is a pure function of (seed,
// epoch, number of samples), independent of the number of workers, and costs no memory.
//
// A Feistel network over ceil(log2(n)) bits, split into two halves that may differ by one bit, with
// cycle walking down to [0, n) (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
// Its twelve round keys come from Random123's Philox4x32-10.
#ifndef STARLING_COMMON_DATA_PLAN_EPOCH_ORDER_H_
#define STARLING_COMMON_DATA_PLAN_EPOCH_ORDER_H_

#include <array>
#include <cstdint>

namespace starling {

// Immutable; thread-safe.
class EpochOrder {
 public:
  // `samples` in [1, limits::kSamplesMax] (CHECK).
  EpochOrder(uint64_t seed, uint32_t epoch, int64_t samples);

  // The sample at `position`; both in [0, samples). Takes tens of nanoseconds.
  int64_t SampleAt(int64_t position) const {
    uint64_t x = static_cast<uint64_t>(position);
    do {
      x = Permute(x);
    } while (x >= samples_);
    return static_cast<int64_t>(x);
  }

 private:
  static constexpr int kRounds = 12;

  static uint64_t Mix(uint64_t x) {  // Stafford's variant 13 of MurmurHash3's finalizer
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  uint64_t Permute(uint64_t x) const {
    uint64_t low = x & low_mask_;
    uint64_t high = x >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      low ^= Mix(high + keys_[round]) & low_mask_;
      high ^= Mix(low + keys_[round + 1]) & high_mask_;
    }
    return (high << low_bits_) | low;
  }

  uint64_t samples_;
  int low_bits_;
  uint64_t low_mask_;
  uint64_t high_mask_;
  std::array<uint64_t, kRounds> keys_;
};

// EpochOrder(seed, epoch, samples).SampleAt(position), for a single look-up.
int64_t SampleAt(uint64_t seed, uint32_t epoch, int64_t position, int64_t samples);

}  // namespace starling

#endif  // STARLING_COMMON_DATA_PLAN_EPOCH_ORDER_H_
