// A frame's payload, outgoing and incoming. Neither copies tensors.
#ifndef STARLING_COMMON_TRANSPORT_PAYLOAD_H_
#define STARLING_COMMON_TRANSPORT_PAYLOAD_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace starling {

// Bytes to send: those of `head`, which are copied, then `bytes` in place. These must not change
// until the last copy of `keep` is gone. The transport drops its copies once it no longer needs the
// bytes, sent or not, on any thread. The deleter of `keep` must be quick and must not call the
// stream.
struct OutgoingPayload {
  absl::Span<const uint8_t> bytes;
  std::shared_ptr<const void> keep;
  std::string head = {};

  size_t size() const { return head.size() + bytes.size(); }
};

// Received bytes, in place: pieces with arbitrary boundaries, even within a float. Copies are cheap
// and share the bytes. The bytes stay in memory, and count against the sender's credit, until the
// last copy is gone, so copy them out to keep them for long. Thread-compatible.
//
// A *shared* payload lies in memory that its sender may change at any time. Copy it once
// (PayloadCopies::Take, or CopyTo), and check and use the copy alone.
class ReceivedPayload {
 public:
  using Piece = absl::Span<const uint8_t>;

  ReceivedPayload() = default;
  // `owner` keeps the pieces, and the memory they refer to, alive.
  ReceivedPayload(absl::Span<const Piece> pieces, std::shared_ptr<const void> owner,
                  bool shared = false)
      : pieces_(pieces), owner_(std::move(owner)), shared_(shared) {
    for (const Piece& piece : pieces_) size_ += piece.size();
  }

  size_t size() const { return size_; }
  bool shared() const { return shared_; }
  // Not of a shared payload.
  absl::Span<const Piece> pieces() const {
    STARLING_CHECK(!shared_, "a shared payload is read in place");
    return pieces_;
  }

  // Copies all bytes to `out`, which has room for size() bytes.
  void CopyTo(void* out) const {
    auto* to = static_cast<uint8_t*>(out);
    for (const Piece& piece : pieces_) {
      if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
  }

  // Copies bytes [begin, begin + size) to `out`; there are so many.
  void CopyTo(size_t begin, size_t size, void* out) const {
    auto* to = static_cast<uint8_t*>(out);
    for (const Piece& piece : pieces_) {
      const size_t skip = std::min(begin, piece.size());
      const size_t take = std::min(size, piece.size() - skip);
      if (take > 0) std::memcpy(to, piece.data() + skip, take);
      begin -= skip;
      size -= take;
      to += take;
    }
  }

  // The bytes from `begin`, at most size(), to the end. Keeps all in memory. Not of a shared
  // payload.
  ReceivedPayload From(size_t begin) const {
    struct Rest {
      ReceivedPayload whole;
      std::vector<Piece> pieces;
    };
    const auto rest = std::make_shared<Rest>();
    rest->whole = *this;
    for (Piece piece : pieces()) {
      const size_t skip = std::min(begin, piece.size());
      begin -= skip;
      piece.remove_prefix(skip);
      if (!piece.empty()) rest->pieces.push_back(piece);
    }
    return ReceivedPayload(rest->pieces, rest);
  }

 private:
  absl::Span<const Piece> pieces_;
  size_t size_ = 0;
  std::shared_ptr<const void> owner_;
  bool shared_ = false;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_PAYLOAD_H_
