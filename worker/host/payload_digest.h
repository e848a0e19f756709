// The digest in a frame's header: XXH3-64 of the payload's bytes.
#ifndef STARLING_WORKER_HOST_PAYLOAD_DIGEST_H_
#define STARLING_WORKER_HOST_PAYLOAD_DIGEST_H_

#include "common/base/xxh3.h"
#include "common/transport/payload.h"

namespace starling {

inline uint64_t PayloadDigest(const ReceivedPayload& payload) {
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
