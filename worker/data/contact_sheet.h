// Image samples side by side in one picture.
#ifndef STARLING_WORKER_DATA_CONTACT_SHEET_H_
#define STARLING_WORKER_DATA_CONTACT_SHEET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/data_set.h"

namespace starling {

// Rows of red, green, blue.
struct Picture {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> rgb;
};

// The first 64 samples (or fewer, if there are), 8 in a row, augmented if `draw` is given; small
// ones are enlarged, large ones reduced. Values within [0, 1] keep their brightness; others are
// scaled from minimum to maximum. `data` is not normalised. kInvalidArgument: samples are not
// images of 1 or 3 channels.
absl::StatusOr<Picture> MakeContactSheet(const DataSet& data, const AugmentDraw* draw);

// The bytes of a PNG file (8-bit RGB), or of a binary PPM.
std::string EncodePng(const Picture& picture);
std::string EncodePpm(const Picture& picture);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_CONTACT_SHEET_H_
