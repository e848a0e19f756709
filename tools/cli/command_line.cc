#include "tools/cli/command_line.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/daemon/usage.h"
#include "common/version/version.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/local.h"
#include "tools/cli/output.h"

namespace starling::cli {

std::string VersionText() {
  return absl::StrCat("starling ", std::string(ReleaseVersion()), " (protocol ", ProtocolVersion(),
                      ")");
}

CommandLine::CommandLine()
    : app_("Trains models on a cluster; losing a worker or the coordinator ends no job.",
           "starling") {
  app_.require_subcommand(0, 1);
  app_.fallthrough();
  app_.set_version_flag("--version", VersionText());
  settings_.Add("--coordinator", "the coordinator's host:port (else the local cluster's)",
                &links_.coordinator);
  AddLinkSettings(settings_, &links_);
  app_.add_flag("--print-config", print_config_,
                "print these settings and where each came from, and do nothing else");
}

void CommandLine::Verb(const std::string& name, const std::string& help, Action action) {
  app_.add_subcommand(name, help)->callback([this, action = std::move(action)] {
    action_ = action;
  });
}

CLI::App* CommandLine::Group(const std::string& name, const std::string& help) {
  CLI::App* group = app_.add_subcommand(name, help);
  group->require_subcommand(1);
  group->fallthrough();
  return group;
}

absl::StatusOr<std::string> CommandLine::Coordinator(const Context& context) const {
  return CoordinatorAddress(links_.coordinator, context);
}

absl::StatusOr<std::unique_ptr<Client>> CommandLine::Connect(const Context& context) const {
  STARLING_ASSIGN_OR_RETURN(const std::string address, Coordinator(context));
  STARLING_RETURN_IF_ERROR(CheckPeerAddress(address, context.security.get()));
  return context.connect(address);
}

int CommandLine::Run(std::vector<std::string> args, Context& context) {
  std::reverse(args.begin(), args.end());  // CLI11 expects them reversed
  try {
    app_.parse(std::move(args));
    if (!action_ && !print_config_) throw CLI::RequiredError::Subcommand(1);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_.exit(error, context.out, context.err);
    context.err << UsageError(app_, error);
    return kExitUsage;
  }
  if (const absl::Status status = TakeSettings(context); !status.ok()) {
    Fail(status, context);
    return kExitUsage;
  }
  if (!print_config_) {
    const absl::StatusOr<int> exit_code = action_(context);
    return exit_code.ok() ? *exit_code : Fail(exit_code.status(), context);
  }
  context.out << settings_.Text();
  return kExitOk;
}

absl::Status CommandLine::TakeSettings(Context& context) {
  STARLING_RETURN_IF_ERROR(settings_.Resolve(context.environment));
  for (const std::string& variable : settings_.Unknown(context.environment_names)) {
    context.err << "warning: " << variable
                << " is set, and no setting has that name: see starling --help\n";
  }
  STARLING_ASSIGN_OR_RETURN(context.security, MakeLinkSecurity(links_, PeerRole::kClient));
  return absl::OkStatus();
}

void AddName(CLI::App* verb, const std::string& help, std::string* name) {
  verb->add_option("NAME", *name, help)->required()->check(CheckUtf8);
}

void AddFormat(CLI::App* verb, Format* format) {
  verb->add_option("-o,--output", *format, "table, json or yaml")
      ->transform(OneOf<Format>(
          {{"table", Format::kTable}, {"json", Format::kJson}, {"yaml", Format::kYaml}}));
}

void AddKind(CLI::App* verb, Kind* kind) {
  verb->add_option("KIND", *kind, "jobs, workers or shards")
      ->required()
      ->transform(OneOf<Kind>({{"jobs", Kind::kJob},
                               {"workers", Kind::kWorker},
                               {"shards", Kind::kShard},
                               {"job", Kind::kJob},
                               {"worker", Kind::kWorker},
                               {"shard", Kind::kShard}}));
}

CLI::Option* AddJobFile(CLI::App* verb, const std::string& help, std::string* file,
                        std::vector<std::string>* overrides) {
  CLI::Option* const option = verb->add_option("-f,--file", *file, help)->required();
  verb->add_option("--set", *overrides, "KEY.KEY=VALUE: replaces a value of the file; repeatable")
      ->allow_extra_args(false);
  return option;
}

CLI::Validator Member(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& text) -> std::string {
        if (std::find(words.begin(), words.end(), text) != words.end()) return "";
        return absl::StrCat("expected ", absl::StrJoin(words, ", "), ", got \"", text, "\"");
      },
      "");
}

std::string CheckUtf8(const std::string& text) {
  return FindNotUtf8(text) == absl::string_view::npos ? "" : "expected UTF-8";
}

int Fail(const absl::Status& status, Context& context) {
  context.err << "starling: " << PrintableText(std::string(status.message()), /*lines=*/true)
              << "\n"
              << std::flush;
  return ExitCodeFor(status);
}

}  // namespace starling::cli
