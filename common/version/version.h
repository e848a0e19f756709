// The version of Starling.
#ifndef STARLING_COMMON_VERSION_VERSION_H_
#define STARLING_COMMON_VERSION_VERSION_H_

#include <cstdint>
#include <string_view>

namespace starling {

// The release, as MAJOR.MINOR.PATCH. Thread-safe; lives as long as the process.
std::string_view ReleaseVersion();

// The protocol version between daemons (docs/protocol.md). Peers with another one are refused, and
// daemons with the same one serve a job together, whatever their releases are. So a change of what
// two of them must agree on takes the next number: a message, a frame, a record, the state that a
// backup gets, the layout of parameters, or the arithmetic of an update.
uint32_t ProtocolVersion();

}  // namespace starling

#endif  // STARLING_COMMON_VERSION_VERSION_H_
