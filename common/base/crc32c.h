// CRC32C (Castagnoli, reflected polynomial 0x82F63B78; RFC 3720 appendix B.4).
#ifndef STARLING_COMMON_BASE_CRC32C_H_
#define STARLING_COMMON_BASE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace starling {

// The CRC of "123456789" is 0xE3069283. Thread-safe. Uses the CPU's instruction if it has one.
uint32_t Crc32c(absl::Span<const uint8_t> bytes);
inline uint32_t Crc32cOf(absl::string_view bytes) {
  return Crc32c(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

// The same with a table, for CPUs without the instruction and for tests.
uint32_t Crc32cPortable(absl::Span<const uint8_t> bytes);

}  // namespace starling

#endif  // STARLING_COMMON_BASE_CRC32C_H_
