// starling-coordinator as a function, so that it can be one of several in a program.
#ifndef STARLING_SERVER_COORDINATOR_COORDINATOR_MAIN_H_
#define STARLING_SERVER_COORDINATOR_COORDINATOR_MAIN_H_

namespace starling::coordinator {

// The whole program, with its exit status; first thing in main().
int CoordinatorMain(int argc, char** argv);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_COORDINATOR_MAIN_H_
