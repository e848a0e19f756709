#include <Random123/philox.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "worker/data/samples.h"

namespace starling {
namespace {

constexpr uint32_t kPurpose = 0x484F4C44;  // "HOLD": separates these draws from all others

uint64_t Hash(uint64_t seed, int64_t row) {
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}};
  const r123::Philox4x32::ctr_type counter = {
      {static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32), 0, kPurpose}};
  const auto random = r123::Philox4x32()(counter, key);
  return random[0] | uint64_t{random[1]} << 32;
}

}  // namespace

std::vector<int64_t> HeldOutRows(absl::Span<const int32_t> labels, double fraction, uint64_t seed) {
  std::map<int32_t, std::vector<std::pair<uint64_t, int64_t>>> classes;
  for (size_t row = 0; row < labels.size(); ++row)
    classes[labels[row]].emplace_back(Hash(seed, row), row);
  std::vector<int64_t> held_out;
  for (auto& [label, rows] : classes) {
    std::sort(rows.begin(), rows.end());
    rows.resize(static_cast<size_t>(std::floor(fraction * static_cast<double>(rows.size()) + 0.5)));
    for (const auto& [hash, row] : rows) held_out.push_back(row);
  }
  std::sort(held_out.begin(), held_out.end());
  return held_out;
}

}  // namespace starling
