// The version of Starling.
#ifndef STARLING_COMMON_VERSION_VERSION_H_
#define STARLING_COMMON_VERSION_VERSION_H_

#include <cstdint>
#include <string_view>

namespace starling {

// The release, as MAJOR.MINOR.PATCH. Thread-safe; lives as long as the process.
std::string_view ReleaseVersion();

// The protocol version between daemons (docs/protocol.md). Peers with another one are refused.
uint32_t ProtocolVersion();

}  // namespace starling

#endif  // STARLING_COMMON_VERSION_VERSION_H_
