// Parses durations as people write them.
#ifndef STARLING_COMMON_CONFIG_DURATION_H_
#define STARLING_COMMON_CONFIG_DURATION_H_

#include <string>

#include "absl/status/statusor.h"

namespace starling::config {

// "90" and "90s" are seconds, "30m" minutes, "1.5h" hours; the number is written with digits and a
// point alone. The result is in seconds, finite and > 0. kInvalidArgument quotes the text.
absl::StatusOr<double> ParseDuration(const std::string& text);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_DURATION_H_
