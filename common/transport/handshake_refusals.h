// Counts what this process's server refused, for its metrics.
#ifndef STARLING_COMMON_TRANSPORT_HANDSHAKE_REFUSALS_H_
#define STARLING_COMMON_TRANSPORT_HANDSHAKE_REFUSALS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace starling {

// Why a TLS handshake was refused.
enum class HandshakeRefusal : uint8_t {
  kNoCertificate = 0,
  kUnknownAuthority = 1,  // no trusted authority has signed it
  kExpired = 2,
  kNotYetValid = 3,
  // Anything else: another purpose, a weak key, a text that is not a certificate.
  kInvalid = 4,
};

inline constexpr HandshakeRefusal kHandshakeRefusals[] = {
    HandshakeRefusal::kNoCertificate, HandshakeRefusal::kUnknownAuthority,
    HandshakeRefusal::kExpired, HandshakeRefusal::kNotYetValid, HandshakeRefusal::kInvalid};

// Counters only grow. Thread-safe.
class RefusalCounters {
 public:
  // Connections that failed in the TLS handshake.
  void CountHandshake(HandshakeRefusal reason) {
    handshakes_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t handshakes(HandshakeRefusal reason) const {
    return handshakes_[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
  }
  // Calls refused, and streams ended, because the caller's role or cluster may not do that.
  void CountCall() { calls_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, std::size(kHandshakeRefusals)> handshakes_ = {};
  std::atomic<uint64_t> calls_ = 0;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_HANDSHAKE_REFUSALS_H_
