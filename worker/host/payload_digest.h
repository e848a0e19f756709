// The digest in a frame's header: XXH3-64 of the payload's bytes.
#ifndef STARLING_WORKER_HOST_PAYLOAD_DIGEST_H_
#define STARLING_WORKER_HOST_PAYLOAD_DIGEST_H_

#include <utility>

#include "common/base/xxh3.h"
#include "common/transport/payload.h"
#include "common/transport/payload_copies.h"

namespace starling {

// A shared payload is replaced by a copy, which the digest is of.
inline uint64_t PayloadDigest(ReceivedPayload& payload, PayloadCopies& copies) {
  if (payload.shared()) {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    payload = copies.Take(std::move(payload), [&](ReceivedPayload::Piece piece) {
      XXH3_64bits_update(&state, piece.data(), piece.size());
    });
    return XXH3_64bits_digest(&state);
  }
  if (payload.pieces().size() == 1) {
    return XXH3_64bits(payload.pieces()[0].data(), payload.pieces()[0].size());
  }
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const auto& piece : payload.pieces()) XXH3_64bits_update(&state, piece.data(), piece.size());
  return XXH3_64bits_digest(&state);
}

}  // namespace starling

#endif  // STARLING_WORKER_HOST_PAYLOAD_DIGEST_H_
