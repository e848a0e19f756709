// Available and resident memory, and floats aligned for vector units.
#ifndef STARLING_COMMON_BASE_MEMORY_H_
#define STARLING_COMMON_BASE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace starling {

// Bytes that this process may still allocate without swapping: the lesser of what the system has
// available and what the control group leaves. UINT64_MAX if neither is known.
uint64_t AvailableMemoryBytes();

// Returns freed memory from the heap to the system, so that other processes and
// AvailableMemoryBytes see it as free. Allocations wait while it runs, up to some 100 ms: call it
// at a job's end, not per step. Thread-safe.
void ReturnFreedMemory();

// Peak resident memory of this process since it started, or since the last ForgetPeakResidentBytes
// that the system allowed. 0: not known.
uint64_t PeakResidentBytes();
// Best effort: some systems do not allow it.
void ForgetPeakResidentBytes();

// `n` uninitialized floats on a 64-byte boundary; nullptr if out of memory.
std::shared_ptr<float> AllocateFloats(size_t n);

}  // namespace starling

#endif  // STARLING_COMMON_BASE_MEMORY_H_
