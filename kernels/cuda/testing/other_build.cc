// As an older build would leave it behind.
#include <cstdlib>

extern "C" {

const char* starling_cuda_abi() { return "interface of yesterday"; }

// Must not be called: nobody knows what it would hand over.
int starling_cuda_open(void*, char*, unsigned long) { std::abort(); }
}
