// For tests: the same bytes as one aligned piece, and cut at random into pieces at odd addresses.
#ifndef STARLING_SERVER_SHARD_APPLY_TESTING_CUT_PAYLOAD_H_
#define STARLING_SERVER_SHARD_APPLY_TESTING_CUT_PAYLOAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "server/shard/apply/payload.h"

namespace starling {

class CutPayload {
 public:
  CutPayload(const std::vector<float>& values, size_t pieces, std::mt19937* random) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    std::vector<size_t> cuts = {0, values.size() * sizeof(float)};
    while (cuts.size() < pieces + 1) cuts.push_back((*random)() % (cuts[1] + 1));
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const size_t offset = (*random)() % 7;
      std::vector<uint8_t>& memory = memory_.emplace_back(offset + cuts[i + 1] - cuts[i]);
      std::copy(bytes + cuts[i], bytes + cuts[i + 1], memory.begin() + offset);
      offsets_.push_back(offset);
    }
    for (size_t i = 0; i < memory_.size(); ++i) {
      pieces_.emplace_back(memory_[i].data() + offsets_[i], memory_[i].size() - offsets_[i]);
    }
  }

  Payload payload() const { return pieces_; }

 private:
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<size_t> offsets_;
  std::vector<PayloadPiece> pieces_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_TESTING_CUT_PAYLOAD_H_
