#include "common/version/version.h"

namespace starling {

std::string_view ReleaseVersion() { return "0.1.0"; }

uint32_t ProtocolVersion() { return 7; }

}  // namespace starling
