// Generated images of distinguishable classes.
#ifndef STARLING_TOOLS_BUNDLE_IMAGES_H_
#define STARLING_TOOLS_BUNDLE_IMAGES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace starling {

// Writes `count` images into a file of CIFAR-10's binary format (data.train: {cifar: ...}), ten
// classes in turn. A class is a wave's direction and colour; its phase, strength and noise are
// drawn from `seed`, so files of two seeds share no image. The bytes are the same on every machine.
// Errors: ReplaceFile's (common/base/files.h).
absl::Status WriteImages(const std::string& path, int count, uint32_t seed);

}  // namespace starling

#endif  // STARLING_TOOLS_BUNDLE_IMAGES_H_
