#include "tools/bundle/images.h"

#include <algorithm>
#include <array>
#include <random>

#include "common/base/files.h"

namespace starling {
namespace {

constexpr int kSide = 32, kChannels = 3, kClasses = 10, kPeriod = 16;

// Phase steps of a wave along rows and columns, and its amplitude per channel.
struct Kind {
  int down, right;
  std::array<int, kChannels> colour;
};
constexpr Kind kKinds[kClasses] = {
    {0, 1, {4, 1, 1}}, {0, 1, {1, 1, 4}},  {1, 0, {4, 1, 1}},  {1, 0, {1, 1, 4}}, {1, 1, {4, 1, 1}},
    {1, 1, {1, 1, 4}}, {1, -1, {4, 1, 1}}, {1, -1, {1, 1, 4}}, {0, 2, {1, 4, 1}}, {2, 0, {1, 4, 1}},
};

// A triangle wave between -8 and 8, in integers, so that it is the same on every machine.
int Wave(int at) {
  const int phase = ((at % kPeriod) + kPeriod) % kPeriod;
  return phase < kPeriod / 2 ? 2 * phase - 8 : 24 - 2 * phase;
}

}  // namespace

absl::Status WriteImages(const std::string& path, int count, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](uint32_t bound) { return static_cast<int>(random() % bound); };
  std::string records;
  for (int i = 0; i < count; ++i) {
    const int label = i % kClasses;
    const Kind& kind = kKinds[label];
    const int place = below(kPeriod), strength = 1 + below(3);
    records.push_back(static_cast<char>(label));
    for (int channel = 0; channel < kChannels; ++channel) {
      for (int row = 0; row < kSide; ++row) {
        for (int column = 0; column < kSide; ++column) {
          const int wave = Wave(place + kind.down * row + kind.right * column);
          const int value = 128 + wave * strength * kind.colour[channel] + below(65) - 32;
          records.push_back(static_cast<char>(std::clamp(value, 0, 255)));
        }
      }
    }
  }
  return ReplaceFile(path, {records});
}

}  // namespace starling
