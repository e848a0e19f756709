// XXH3 with the widest instructions of this CPU, for tensors. xxhash.h alone calls a library that
// was compiled for any x86-64: a third as fast. The bits are the same.
#ifndef STARLING_COMMON_BASE_XXH3_H_
#define STARLING_COMMON_BASE_XXH3_H_

#define XXH_STATIC_LINKING_ONLY  // a state may live on the stack
#if defined(__x86_64__)
#include "xxh_x86dispatch.h"
#else
#include "xxhash.h"
#endif

#endif  // STARLING_COMMON_BASE_XXH3_H_
