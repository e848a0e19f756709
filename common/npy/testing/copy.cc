// Copies an array through our reader and writer: copy FROM TO. For real_package_test.py.
#include <iostream>

#include "common/npy/npy.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto array = starling::npy::ReadFile(argv[1]);
  if (!array.ok()) {
    std::cerr << array.status().message() << "\n";
    return 1;
  }
  return starling::npy::WriteFile(argv[2], *array).ok() ? 0 : 1;
}
