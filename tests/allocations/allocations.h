// Counts calls of malloc and its kin, by who made them. For tests: link this into a program, and
// its malloc, calloc, realloc, aligned_alloc, posix_memalign and free are these, for libraries,
// too; operator new and delete come here through libstdc++. Not with a sanitizer, which has its
// own.
//
// While armed, each call's stack is kept. Who made the call is the innermost frame that is not
// passed over, so what a library allocates is the library's, whoever called it:
//
// * frames in the shared libraries of oneDNN, gRPC, protobuf, CUDA (with cuDNN and cuBLAS) and the
//   image
//   decoder are theirs; of those in our executable, functions of the namespaces grpc and
//   google::protobuf, and methods of generated messages and stubs; of those in libstarling_cuda.so,
//   which has
//   CUDA's runtime compiled in, all but namespace starling's are CUDA's;
// * passed over, in libraries and where they are compiled in: libc, libstdc++, Abseil, spdlog, fmt,
//   libgomp, and every library that is not named here: what they allocate is their caller's;
// * all else in our executable is ours, and so is a stack of nothing but what is passed over.
#ifndef STARLING_TESTS_ALLOCATIONS_ALLOCATIONS_H_
#define STARLING_TESTS_ALLOCATIONS_ALLOCATIONS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace starling::allocations {

// Counts from now on; what was counted before is forgotten. Async-signal-safe. Not while armed.
void Arm();
// Stops counting. Async-signal-safe.
void Disarm();

// Bytes that were allocated and not freed, by whomever, as malloc rounds them. Always counted.
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
  uint64_t lost = 0;         // calls whose stack found no room; no report is whole that has some

  uint64_t CallsOf(const std::string& owner) const;
};

// What was counted between Arm and Disarm. Allocates; not while armed.
Report Read();

}  // namespace starling::allocations

#endif  // STARLING_TESTS_ALLOCATIONS_ALLOCATIONS_H_
