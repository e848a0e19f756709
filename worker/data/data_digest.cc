#include "worker/data/data_digest.h"

#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"
#include "xxhash.h"

namespace starling {
namespace {

constexpr int kTrainSamples = 32;
constexpr int kTestSamples = 16;
constexpr int64_t kElementsMax = 16 << 20;  // in one part's drawn samples, of 4 bytes each

// Appends one part's data. Integers are little-endian, as on all supported machines.
absl::Status AddPart(const DataSet& data, int draws, uint64_t seed,
                     std::vector<uint64_t>* digests) {
  const SampleFormat& format = data.format();
  digests->push_back(static_cast<uint64_t>(data.samples()));
  digests->push_back(static_cast<uint64_t>(data.sample_elements()));
  digests->push_back(static_cast<uint64_t>(data.label_elements()));
  digests->push_back(static_cast<uint64_t>(format.type));
  digests->push_back(static_cast<uint64_t>(format.label_type));
  digests->push_back(data.index_digest());
  for (const std::string& name : data.class_names()) {
    digests->push_back(XXH3_64bits(name.data(), name.size()));
  }
  std::vector<uint32_t> input(data.sample_elements()), label(data.label_elements());
  const int64_t fit = kElementsMax / std::max<int64_t>(data.sample_elements(), 1);
  for (int64_t i = 0; i < std::clamp<int64_t>(fit, 1, draws); ++i) {
    const uint64_t drawn = XXH3_64bits_withSeed(&i, sizeof(i), seed);
    const int64_t id = static_cast<int64_t>(drawn % static_cast<uint64_t>(data.samples()));
    STARLING_RETURN_IF_ERROR(data.Gather({&id, 1}, nullptr, input.data(), label.data()));
    digests->push_back(XXH3_64bits(input.data(), input.size() * sizeof(uint32_t)));
    digests->push_back(XXH3_64bits(label.data(), label.size() * sizeof(uint32_t)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> DataDigest(const DataSet& train, const DataSet* test, uint64_t seed) {
  std::vector<uint64_t> digests;
  STARLING_RETURN_IF_ERROR(AddPart(train, kTrainSamples, seed, &digests));
  if (test != nullptr) STARLING_RETURN_IF_ERROR(AddPart(*test, kTestSamples, seed, &digests));
  const uint64_t digest = XXH3_64bits(digests.data(), digests.size() * sizeof(uint64_t));
  return std::max<uint64_t>(digest, 1);
}

}  // namespace starling
