#include "worker/host/push_sink.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "common/base/xxh3.h"

namespace starling {
namespace {

// In fixed lanes, so that the compiler can vectorize it.
double SumOfSquares(const float* values, size_t count) {
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double x = values[i + lane];
      lanes[lane] += x * x;
    }
  }
  for (; i < count; ++i) lanes[0] += static_cast<double>(values[i]) * values[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

PushSink::PushSink(const Layout& layout, std::shared_ptr<GradientPool> pool, const Options& options,
                   Deliver deliver, std::pmr::memory_resource* memory)
    : layout_(layout),
      pool_(std::move(pool)),
      options_(options),
      deliver_(std::move(deliver)),
      held_(memory),
      kept_(memory) {}

float* PushSink::Acquire(size_t range, SliceId slice) {
  if (options_.progress != nullptr) options_.progress->BeginWait();
  auto buffer = GradientPool::Acquire(pool_, slice, options_.most);
  if (options_.progress != nullptr) options_.progress->EndWait();
  if (buffer == nullptr) {
    failed_ = true;
    return nullptr;
  }
  float* data = buffer->data;
  MutexLock lock(&mutex_);
  held_[{range, slice}] = std::move(buffer);
  return data;
}

void PushSink::Ready(size_t range, SliceId slice, uint32_t samples) {
  Sum sum;
  sum.gradient.unit = options_.unit;
  sum.gradient.range = static_cast<uint32_t>(range);
  sum.gradient.slice = slice;
  sum.gradient.samples = samples;
  {
    MutexLock lock(&mutex_);
    const auto held = held_.find({range, slice});
    sum.buffer = std::move(held->second);
    held_.erase(held);
  }
  if (options_.loss_scale_log2 != nullptr) Unscale(sum);
  if (options_.clip_norm > 0 || options_.whole) {
    MutexLock lock(&mutex_);
    kept_.push_back(std::move(sum));
    return;
  }
  Send(std::move(sum));
}

// Dividing by a power of two is exact here, since gradients made of products of fp16 numbers are
// far above fp32's minimum. So a sum of ranges has the same bits no matter which of them were
// divided together.
void PushSink::Unscale(Sum& sum) {
  const int log2 = options_.loss_scale_log2();
  sum.gradient.loss_scale_log2 = static_cast<uint8_t>(log2);
  const float inverse = Trainable(sum) ? std::ldexp(1.0f, -log2) : 1.0f;
  float* const values = sum.buffer->data;
  bool finite = true;
  for (uint32_t i = 0; i < sum.buffer->elements; ++i) {
    finite &= std::abs(values[i]) <= std::numeric_limits<float>::max();  // false for NaN
    values[i] *= inverse;
  }
  if (!finite) overflowed_ = true;
  if (overflowed_) Skip(sum);
}

void PushSink::Skip(Sum& sum) {
  std::fill_n(sum.buffer->data, sum.buffer->elements, 0.0f);
  sum.gradient.skipped = true;
}

void PushSink::Send(Sum sum) {
  if (options_.spoiled) sum.buffer->data[0] = std::numeric_limits<float>::quiet_NaN();
  sum.buffer->digest = XXH3_64bits(sum.buffer->data, sum.buffer->elements * sizeof(float));
  deliver_(sum.gradient, std::move(sum.buffer));
}

float PushSink::Shrink(uint32_t range) const {
  // Summed in the order of slices, no matter which became ready first.
  std::pmr::map<SliceId, double> squares(kept_.get_allocator().resource());
  uint32_t samples = 0;
  for (const Sum& sum : kept_) {
    if (sum.gradient.range != range || !Trainable(sum)) continue;
    squares[sum.gradient.slice] = SumOfSquares(sum.buffer->data, sum.buffer->elements);
    samples = sum.gradient.samples;
  }
  double total = 0;
  for (const auto& [slice, of_slice] : squares) total += of_slice;
  if (options_.clip_norm == 0 || samples == 0 || !std::isfinite(total)) return 1;
  const double norm = std::sqrt(total) * options_.batch / samples;
  return norm > options_.clip_norm ? static_cast<float>(options_.clip_norm / norm) : 1;
}

void PushSink::Finish() {
  if (overflowed_) {
    for (Sum& sum : kept_) Skip(sum);
  }
  std::pmr::map<uint32_t, float> shrinks(kept_.get_allocator().resource());
  for (const Sum& sum : kept_) {
    const uint32_t range = sum.gradient.range;
    if (shrinks.count(range) == 0) shrinks[range] = Shrink(range);
  }
  for (Sum& sum : kept_) {
    const float shrink = shrinks[sum.gradient.range];
    if (shrink != 1 && Trainable(sum)) {
      float* const values = sum.buffer->data;
      for (uint32_t i = 0; i < sum.buffer->elements; ++i) values[i] *= shrink;
    }
    Send(std::move(sum));
  }
  kept_.clear();
}

}  // namespace starling
