#include "worker/host/push_sink.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "xxhash.h"

namespace starling {
namespace {

// In fixed lanes, so that the compiler may take several elements at once.
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
  PushedGradient gradient;
  gradient.range = static_cast<uint32_t>(range);
  gradient.slice = slice;
  gradient.samples = samples;
  {
    MutexLock lock(&mutex_);
    const auto held = held_.find({range, slice});
    gradient.buffer = std::move(held->second);
    held_.erase(held);
  }
  if (options_.loss_scale_log2 != nullptr) Unscale(gradient);
  if (options_.clip_norm > 0 || options_.whole) {
    MutexLock lock(&mutex_);
    kept_.push_back(std::move(gradient));
    return;
  }
  Send(std::move(gradient));
}

// Dividing by a power of two is exact here: gradients that are made of products of fp16 numbers are
// far above fp32's least. So a sum of ranges has the same bits, whichever of them were divided
// together.
void PushSink::Unscale(PushedGradient& gradient) {
  gradient.loss_scale_log2 = options_.loss_scale_log2();
  const bool scaled = layout_.slices[gradient.slice.value].kind == TRAINABLE;
  const float inverse = scaled ? std::ldexp(1.0f, -gradient.loss_scale_log2) : 1.0f;
  float* const values = gradient.buffer->data;
  bool finite = true;
  for (uint32_t i = 0; i < gradient.buffer->elements; ++i) {
    finite &= std::abs(values[i]) <= std::numeric_limits<float>::max();  // NaN is not
    values[i] *= inverse;
  }
  if (!finite) overflowed_ = true;
  if (overflowed_) Skip(gradient);
}

void PushSink::Skip(PushedGradient& gradient) {
  std::fill_n(gradient.buffer->data, gradient.buffer->elements, 0.0f);
  gradient.skipped = true;
}

void PushSink::Send(PushedGradient gradient) {
  gradient.digest = XXH3_64bits(gradient.buffer->data, gradient.buffer->elements * sizeof(float));
  deliver_(std::move(gradient));
}

float PushSink::Shrink(uint32_t range) const {
  // Summed by slice, whatever became ready first.
  std::pmr::map<SliceId, double> squares(kept_.get_allocator().resource());
  uint32_t samples = 0;
  for (const PushedGradient& gradient : kept_) {
    if (gradient.range != range || layout_.slices[gradient.slice.value].kind != TRAINABLE) continue;
    squares[gradient.slice] = SumOfSquares(gradient.buffer->data, gradient.buffer->elements);
    samples = gradient.samples;
  }
  double sum = 0;
  for (const auto& [slice, of_slice] : squares) sum += of_slice;
  if (options_.clip_norm == 0 || samples == 0 || !std::isfinite(sum)) return 1;
  const double norm = std::sqrt(sum) * options_.batch / samples;
  return norm > options_.clip_norm ? static_cast<float>(options_.clip_norm / norm) : 1;
}

void PushSink::Finish() {
  if (overflowed_) {
    for (PushedGradient& gradient : kept_) Skip(gradient);
  }
  std::pmr::map<uint32_t, float> shrinks(kept_.get_allocator().resource());
  for (const PushedGradient& gradient : kept_) {
    if (shrinks.count(gradient.range) == 0) shrinks[gradient.range] = Shrink(gradient.range);
  }
  for (PushedGradient& gradient : kept_) {
    const float shrink = shrinks[gradient.range];
    if (shrink != 1 && layout_.slices[gradient.slice.value].kind == TRAINABLE) {
      float* const values = gradient.buffer->data;
      for (uint32_t i = 0; i < gradient.buffer->elements; ++i) values[i] *= shrink;
    }
    Send(std::move(gradient));
  }
  kept_.clear();
}

}  // namespace starling
