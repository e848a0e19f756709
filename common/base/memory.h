// How much memory there is, and floats aligned for vector units.
#ifndef STARLING_COMMON_BASE_MEMORY_H_
#define STARLING_COMMON_BASE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace starling {

// Bytes that this process may still take without swapping: what the system says is available, or
// what the control group leaves, whichever is less. UINT64_MAX where neither is known.
uint64_t AvailableMemoryBytes();

// Memory that was freed and lies in the process goes back to the system: what others, and
// AvailableMemoryBytes, take for used is free again. While it runs, up to some 100 ms, allocations
// wait: for a job's end, not for its steps. Thread-safe.
void ReturnFreedMemory();

// The greatest resident memory that this process has had, since it began or since the last call of
// ForgetPeakResidentBytes that the system allowed. 0: not known.
uint64_t PeakResidentBytes();
// Best effort: some systems do not let a process do this.
void ForgetPeakResidentBytes();

// `n` floats on a 64-byte boundary, not initialised; nullptr where there is no memory.
std::shared_ptr<float> AllocateFloats(size_t n);

}  // namespace starling

#endif  // STARLING_COMMON_BASE_MEMORY_H_
