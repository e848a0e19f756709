// The digests of checkpoints: XXH3-64 of an entry, XXH3-128 of a file. They find damage, not
// forgery.
#ifndef STARLING_COMMON_CHECKPOINT_DIGEST_H_
#define STARLING_COMMON_CHECKPOINT_DIGEST_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/xxh3.h"

namespace starling {

inline uint64_t Xxh64Of(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

inline absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline absl::Span<const uint8_t> AsBytes(absl::Span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

// XXH3-128 of bytes that come in pieces. Not thread-safe.
class Xxh128 {
 public:
  Xxh128() : state_(XXH3_createState()) {
    STARLING_CHECK(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK,
                   "no memory for a digest");
  }
  void Add(absl::string_view bytes) {
    (void)XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  // 16 bytes, big-endian.
  std::string Digest() const {
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(state_.get()));
    return std::string(reinterpret_cast<const char*>(bytes.digest), sizeof(bytes.digest));
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

inline std::string Xxh128Of(absl::string_view bytes) {
  Xxh128 hash;
  hash.Add(bytes);
  return hash.Digest();
}

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_DIGEST_H_
