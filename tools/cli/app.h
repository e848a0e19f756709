// The command line: takes flags, returns the exit code.
#ifndef STARLING_TOOLS_CLI_APP_H_
#define STARLING_TOOLS_CLI_APP_H_

#include <string>
#include <vector>

#include "tools/cli/context.h"

namespace starling::cli {

// `args` exclude the program's name. Prints what is wrong with them and returns kExitUsage, or runs
// the verb and returns its exit code.
int RunApp(const std::vector<std::string>& args, Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_APP_H_
