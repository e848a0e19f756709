// A process's settings: each has a flag, an environment variable named after it (--tls-cert:
// STARLING_TLS_CERT) and a default; the first of these that is given counts. None holds a secret:
// secrets are in files, and settings name the files.
#ifndef STARLING_COMMON_DAEMON_SETTINGS_H_
#define STARLING_COMMON_DAEMON_SETTINGS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace starling {

using Environment = std::function<std::optional<std::string>(const std::string& variable)>;
Environment ProcessEnvironment();

// Not thread-safe. The App and the values must outlive it.
class Settings {
 public:
  explicit Settings(CLI::App* app) : app_(app) {}

  // A flag with a value; the default is what `value` holds now.
  void Add(const std::string& flag, const std::string& help, std::string* value,
           bool required = false);
  // As Add, but not in --help.
  void AddForTests(const std::string& flag, const std::string& help, std::string* value);
  // A flag without a value. Its variable is true or 1, false or 0.
  void AddSwitch(const std::string& flag, const std::string& help, bool* value);

  // Call after the App has parsed the command line: takes settings without a flag from the
  // environment. An empty variable counts as unset. kInvalidArgument: a switch's variable is
  // neither true nor false.
  absl::Status Resolve(const Environment& environment);

  // Call after Resolve. kInvalidArgument: a required setting is missing.
  absl::Status CheckRequired() const;

  // Call after Resolve: one line per setting with its value and origin, for --print-config.
  std::string Text() const;

  // Those of `names` that start with STARLING_ and that no program of ours reads.
  std::vector<std::string> Unknown(const std::vector<std::string>& names) const;

 private:
  struct Setting {
    std::string flag;
    std::string* text = nullptr;  // or
    bool* on = nullptr;
    bool required = false;
    CLI::Option* option = nullptr;
    std::string origin = "default";
  };
  void Describe(Setting setting, CLI::Option* option);

  CLI::App* const app_;
  std::vector<Setting> settings_;
};

std::string VariableOf(absl::string_view flag);  // "--tls-cert" -> "STARLING_TLS_CERT"

// The names of the process's environment variables.
std::vector<std::string> EnvironmentNames();

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_SETTINGS_H_
