// Checks what the bundle can do on a machine.
#ifndef STARLING_TOOLS_BUNDLE_CHECK_H_
#define STARLING_TOOLS_BUNDLE_CHECK_H_

namespace starling {

// The program `check`: runs every part on the CPU, and on the GPU if there is one; prints a line
// for each and a last line for all. Returns the exit status: 0 no part failed, 1 a part failed, 2
// wrong arguments. Call it first thing in main(). Not thread-safe.
int CheckMain(int argc, char** argv);

}  // namespace starling

#endif  // STARLING_TOOLS_BUNDLE_CHECK_H_
