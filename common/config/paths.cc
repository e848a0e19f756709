#include "common/config/paths.h"

#include <cctype>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace starling::config {
namespace {

std::string Expand(const Section& section, const std::string& key, const std::string& text,
                   const JobFileOptions& options) {
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
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    const std::string name = text.substr(begin, end - begin);
    const auto value = options.environment ? options.environment(name) : absl::nullopt;
    if (name.empty() || !value || (braces && (end >= text.size() || text[end] != '}'))) {
      section.Fail(key, absl::StrCat("$", name, " in \"", text, "\" is not set: export it, or write the path out"));
      return "";
    }
    out += *value;
    i = braces ? end + 1 : end;
  }
  if (out.empty() || out.find('\0') != std::string::npos) {
    section.Fail(key, "expected a path");
    return "";
  }
  const std::filesystem::path path(out);
  return (path.is_absolute() ? path : std::filesystem::path(options.directory) / path).lexically_normal().string();
}

}  // namespace

std::string ExpandPath(const Section& section, const std::string& key, const JobFileOptions& options) {
  return Expand(section, key, section.Text(key, ""), options);
}

std::vector<std::string> ExpandPaths(const Section& section, const std::string& key,
                                     const JobFileOptions& options) {
  std::vector<std::string> paths;
  for (const std::string& text : section.Texts(key)) {
    paths.push_back(Expand(section, key, text, options));
  }
  if (paths.empty()) section.Fail(key, "expected at least one path");
  return paths;
}

}  // namespace starling::config
