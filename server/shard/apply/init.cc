#include "server/shard/apply/init.h"

#include <Random123/philox.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "xxhash.h"

namespace starling {
namespace {

using Philox = r123::Philox4x64;

// 53 bits, uniform on [0, 1).
double UnitInterval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

double StandardNormal(const Philox::ctr_type& random) {
  const double radius = std::sqrt(-2 * std::log(1 - UnitInterval(random[0])));  // 1 - u > 0
  return radius * std::cos(2 * std::numbers::pi * UnitInterval(random[1]));
}

// Rounding to float must not reach the open end of [-value, value).
float UniformElement(double value, const Philox::ctr_type& random) {
  const float element = static_cast<float>(value * (2 * UnitInterval(random[0]) - 1));
  const float end = static_cast<float>(value);
  return element < end || end <= 0 ? element : std::nextafter(end, 0.0f);
}

}  // namespace

void InitParameter(uint64_t seed, absl::string_view name, const Initializer& init, uint64_t begin,
                   uint64_t length, float* out) {
  if (init.kind() != Initializer::UNIFORM && init.kind() != Initializer::NORMAL) {
    std::fill_n(out, length,
                init.kind() == Initializer::CONSTANT ? static_cast<float>(init.value()) : 0.0f);
    return;
  }
  const Philox philox;
  const Philox::key_type key = {{seed, XXH3_64bits(name.data(), name.size())}};
  for (uint64_t i = 0; i < length; ++i) {
    const Philox::ctr_type random = philox(Philox::ctr_type{{begin + i, 0, 0, 0}}, key);
    out[i] = init.kind() == Initializer::UNIFORM
                 ? UniformElement(init.value(), random)
                 : static_cast<float>(init.value() * StandardNormal(random));
  }
}

void InitSlice(uint64_t seed, const Graph& graph, const Slice& slice, float* out) {
  for (const Segment& segment : slice.segments) {
    const Parameter& parameter = graph.parameters(static_cast<int>(segment.param));
    InitParameter(seed, parameter.name(), parameter.init(), segment.param_begin, segment.length,
                  out + segment.slice_begin);
  }
}

}  // namespace starling
