// starling submit: a job file to the coordinator.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "common/protocol/limits.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/verbs.h"
#include "tools/cli/watch.h"

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

absl::StatusOr<JobSpec> ReadSpec(const SubmitOptions& options, Context& context) {
  const auto text = ReadFile(options.file);
  if (!text.ok()) return text.status();
  config::JobFileOptions parse;
  parse.directory = std::filesystem::absolute(options.file).parent_path().string();
  parse.environment = context.environment;
  parse.overrides = options.overrides;
  auto spec = config::ParseJobFile(*text, parse);
  if (spec.ok()) return spec;
  return absl::Status(spec.status().code(), absl::StrCat(options.file, ": ", spec.status().message()));
}

}  // namespace

int RunSubmit(const SubmitOptions& options, const Connector& connect, Context& context) {
  auto spec = ReadSpec(options, context);
  if (!spec.ok()) return Fail(spec.status(), context);
  const auto client = connect();
  if (!client.ok()) return Fail(client.status(), context);
  SubmitRequest request;
  *request.mutable_spec() = *std::move(spec);
  request.set_dry_run(options.dry_run);
  request.set_nonce(context.random());
  const auto reply = (*client)->Submit(request);
  if (!reply.ok()) return Fail(reply.status(), context);
  const std::string& name = request.spec().name();
  if (options.dry_run) {
    context.out << name << ": valid, not submitted (" << CountText(reply->status().parameters())
                << " parameters)\n";
    return kExitOk;
  }
  context.err << "submitted " << name << "\n" << std::flush;
  if (!options.watch) return kExitOk;
  context.catch_interrupts();
  return WatchJob(name, absl::InfiniteFuture(), **client, context);
}

}  // namespace starling::cli
