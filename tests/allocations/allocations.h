// Counts calls of malloc and its kin by caller. For tests: a program that links this gets its
// malloc, calloc, realloc, aligned_alloc, posix_memalign and free from here, and so do its
// libraries; operator new and delete come here through libstdc++. Not for sanitizers, which have
// their own malloc.
//
// While armed, each call's stack is recorded. The caller is the innermost frame that is not
// skipped, so an allocation by a library belongs to the library, whatever code called it:
//
// * Frames in the shared libraries of oneDNN, gRPC, protobuf, CUDA (with cuDNN and cuBLAS) and the
//   image decoder belong to these. In our executable, functions of the namespaces grpc and
//   google::protobuf and methods of generated messages and stubs belong to gRPC and protobuf. In
//   libstarling_cuda.so, which has CUDA's runtime compiled in, everything outside namespace
//   starling belongs to CUDA.
// * Skipped, both in libraries and compiled in: libc, libstdc++, Abseil, spdlog, fmt, libgomp, and
//   every library not named here. Their allocations belong to their callers.
// * Everything else in our executable is ours, and so is a stack of skipped frames only.
#ifndef STARLING_TESTS_ALLOCATIONS_ALLOCATIONS_H_
#define STARLING_TESTS_ALLOCATIONS_ALLOCATIONS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace starling::allocations {

// Starts counting from zero. Async-signal-safe. Call only while disarmed.
void Arm();
// Stops counting. Async-signal-safe.
void Disarm();

// Bytes allocated and not freed by any code, as malloc rounds them. Counted even while disarmed.
int64_t BytesInUse();

// Calls from one stack.
struct Calls {
  std::string owner;               // "ours", "oneDNN", "gRPC", "protobuf", "CUDA", "image decoder"
  std::vector<std::string> stack;  // function names, innermost first, from the owner's frame on
  uint64_t calls = 0;
  uint64_t bytes = 0;
};

struct Report {
  std::vector<Calls> calls;  // most calls first
  uint64_t lost = 0;         // calls whose stack did not fit; unless 0, the report is incomplete

  uint64_t CallsOf(const std::string& owner) const;
};

// What was counted between Arm and Disarm. Allocates; call only while disarmed.
Report Read();

}  // namespace starling::allocations

#endif  // STARLING_TESTS_ALLOCATIONS_ALLOCATIONS_H_
