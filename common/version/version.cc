#include "common/version/version.h"

namespace starling {

std::string_view Version() { return "0.1.0"; }

}  // namespace starling
