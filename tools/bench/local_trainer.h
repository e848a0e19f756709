// A job's training without servers.
#ifndef STARLING_TOOLS_BENCH_LOCAL_TRAINER_H_
#define STARLING_TOOLS_BENCH_LOCAL_TRAINER_H_

namespace starling {

// The program local_trainer (see the .cc file). Exit status: 0, 1 on errors, 2 on wrong arguments.
int LocalTrainerMain(int argc, char** argv);

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_LOCAL_TRAINER_H_
