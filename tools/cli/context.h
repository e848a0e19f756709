// A verb's access to the outside world. client_main.cc wires the real one, tests a fake.
#ifndef STARLING_TOOLS_CLI_CONTEXT_H_
#define STARLING_TOOLS_CLI_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/daemon/settings.h"
#include "common/transport/link_security.h"
#include "common/values/slice_reader.h"
#include "tools/cli/client.h"
#include "tools/cli/daemons.h"

namespace starling::cli {

struct Context {
  std::ostream& out;                 // data
  std::ostream& err;                 // progress and errors
  bool terminal = false;             // whether `err` is one; if so, progress is a live line
  int columns = 80;                  // of the terminal
  std::string executable_directory;  // the folder of this client's own binary

  Environment environment;
  std::vector<std::string> environment_names;  // of all variables
  std::function<absl::Time()> now;
  std::function<uint64_t()> random;
  // After this Ctrl-C interrupts `sleep` instead of ending the process.
  std::function<void()> catch_interrupts;
  // Returns false as soon as Ctrl-C was pressed.
  std::function<bool(absl::Duration)> sleep;
  // How the functions below protect their links. RunApp sets it before it calls them.
  std::shared_ptr<const LinkSecurity> security;
  std::function<std::unique_ptr<Client>(const std::string& address)> connect;
  std::function<int64_t()> steady_micros;  // monotonic
  std::function<std::unique_ptr<Daemons>()> daemons;
  std::function<NodeReply()> describe_node;  // this machine
  // slice_reader.h's ReadSlices, over streams of its own.
  std::function<absl::Status(const JobReply& job, const Layout& layout, const ReadPoint& point,
                             absl::Time deadline, const SliceConsumer& consume)>
      read_slices;
};

// Prints "starling: MESSAGE" and returns the exit code that belongs to the status.
int Fail(const absl::Status& status, Context& context);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_CONTEXT_H_
