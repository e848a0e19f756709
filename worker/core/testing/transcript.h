// Events and actions as text: for the golden transcripts of the tests, and for the simulator.
#ifndef STARLING_WORKER_CORE_TESTING_TRANSCRIPT_H_
#define STARLING_WORKER_CORE_TESTING_TRANSCRIPT_H_

#include <string>

#include "worker/core/events.h"

namespace starling::session {

// One line, without an end of line.
std::string ToString(const Event& event);
std::string ToString(const Action& action);

}  // namespace starling::session

#endif  // STARLING_WORKER_CORE_TESTING_TRANSCRIPT_H_
