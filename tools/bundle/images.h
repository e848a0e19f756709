// Images that are made, not loaded, and can be told apart.
#ifndef STARLING_TOOLS_BUNDLE_IMAGES_H_
#define STARLING_TOOLS_BUNDLE_IMAGES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace starling {

// Writes `count` images into a file of CIFAR-10's binary edition (data.train: {cifar: ...}), ten
// classes in turn. A class is a wave's direction and colour; its place, strength and noise are
// drawn from `seed`, so that files of two seeds share no image. The same bytes everywhere.
// kUnavailable: the file cannot be written.
absl::Status WriteImages(const std::string& path, int count, uint32_t seed);

}  // namespace starling

#endif  // STARLING_TOOLS_BUNDLE_IMAGES_H_
