// Durations in buckets.
#ifndef STARLING_COMMON_ADMIN_HISTOGRAM_H_
#define STARLING_COMMON_ADMIN_HISTOGRAM_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace starling::admin {

// Upper bounds in seconds, from a small push on one machine to a step that takes a minute.
inline constexpr std::array<double, 12> kSecondsBounds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03,
                                                          0.1,    0.3,    1,     3,     10,   30};

struct SecondsCounts {
  // Not cumulative. The last bucket is for values above all bounds.
  std::array<uint64_t, kSecondsBounds.size() + 1> buckets{};
  double sum = 0;
};

// Thread-safe. Observe costs two relaxed additions and takes no lock.
class SecondsHistogram {
 public:
  void Observe(double seconds) {
    size_t bucket = 0;
    while (bucket < kSecondsBounds.size() && seconds > kSecondsBounds[bucket]) ++bucket;
    buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_us_.fetch_add(static_cast<uint64_t>(seconds * 1e6 + 0.5), std::memory_order_relaxed);
  }
  void ObserveMicros(uint64_t us) { Observe(1e-6 * static_cast<double>(us)); }

  SecondsCounts counts() const {
    SecondsCounts counts;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      counts.buckets[i] = buckets_[i].load(std::memory_order_relaxed);
    }
    counts.sum = 1e-6 * static_cast<double>(sum_us_.load(std::memory_order_relaxed));
    return counts;
  }

 private:
  std::array<std::atomic<uint64_t>, kSecondsBounds.size() + 1> buckets_{};
  std::atomic<uint64_t> sum_us_ = 0;
};

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_HISTOGRAM_H_
