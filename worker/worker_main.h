// starling-worker as a function, so that it can be one of several in a program.
#ifndef STARLING_WORKER_WORKER_MAIN_H_
#define STARLING_WORKER_WORKER_MAIN_H_

namespace starling {

// The whole program, with its exit status; first thing in main(). Runs the program anew with the
// same arguments (kernels/cpu/openmp.h): argv[0] must lead here again.
int WorkerMain(int argc, char** argv);

}  // namespace starling

#endif  // STARLING_WORKER_WORKER_MAIN_H_
