// The client as a function, so that it can be one of several in a program.
#ifndef STARLING_TOOLS_CLI_CLIENT_MAIN_H_
#define STARLING_TOOLS_CLI_CLIENT_MAIN_H_

namespace starling::cli {

// The whole program, with its exit status (exit_code.h); first thing in main().
int ClientMain(int argc, char** argv);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_CLIENT_MAIN_H_
