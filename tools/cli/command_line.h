// The command line into which each verb registers itself and its flags.
#ifndef STARLING_TOOLS_CLI_COMMAND_LINE_H_
#define STARLING_TOOLS_CLI_COMMAND_LINE_H_

#include <CLI/CLI.hpp>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/base/status_macros.h"
#include "common/daemon/daemon.h"
#include "common/daemon/settings.h"
#include "tools/cli/client.h"
#include "tools/cli/context.h"
#include "tools/cli/output.h"

namespace starling::cli {

// "starling 0.1.0 (protocol 7)", like the daemons'.
std::string VersionText();

// Not thread-safe.
class CommandLine {
 public:
  // A verb's code, called once the command line and the settings are read. Returns the exit code,
  // or an error, which is printed and has its own exit code (exit_code.h).
  using Action = std::function<absl::StatusOr<int>(Context& context)>;

  CommandLine();

  // A verb without flags of its own.
  void Verb(const std::string& name, const std::string& help, Action action);
  // A verb of the program, or of `group`, and the variables for its flags to fill, which live as
  // long as this. `run` is the verb's code, and takes them and one of
  //   (Context&), (const CommandLine&, Context&), (Client&, Context&)
  // For the last it connects to the coordinator first. `check` may throw CLI::ParseError for what
  // CLI11 cannot check itself.
  template <typename Options, typename Run>
  std::pair<CLI::App*, Options*> Verb(const std::string& name, const std::string& help, Run run,
                                      CLI::App* group = nullptr,
                                      void (*check)(const Options&) = nullptr) {
    const auto options = std::make_shared<Options>();
    CLI::App* const verb = (group == nullptr ? &app_ : group)->add_subcommand(name, help);
    verb->callback([this, options, run, check] {
      if (check != nullptr) check(*options);
      action_ = [this, options, run](Context& context) -> absl::StatusOr<int> {
        (void)this;  // not used by all forms
        if constexpr (std::is_invocable_v<Run, const Options&, Context&>) {
          return run(*options, context);
        } else if constexpr (std::is_invocable_v<Run, const Options&, const CommandLine&,
                                                 Context&>) {
          return run(*options, *this, context);
        } else {
          STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Connect(context));
          return run(*options, *client, context);
        }
      };
    });
    return {verb, options.get()};
  }
  // Of verbs; the user names one of them.
  CLI::App* Group(const std::string& name, const std::string& help);

  // For actions. The coordinator's address as the user gave it, or the local cluster's.
  absl::StatusOr<std::string> Coordinator(const Context& context) const;
  absl::StatusOr<std::unique_ptr<Client>> Connect(const Context& context) const;

  // Reads `args` (without the program's name) and runs the verb. Returns the exit code.
  int Run(std::vector<std::string> args, Context& context);

 private:
  absl::Status TakeSettings(Context& context);

  CLI::App app_;
  Settings settings_{&app_};
  DaemonFlags links_;  // --coordinator, --tls-cert, ...
  bool print_config_ = false;
  Action action_;  // of the verb that was named
};

enum class Kind { kJob, kWorker, kShard };

// Flags that several verbs have.
void AddName(CLI::App* verb, const std::string& help, std::string* name);  // the argument NAME
void AddFormat(CLI::App* verb, Format* format);                            // -o, --output
void AddKind(CLI::App* verb, Kind* kind);                                  // the argument KIND
// -f, which is required unless the caller changes that, and --set.
CLI::Option* AddJobFile(CLI::App* verb, const std::string& help, std::string* file,
                        std::vector<std::string>* overrides);

// A number within `range`, with its default in the help.
template <typename T>
CLI::Option* AddNumber(CLI::App* verb, const std::string& flag, T* value,
                       const CLI::Validator& range, const std::string& help) {
  return verb->add_option(flag, *value, help)->check(range)->capture_default_str();
}

// One of a few words, each of which stands for a value; upper and lower case are the same.
template <typename T>
CLI::Validator OneOf(const std::vector<std::pair<std::string, T>>& values) {
  std::vector<std::string> words;
  for (const auto& [word, value] : values) words.push_back(word);
  return CLI::Validator(
      [values, words](std::string& text) -> std::string {
        for (const auto& [word, value] : values) {
          if (!absl::EqualsIgnoreCase(text, word)) continue;
          text = absl::StrCat(static_cast<int>(value));
          return "";
        }
        return absl::StrCat("expected one of ", absl::StrJoin(words, ", "), ", got \"", text, "\"",
                            DidYouMean(text, words));
      },
      "");
}
// One of these words.
CLI::Validator Member(const std::vector<std::string>& words);
// Text that is UTF-8.
std::string CheckUtf8(const std::string& text);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_COMMAND_LINE_H_
