// Which items of an epoch are covered: all below a floor, and some above it.
#ifndef STARLING_SERVER_SHARD_CORE_COVERAGE_H_
#define STARLING_SERVER_SHARD_CORE_COVERAGE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

// Not thread-safe.
class Coverage {
 public:
  explicit Coverage(uint64_t items) : items_(items), words_((items + 63) / 64) {}

  // Items beyond the last are not covered.
  bool Has(uint64_t item) const {
    return item < items_ && (item < floor_ || (words_[item / 64] >> (item % 64) & 1) != 0);
  }

  // Whether it was not covered before. `item` is below items().
  bool Mark(uint64_t item) {
    if (Has(item)) return false;
    words_[item / 64] |= uint64_t{1} << (item % 64);
    while (floor_ < items_ && (words_[floor_ / 64] >> (floor_ % 64) & 1) != 0) ++floor_;
    return true;
  }

  uint64_t items() const { return items_; }
  uint64_t floor() const { return floor_; }  // all items below are covered, this one is not
  bool complete() const { return floor_ == items_; }

  // Bit i % 8 of byte i / 8 is item floor() + i; without trailing zero bytes.
  std::string BitsAboveFloor() const {
    std::string bits;
    for (uint64_t item = floor_; item < items_; ++item) {
      const uint64_t i = item - floor_;
      if (!Has(item)) continue;
      bits.resize(i / 8 + 1, '\0');
      bits[i / 8] = static_cast<char>(static_cast<uint8_t>(bits[i / 8]) | 1 << (i % 8));
    }
    return bits;
  }

 private:
  uint64_t items_;
  uint64_t floor_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_COVERAGE_H_
