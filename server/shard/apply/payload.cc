#include "server/shard/apply/payload.h"

namespace starling {

size_t PayloadBytes(Payload payload) {
  size_t bytes = 0;
  for (const PayloadPiece piece : payload) bytes += piece.size();
  return bytes;
}

}  // namespace starling
