// Parses byte counts in flags: "1GB", "512MiB".
#ifndef STARLING_COMMON_CONFIG_BYTES_H_
#define STARLING_COMMON_CONFIG_BYTES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starling::config {

// A whole or decimal number and a unit. None or B: bytes; kB, MB, GB, TB: powers of 1,000; KiB,
// MiB, GiB, TiB (or Ki, Mi, Gi, Ti): powers of 1,024. Case-insensitive. At least 1 byte.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_BYTES_H_
