#include "tools/cli/read_job_file.h"

#include <glob.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "common/protocol/limits.h"

namespace starling::cli {
namespace {

constexpr char kStandardInput[] = "-";

absl::StatusOr<std::string> ReadStandardInput() {
  std::string text(limits::kJobFileBytesMax + 1, '\0');  // one more reveals excess
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(std::cin.gcount());
  if (text.size() <= limits::kJobFileBytesMax) return text;
  return absl::InvalidArgumentError(absl::StrCat(
      "standard input: more than ", limits::kJobFileBytesMax, " bytes; is this a job file?"));
}

std::vector<std::string> MatchingFiles(const std::string& pattern) {
  std::error_code error;
  // A file's name may look like a pattern.
  if (std::filesystem::exists(pattern, error)) return {pattern};
  glob_t found = {};
  std::vector<std::string> files;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return files;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (path == kStandardInput) return ReadStandardInput();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no such job file"));
  }
  const auto bytes = std::filesystem::file_size(path, error);
  if (error || bytes > limits::kJobFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", limits::kJobFileBytesMax,
                                                   " bytes, or not readable; is this a job file?"));
  }
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  return text.str();
}

}  // namespace

absl::StatusOr<JobSpec> ReadJobFile(const std::string& file,
                                    const std::vector<std::string>& overrides,
                                    const Environment& environment) {
  const auto text = ReadFile(file);
  if (!text.ok()) return text.status();
  config::JobFileOptions parse;
  // For "-", the working directory.
  parse.directory = std::filesystem::absolute(file).parent_path().string();
  parse.environment = environment;
  parse.matching_files = MatchingFiles;
  parse.overrides = overrides;
  auto spec = config::ParseJobFile(*text, parse);
  if (spec.ok()) return spec;
  return absl::Status(spec.status().code(), absl::StrCat(file, ": ", spec.status().message()));
}

}  // namespace starling::cli
