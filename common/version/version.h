// Which Starling this is.
#ifndef STARLING_COMMON_VERSION_VERSION_H_
#define STARLING_COMMON_VERSION_VERSION_H_

#include <string_view>

namespace starling {

// The release, as MAJOR.MINOR.PATCH. Thread-safe; lives as long as the process.
std::string_view Version();

}  // namespace starling

#endif  // STARLING_COMMON_VERSION_VERSION_H_
