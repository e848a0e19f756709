#include "common/daemon/settings.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace starling {
namespace {

constexpr absl::string_view kPrefix = "STARLING_";
constexpr char kMissing[] = "required, and missing";  // as an origin

// Variables that are not settings of this program: those of our other programs, of job files
// (examples/), of tests and of tools.
constexpr absl::string_view kOthers[] = {
    "STARLING_ADMIN_ADDRESS",
    "STARLING_ADMIN_PORT_FILE",
    "STARLING_ADVERTISE_ADDRESS",
    "STARLING_CIFAR",
    "STARLING_CLUSTER",
    "STARLING_COORDINATOR",
    "STARLING_COORDINATOR_TIMEOUT",
    "STARLING_DATA",
    "STARLING_DIGITS",
    "STARLING_IMAGENET",
    "STARLING_INSECURE",
    "STARLING_JUDGE_PYTHON",
    "STARLING_KEEP_ENDED_FOR",
    "STARLING_KEEP_ENDED_JOBS",
    "STARLING_LANES",
    "STARLING_LISTEN",
    "STARLING_LOG_FORMAT",
    "STARLING_LOG_LEVEL",
    "STARLING_MEMORY_BYTES",
    "STARLING_NAME",
    "STARLING_OUTPUT_ROOT",
    "STARLING_PORT_FILE",
    "STARLING_PROMETHEUS",
    "STARLING_STATE",
    "STARLING_TABLE",
    "STARLING_TENSORBOARD_ROOT",
    "STARLING_TLS_CA",
    "STARLING_TLS_CERT",
    "STARLING_TLS_KEY",
    "STARLING_TOKENS",
};

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& variable) -> std::optional<std::string> {
    const char* const value = std::getenv(variable.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

std::string VariableOf(absl::string_view flag) {
  while (absl::StartsWith(flag, "-")) flag.remove_prefix(1);
  return absl::StrCat(kPrefix, absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}})));
}

std::vector<std::string> EnvironmentNames() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    names.push_back(text.substr(0, text.find('=')));
  }
  return names;
}

void Settings::Add(const std::string& flag, const std::string& help, std::string* value,
                   bool required) {
  CLI::Option* const option = app_->add_option(flag, *value, help)->capture_default_str();
  Describe({.flag = flag, .text = value, .required = required}, option);
}

void Settings::AddForTests(const std::string& flag, const std::string& help, std::string* value) {
  Add(flag, help, value);
  settings_.back().option->group("");
}

void Settings::AddSwitch(const std::string& flag, const std::string& help, bool* value) {
  Describe({.flag = flag, .on = value}, app_->add_flag(flag, *value, help));
}

// The help shows the variable, but CLI11 does not read it.
void Settings::Describe(Setting setting, CLI::Option* option) {
  option->description(absl::StrCat(option->get_description(), " [", VariableOf(setting.flag), "]",
                                   setting.required ? " (required)" : ""));
  setting.option = option;
  settings_.push_back(std::move(setting));
}

absl::Status Settings::Resolve(const Environment& environment) {
  for (Setting& setting : settings_) {
    const std::string variable = VariableOf(setting.flag);
    std::optional<std::string> given = environment(variable);
    if (given.has_value() && given->empty()) given.reset();
    if (setting.option->count() > 0) {
      setting.origin = setting.flag;
    } else if (given.has_value() && setting.text != nullptr) {
      *setting.text = *given;
      setting.origin = variable;
    } else if (given.has_value()) {
      const std::string value = absl::AsciiStrToLower(*given);
      if (value != "true" && value != "false" && value != "1" && value != "0") {
        return absl::InvalidArgumentError(
            absl::StrCat(variable, " must be true or false, not \"", *given, "\""));
      }
      *setting.on = value == "true" || value == "1";
      setting.origin = variable;
    } else if (setting.required) {
      setting.origin = kMissing;
    }
  }
  return absl::OkStatus();
}

absl::Status Settings::CheckRequired() const {
  for (const Setting& setting : settings_) {
    if (setting.origin != kMissing) continue;
    return absl::InvalidArgumentError(absl::StrCat(setting.flag, " is required (or the variable ",
                                                   VariableOf(setting.flag), ")"));
  }
  return absl::OkStatus();
}

std::string Settings::Text() const {
  std::string text;
  for (const Setting& setting : settings_) {
    std::string line = setting.flag.substr(setting.flag.find_first_not_of('-'));
    line.resize(std::max<size_t>(line.size() + 1, 24), ' ');
    line += setting.text == nullptr ? *setting.on ? "true" : "false"
            : setting.text->empty() ? "(none)"
                                    : *setting.text;
    line.resize(std::max<size_t>(line.size() + 1, 64), ' ');
    absl::StrAppend(&text, line, setting.origin, "\n");
  }
  return text;
}

std::vector<std::string> Settings::Unknown(const std::vector<std::string>& names) const {
  std::vector<std::string> unknown;
  for (const std::string& name : names) {
    const auto reads = [&](const Setting& setting) { return VariableOf(setting.flag) == name; };
    if (absl::StartsWith(name, kPrefix) &&
        std::find(std::begin(kOthers), std::end(kOthers), name) == std::end(kOthers) &&
        std::none_of(settings_.begin(), settings_.end(), reads)) {
      unknown.push_back(name);
    }
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

}  // namespace starling
