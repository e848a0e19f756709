// Checks for our own bugs: what no input, peer or machine can cause. Everything else that goes
// wrong is an absl::Status.
#ifndef STARLING_COMMON_BASE_CHECK_H_
#define STARLING_COMMON_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

// Ends the process, in every build, if `condition` is false. Standard error then shows the place,
// the condition and `text`, a C string.
#define STARLING_CHECK(condition, text)                                                     \
  (static_cast<bool>(condition)                                                             \
       ? static_cast<void>(0)                                                               \
       : (static_cast<void>(std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, \
                                         __LINE__, #condition, text)),                      \
          std::abort()))

#endif  // STARLING_COMMON_BASE_CHECK_H_
