// A frame's payload on its way out and on its way in. Neither copies bytes.
#ifndef STARLING_COMMON_TRANSPORT_PAYLOAD_H_
#define STARLING_COMMON_TRANSPORT_PAYLOAD_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace starling {

// Bytes to send, where they lie. They must not change until the last copy of `keep` is gone; the
// transport drops its copies once it has no more use for the bytes, sent or not, on any thread.
// A deleter of `keep` must be quick and must not call the stream.
struct OutgoingPayload {
  absl::Span<const uint8_t> bytes;
  std::shared_ptr<const void> keep;
};

// Bytes received, where they lie: pieces whose borders fall anywhere, also within a float. Freely
// copied (all copies share the bytes). The bytes stay, and count against the sender's credit, until
// the last copy is gone; so who needs them for long copies them out. Thread-compatible.
class ReceivedPayload {
 public:
  using Piece = absl::Span<const uint8_t>;

  ReceivedPayload() = default;
  // `owner` keeps the pieces' memory.
  ReceivedPayload(std::vector<Piece> pieces, std::shared_ptr<const void> owner)
      : pieces_(std::move(pieces)), owner_(std::move(owner)) {
    for (const Piece& piece : pieces_) size_ += piece.size();
  }

  size_t size() const { return size_; }
  absl::Span<const Piece> pieces() const { return pieces_; }

  // Copies all bytes; `out` holds size() bytes.
  void CopyTo(void* out) const {
    auto* to = static_cast<uint8_t*>(out);
    for (const Piece& piece : pieces_) {
      if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
  }

  // Calls fn(first, floats) for consecutive runs that make up the payload as little-endian floats;
  // `first` is the index of the run's first float. Runs that lie aligned in memory are handed out in
  // place, the others through a small buffer. size() must be a multiple of 4.
  template <typename Fn>
  void ForEachFloats(Fn&& fn) const;

 private:
  std::vector<Piece> pieces_;
  size_t size_ = 0;
  std::shared_ptr<const void> owner_;
};

template <typename Fn>
void ReceivedPayload::ForEachFloats(Fn&& fn) const {
  alignas(64) std::array<float, 1024> buffer;
  size_t first = 0;
  uint8_t carry[sizeof(float)];
  size_t carried = 0;
  for (Piece piece : pieces_) {
    if (carried > 0) {  // finish the float that began in an earlier piece
      const size_t take = std::min(sizeof(float) - carried, piece.size());
      if (take > 0) std::memcpy(carry + carried, piece.data(), take);
      carried += take;
      piece.remove_prefix(take);
      if (carried < sizeof(float)) continue;
      std::memcpy(buffer.data(), carry, sizeof(float));
      fn(first, absl::MakeConstSpan(buffer.data(), 1));
      ++first;
      carried = 0;
    }
    size_t floats = piece.size() / sizeof(float);
    if (reinterpret_cast<uintptr_t>(piece.data()) % alignof(float) == 0) {
      if (floats > 0) {
        fn(first, absl::MakeConstSpan(reinterpret_cast<const float*>(piece.data()), floats));
      }
      first += floats;
      piece.remove_prefix(floats * sizeof(float));
    }
    for (floats = piece.size() / sizeof(float); floats > 0; floats = piece.size() / sizeof(float)) {
      const size_t run = std::min(floats, buffer.size());
      std::memcpy(buffer.data(), piece.data(), run * sizeof(float));
      fn(first, absl::MakeConstSpan(buffer.data(), run));
      first += run;
      piece.remove_prefix(run * sizeof(float));
    }
    carried = piece.size();
    if (carried > 0) std::memcpy(carry, piece.data(), carried);
  }
}

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_PAYLOAD_H_
