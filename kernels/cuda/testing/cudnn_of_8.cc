#include <cstddef>

extern "C" size_t cudnnGetVersion() { return 8907; }
