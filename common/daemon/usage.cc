#include "common/daemon/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/nearest_name.h"

namespace starling {
namespace {

// The verbs that were parsed, starting with the program.
std::vector<const CLI::App*> Path(const CLI::App& app) {
  std::vector<const CLI::App*> path = {&app};
  for (std::vector<CLI::App*> next = app.get_subcommands(); !next.empty();
       next = path.back()->get_subcommands()) {
    path.push_back(next.front());
  }
  return path;
}

std::vector<std::string> Flags(const std::vector<const CLI::App*>& path) {
  std::vector<std::string> flags;
  for (const CLI::App* app : path) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames())
        flags.push_back(absl::StrCat("--", name));
    }
  }
  return flags;
}

std::vector<std::string> Verbs(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(verb->get_name());
  return verbs;
}

// CLI11 lists the unexpected arguments after a colon, last one first. If one is a flag, it is the
// culprit and the others follow it.
std::string Unexpected(const std::vector<const CLI::App*>& path, const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text.substr(text.find(": ") + 2), ' ');
  const auto flag_word = std::find_if(words.rbegin(), words.rend(), [](const std::string& word) {
    return absl::StartsWith(word, "-");
  });
  const std::string& first = flag_word == words.rend() ? words.back() : *flag_word;
  if (absl::StartsWith(first, "-")) {
    const std::string flag = first.substr(0, first.find('='));
    return absl::StrCat("unknown flag ", flag, DidYouMean(flag, Flags(path)));
  }
  const std::vector<std::string> verbs = Verbs(*path.back());
  if (verbs.empty()) return absl::StrCat("unexpected argument \"", first, "\"");
  const std::string near = DidYouMean(first, verbs);
  return absl::StrCat(
      "unknown verb \"", first, "\"",
      near.empty() ? absl::StrCat("; expected one of ", absl::StrJoin(verbs, ", ")) : near);
}

std::string Words(const std::vector<const CLI::App*>& path, const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  if (kind == CLI::ExitCodes::ExtrasError) return Unexpected(path, text);
  if (kind == CLI::ExitCodes::ArgumentMismatch && absl::EndsWith(text, "missing"))
    return absl::StrCat(text.substr(0, text.find(':')), ": expected a value, got none");
  if (kind == CLI::ExitCodes::ConversionError && absl::StrContains(text, " = ")) {
    const std::string pair = text.substr(text.find(": ") + 2);
    return absl::StrCat(pair.substr(0, pair.find(" = ")), ": expected a number, got \"",
                        pair.substr(pair.find(" = ") + 3), "\"");
  }
  if (text == "A subcommand is required") {
    const std::vector<std::string> rest = path.front()->remaining(/*recurse=*/true);
    if (!rest.empty()) return Unexpected(path, absl::StrCat(": ", rest.front()));
    return absl::StrCat("expected a verb: ", absl::StrJoin(Verbs(*path.back()), ", "));
  }
  return text;
}

}  // namespace

std::string UsageError(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<const CLI::App*> path = Path(app);
  std::string command;
  for (const CLI::App* verb : path) absl::StrAppend(&command, verb->get_name(), " ");
  return absl::StrCat(app.get_name(), ": ", Words(path, error), "\nsee: ", command, "--help\n");
}

}  // namespace starling
