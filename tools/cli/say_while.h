// A line now and then while a call takes long.
#ifndef STARLING_TOOLS_CLI_SAY_WHILE_H_
#define STARLING_TOOLS_CLI_SAY_WHILE_H_

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "tools/cli/context.h"

namespace starling::cli {

// Returns what `call` returns. Every 10 s until then it says, on context.err, "WHAT for 20 s".
template <typename Call>
auto SayWhile(const std::string& what, Context& context, const Call& call) {
  constexpr absl::Duration kSayEvery = absl::Seconds(10);
  absl::Notification answered;
  std::thread saying([&] {
    const absl::Time begin = MonotonicNow();
    while (!answered.WaitForNotificationWithTimeout(kSayEvery)) {
      context.err << what << " for " << absl::ToInt64Seconds(MonotonicNow() - begin) << " s\n"
                  << std::flush;
    }
  });
  auto result = call();
  answered.Notify();
  saying.join();
  return result;
}

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_SAY_WHILE_H_
