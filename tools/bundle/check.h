// What a bundle's machine can do, checked.
#ifndef STARLING_TOOLS_BUNDLE_CHECK_H_
#define STARLING_TOOLS_BUNDLE_CHECK_H_

namespace starling {

// The program `check`: runs every part on the CPU, and on the GPU where there is one, and prints a
// line for each and one last line for all. Exit status: 0 nothing failed, 1 something did, 2 wrong
// arguments. First thing in main(), by one thread.
int CheckMain(int argc, char** argv);

}  // namespace starling

#endif  // STARLING_TOOLS_BUNDLE_CHECK_H_
