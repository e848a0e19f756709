#include "common/config/paths.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace starling::config {
namespace {

// Says what is wrong, and stands for the text that there is not.
std::string Refuse(const Section& section, const std::string& key, const std::string& what) {
  section.Fail(key, what);
  return "";
}

// Replaces a leading ~/ with the home folder. On error, records it and returns an empty string.
std::string WithHome(const Section& section, const std::string& key, const std::string& text,
                     const JobFileOptions& options) {
  if (text.empty() || text[0] != '~') return text;
  const auto home = options.environment ? options.environment("HOME") : std::nullopt;
  if (text.size() > 1 && text[1] != '/') {
    return Refuse(section, key,
                  absl::StrCat("\"", text,
                               "\": ~ stands for your own home folder alone, as ~/: write the path "
                               "out, or ./",
                               text, " for a file of that name"));
  }
  if (!home || home->empty()) {
    return Refuse(section, key,
                  absl::StrCat("\"", text, "\": HOME is not set: write the path out"));
  }
  return absl::StrCat(*home, text.substr(1));
}

std::string Expand(const Section& section, const std::string& key, const std::string& written,
                   const JobFileOptions& options) {
  const std::string text = WithHome(section, key, written, options);
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '$') {
      out += text[i++];
      continue;
    }
    size_t begin = i + 1;
    const bool braces = begin < text.size() && text[begin] == '{';
    if (braces) ++begin;
    size_t end = begin;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
      ++end;
    const std::string name = text.substr(begin, end - begin);
    const auto value = options.environment ? options.environment(name) : std::nullopt;
    if (name.empty() || !value || (braces && (end >= text.size() || text[end] != '}'))) {
      return Refuse(section, key,
                    absl::StrCat("$", name, " in \"", text,
                                 "\" is not set: export it, or write the path out"));
    }
    out += *value;
    i = braces ? end + 1 : end;
  }
  if (out.empty() || out.find('\0') != std::string::npos) {
    return Refuse(section, key, "expected a path");
  }
  if (FindNotUtf8(out) == absl::string_view::npos) return out;
  return Refuse(section, key,
                absl::StrCat("expected a path in UTF-8, got ", absl::CHexEscape(out)));
}

std::string Absolute(const std::string& directory, const std::string& text) {
  const std::filesystem::path path(text);
  return (path.is_absolute() ? path : std::filesystem::path(directory) / path)
      .lexically_normal()
      .string();
}

// A pattern that matches `text` literally.
std::string LiteralPattern(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// `text` with each number of its first range {00000..00004}; {text} if it has none. Empty: an error
// was recorded.
std::vector<std::string> Numbered(const Section& section, const std::string& key,
                                  const std::string& text) {
  // ${VAR} is expanded before this.
  const size_t open = text.find('{');
  const size_t close = open == std::string::npos ? open : text.find('}', open);
  const size_t dots = close == std::string::npos ? close : text.find("..", open);
  if (dots == std::string::npos || dots > close) return {text};
  const std::string first = text.substr(open + 1, dots - open - 1);
  const std::string last = text.substr(dots + 2, close - dots - 2);
  uint32_t begin = 0;
  uint32_t end = 0;
  if (!absl::SimpleAtoi(first, &begin) || !absl::SimpleAtoi(last, &end) || begin > end ||
      end - begin >= kPathsMax || first[0] == '+' || last[0] == '+') {
    section.Fail(key, absl::StrCat("\"", text,
                                   "\": expected a range like {00000..00004}, ascending and "
                                   "of at most ",
                                   kPathsMax, " numbers"));
    return {};
  }
  const bool padded = first.size() == last.size();
  std::vector<std::string> out;
  for (uint64_t number = begin; number <= end; ++number) {
    out.push_back(
        absl::StrCat(text.substr(0, open),
                     absl::StrFormat("%0*d", padded ? static_cast<int>(first.size()) : 1, number),
                     text.substr(close + 1)));
  }
  return out;
}

// The files that match the written pattern, ascending; the path itself if it is not a pattern.
// Empty: an error was recorded.
std::vector<std::string> Matching(const Section& section, const std::string& key,
                                  const std::string& written, const JobFileOptions& options) {
  const std::string path = Absolute(options.directory, written);
  if (written.find_first_of("*?[") == std::string::npos) return {path};
  std::vector<std::string> files;
  if (options.matching_files)
    files = options.matching_files(Absolute(LiteralPattern(options.directory), written));
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    if (FindNotUtf8(file) == absl::string_view::npos) continue;
    section.Fail(
        key, absl::StrCat("expected paths in UTF-8; ", path, " matches ", absl::CHexEscape(file)));
    return {};
  }
  if (files.empty()) {
    section.Fail(key,
                 absl::StrCat("no file matches ", path,
                              " on this machine, where patterns are "
                              "expanded: write the paths out, or as a range like {00000..00004}, "
                              "where only the workers see the files"));
  }
  return files;
}

}  // namespace

std::string ExpandPath(const Section& section, const std::string& key,
                       const JobFileOptions& options) {
  const std::string text =
      Expand(section, key, section.Has(key) ? section.node()[key].Scalar() : "", options);
  return text.empty() ? text : Absolute(options.directory, text);
}

std::vector<std::string> ExpandPaths(const Section& section, const std::string& key,
                                     const JobFileOptions& options) {
  std::vector<std::string> paths;
  for (const std::string& text : section.Texts(key)) {
    const std::string expanded = Expand(section, key, text, options);
    if (expanded.empty()) return {};
    for (const std::string& numbered : Numbered(section, key, expanded)) {
      for (std::string& file : Matching(section, key, numbered, options))
        paths.push_back(std::move(file));
      if (!section.status()->ok()) return {};
      if (paths.size() <= kPathsMax) continue;
      section.Fail(key, absl::StrCat("expected at most ", kPathsMax, " paths"));
      return {};
    }
  }
  if (paths.empty()) section.Fail(key, "expected at least one path");
  return paths;
}

}  // namespace starling::config
