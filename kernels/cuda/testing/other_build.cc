// Left behind by an older build.
#include <cstdlib>

extern "C" {

const char* starling_cuda_abi() { return "interface of yesterday"; }

// Must not be called: the object behind it has an unknown layout.
int starling_cuda_open(void*, char*, unsigned long) { std::abort(); }
}
