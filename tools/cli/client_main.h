// The client as a function, so that one program can contain several.
#ifndef STARLING_TOOLS_CLI_CLIENT_MAIN_H_
#define STARLING_TOOLS_CLI_CLIENT_MAIN_H_

namespace starling::cli {

// The whole program; returns its exit status (exit_code.h). Call it first thing in main().
int ClientMain(int argc, char** argv);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_CLIENT_MAIN_H_
