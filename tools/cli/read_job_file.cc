#include "tools/cli/read_job_file.h"

#include <glob.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/config/job_file.h"
#include "common/protocol/limits.h"
#include "common/safetensors/safetensors.h"

namespace starling::cli {
namespace {

constexpr char kStandardInput[] = "-";

// Of a stream whose end is not known before.
absl::StatusOr<std::string> ReadAll(const std::string& name, std::istream& in) {
  std::string text(limits::kJobFileBytesMax + 1, '\0');  // one more reveals excess
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(in.gcount());
  if (text.size() <= limits::kJobFileBytesMax) return text;
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": more than ", limits::kJobFileBytesMax, " bytes; is this a job file?"));
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
  if (path == kStandardInput) return ReadAll("standard input", std::cin);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a job file, got a folder: name a file in it"));
  }
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found)
    return absl::InvalidArgumentError(absl::StrCat(path, ": no such job file"));
  if (type == std::filesystem::file_type::fifo) {  // a shell's <(...)
    std::ifstream pipe(path, std::ios::binary);
    if (!pipe) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be opened"));
    return ReadAll(path, pipe);
  }
  if (type == std::filesystem::file_type::none)
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  if (type != std::filesystem::file_type::regular) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a file or a pipe; `-f -` reads standard input"));
  }
  const auto bytes = std::filesystem::file_size(path, error);
  if (error || bytes > limits::kJobFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", limits::kJobFileBytesMax,
                                                   " bytes, or not readable; is this a job file?"));
  }
  absl::StatusOr<std::string> text = ReadText(path);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  return text;
}

absl::StatusOr<uint64_t> Digest(const safetensors::Reader& file,
                                const safetensors::TensorInfo& tensor) {
  constexpr uint64_t kChunkBytes = 1 << 20;
  std::vector<uint8_t> chunk(kChunkBytes);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const uint64_t bytes = tensor.end - tensor.begin;
  for (uint64_t at = 0; at < bytes; at += kChunkBytes) {
    const absl::Span<uint8_t> part(chunk.data(), std::min(kChunkBytes, bytes - at));
    STARLING_RETURN_IF_ERROR(file.Read(tensor, at, part));
    XXH3_64bits_update(state.get(), part.data(), part.size());
  }
  return XXH3_64bits_digest(state.get());
}

absl::Status Describe(InitFile* init) {
  STARLING_ASSIGN_OR_RETURN(const safetensors::Reader file,
                            safetensors::Reader::Open(init->path()));
  for (const safetensors::TensorInfo& tensor : file.header().tensors) {
    InitFile::Tensor& out = *init->add_tensors();
    out.set_name(tensor.name);
    out.set_type(safetensors::DTypeName(tensor.dtype));
    for (const uint64_t dim : tensor.shape) out.add_shape(static_cast<int64_t>(dim));
    out.set_offset(file.header().data_begin + tensor.begin);
    STARLING_ASSIGN_OR_RETURN(const uint64_t digest, Digest(file, tensor));
    out.set_digest(digest);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobSpec> ReadJobFile(const std::string& file,
                                    const std::vector<std::string>& overrides,
                                    const Environment& environment) {
  STARLING_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  config::JobFileOptions parse;
  // For "-", the working directory.
  parse.directory = std::filesystem::absolute(file).parent_path().string();
  parse.environment = environment;
  parse.matching_files = MatchingFiles;
  parse.overrides = overrides;
  auto spec = config::ParseJobFile(text, parse);
  if (!spec.ok()) return Prefixed(file, spec.status());
  return spec;
}

absl::Status ReadInitFile(JobSpec* spec) {
  if (!spec->model_source().has_init()) return absl::OkStatus();
  InitFile* const init = spec->mutable_model_source()->mutable_init();
  const absl::Status status = Describe(init);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("model.init: ", status.message()));
}

}  // namespace starling::cli
