#include "tools/cli/read_job_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "common/protocol/limits.h"

namespace starling::cli {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
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

absl::StatusOr<JobSpec> ReadJobFile(const std::string& file, const std::vector<std::string>& overrides,
                                    const Environment& environment) {
  const auto text = ReadFile(file);
  if (!text.ok()) return text.status();
  config::JobFileOptions parse;
  parse.directory = std::filesystem::absolute(file).parent_path().string();
  parse.environment = environment;
  parse.overrides = overrides;
  auto spec = config::ParseJobFile(*text, parse);
  if (spec.ok()) return spec;
  return absl::Status(spec.status().code(), absl::StrCat(file, ": ", spec.status().message()));
}

}  // namespace starling::cli
