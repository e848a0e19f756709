#include "common/daemon/malloc.h"

#include <malloc.h>

namespace starling {

void TuneMalloc() {
#ifndef STARLING_SANITIZED
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace starling
