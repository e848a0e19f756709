// Our own error texts for command lines. Internal to programs that parse with CLI11.
#ifndef STARLING_COMMON_DAEMON_USAGE_H_
#define STARLING_COMMON_DAEMON_USAGE_H_

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace starling {

// The text for an error that `app` threw: what came, what was expected or probably meant, and where
// to read more. Ends with a newline.
std::string UsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_USAGE_H_
