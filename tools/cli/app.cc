#include "tools/cli/app.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/config/bytes.h"
#include "common/config/duration.h"
#include "common/daemon/daemon.h"
#include "common/daemon/usage.h"
#include "common/version/version.h"
#include "tools/cli/address.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/local.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

// The values of all verbs' flags.
struct Flags {
  DaemonFlags links;  // --coordinator, --tls-cert, ...
  bool print_config = false;
  std::string name;
  std::vector<std::string> names;
  bool ended = false;
  ListOptions list;
  std::string assignment;
  Kind kind = Kind::kJob;
  Format format = Format::kTable;
  std::string export_file;
  std::string export_format;
  SubmitOptions submit;
  bool follow = false;
  bool node = false;
  std::string timeout;
  LocalUpOptions up;
  std::string state;
  ModelChoice choice;
  PredictOptions predict;
  GenerateVerbOptions generate;
  DataInspectOptions data;
  AdviseOptions advise;
  MetricsOptions metrics;
  std::vector<std::string> plot_names;
  std::string plot_file;
  TraceOptions trace;
};

using Action = std::function<int(Flags&, Context&)>;
using ClientAction = std::function<int(Flags&, Client&, Context&)>;

absl::StatusOr<std::unique_ptr<Client>> Connect(const Flags& flags, const Context& context) {
  const auto address = CoordinatorAddress(flags.links.coordinator, context);
  if (!address.ok()) return address.status();
  STARLING_RETURN_IF_ERROR(CheckPeerAddress(*address, context.security.get()));
  return context.connect(*address);
}

// One of a few words, each of which stands for a value.
template <typename T>
CLI::Validator OneOf(const std::vector<std::pair<std::string, T>>& values) {
  std::vector<std::string> words;
  for (const auto& [word, value] : values) words.push_back(word);
  CLI::Validator validator(
      [values, words](std::string& text) -> std::string {
        for (const auto& [word, value] : values) {
          if (text != word) continue;
          text = absl::StrCat(static_cast<int>(value));
          return "";
        }
        return absl::StrCat("expected one of ", absl::StrJoin(words, ", "), ", got \"", text, "\"",
                            DidYouMean(text, words));
      },
      "");
  return validator;
}

// The same for words that are the values themselves.
CLI::Validator Member(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& text) -> std::string {
        if (std::find(words.begin(), words.end(), text) != words.end()) return "";
        return absl::StrCat("expected ", absl::StrJoin(words, ", "), ", got \"", text, "\"");
      },
      "");
}

// Converts "1GiB" to a number of bytes.
std::string ReadBytes(std::string& text) {
  const auto bytes = config::ParseBytes(text);
  if (!bytes.ok()) return std::string(bytes.status().message());
  text = absl::StrCat(*bytes);
  return "";
}

std::string CheckUtf8(const std::string& text) {
  return FindNotUtf8(text) == absl::string_view::npos ? "" : "expected UTF-8";
}

// Connects first: for verbs that need the coordinator.
Action WithClient(ClientAction action) {
  return [action = std::move(action)](Flags& flags, Context& context) {
    const auto client = Connect(flags, context);
    return client.ok() ? action(flags, **client, context) : Fail(client.status(), context);
  };
}

class Parser {
 public:
  Parser() : app_("Trains models on a cluster that losing any process does not stop.", "starling") {
    app_.require_subcommand(0, 1);
    app_.fallthrough();
    app_.set_version_flag("--version", absl::StrCat("starling ", std::string(ReleaseVersion())));
    settings_.Add("--coordinator", "the coordinator's host:port (else the local cluster's)",
                  &flags_.links.coordinator);
    AddLinkSettings(settings_, &flags_.links);
    app_.add_flag("--print-config", flags_.print_config,
                  "print these settings and where each came from, and do nothing else");
    AddLocal();
    AddJobs();
    AddInspection();
    AddUse();
    AddData();
    AddAdvice();
    Verb("schema", "print the job file's schema",
         [](Flags&, Context& context) { return RunSchema(context); });
    Verb("version", "print the version",
         [](Flags&, Context& context) { return RunVersion(context); });
  }

  int Run(std::vector<std::string> args, Context& context) {
    std::reverse(args.begin(), args.end());  // CLI11 expects them reversed
    try {
      app_.parse(std::move(args));
      if (!action_ && !flags_.print_config) throw CLI::RequiredError::Subcommand(1);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app_.exit(error, context.out, context.err);
      context.err << UsageError(app_, error);
      return kExitUsage;
    }
    if (const absl::Status status = TakeSettings(context); !status.ok()) {
      Fail(status, context);
      return kExitUsage;
    }
    if (!flags_.print_config) return action_(flags_, context);
    context.out << settings_.Text();
    return kExitOk;
  }

 private:
  absl::Status TakeSettings(Context& context) {
    STARLING_RETURN_IF_ERROR(
        settings_.Resolve([&](const std::string& name) -> std::optional<std::string> {
          const auto value = context.environment(name);
          return value ? std::optional<std::string>(*value) : std::nullopt;
        }));
    for (const std::string& variable : settings_.Unknown(context.environment_names)) {
      context.err << "warning: " << variable
                  << " is set, and no setting has that name: see starling --help\n";
    }
    STARLING_ASSIGN_OR_RETURN(context.security, MakeLinkSecurity(flags_.links, PeerRole::kClient));
    return absl::OkStatus();
  }

  CLI::App* Verb(CLI::App& parent, const std::string& name, const std::string& help,
                 Action action) {
    CLI::App* verb = parent.add_subcommand(name, help);
    verb->callback([this, action = std::move(action)] { action_ = action; });
    return verb;
  }
  CLI::App* Verb(const std::string& name, const std::string& help, Action action) {
    return Verb(app_, name, help, std::move(action));
  }

  void AddName(CLI::App* verb, const std::string& help) {
    verb->add_option("NAME", flags_.name, help)->required()->check(CheckUtf8);
  }

  void AddKind(CLI::App* verb, const std::string& option) {
    verb->add_option(option, flags_.kind, "jobs, workers or shards")
        ->required()
        ->transform(OneOf<Kind>({{"jobs", Kind::kJob},
                                 {"workers", Kind::kWorker},
                                 {"shards", Kind::kShard},
                                 {"job", Kind::kJob},
                                 {"worker", Kind::kWorker},
                                 {"shard", Kind::kShard}}));
  }

  void AddFormat(CLI::App* verb) {
    verb->add_option("-o,--output", flags_.format, "table, json or yaml")
        ->transform(OneOf<Format>(
            {{"table", Format::kTable}, {"json", Format::kJson}, {"yaml", Format::kYaml}}));
  }

  void AddLocal() {
    CLI::App* group = app_.add_subcommand("local", "a cluster on this machine");
    group->require_subcommand(1);
    group->fallthrough();
    CLI::App* up = Verb(*group, "up", "start one, and keep its processes running",
                        [](Flags& flags, Context& context) {
                          flags.up.state_directory = flags.state;
                          return RunLocalUp(flags.up, context);
                        });
    up->add_option("--shards", flags_.up.shards, "parameter-server shards")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    up->add_option("--workers", flags_.up.workers, "workers")
        ->check(CLI::Range(0, 64))
        ->capture_default_str();
    up->add_flag("--detach", flags_.up.detach,
                 "return once it runs; stop it with: starling local down");
    up->add_flag("--no-restart", flags_.up.no_restart, "leave dead processes dead");
    up->add_option("--port", flags_.up.port, "the coordinator's; 0: any free one")
        ->check(CLI::Range(0, 65535))
        ->capture_default_str();
    up->add_option("--bin-dir", flags_.up.binary_directory,
                   "where the daemons' binaries are (else beside this one)");
    AddState(up);
    AddState(Verb(*group, "down", "stop it", [](Flags& flags, Context& context) {
      return RunLocalDown(flags.state, context);
    }));
  }

  void AddState(CLI::App* verb) {
    verb->add_option("--state", flags_.state,
                     "its folder: address, logs, state (else ~/.local/state/starling/local)");
  }

  void AddJobs() {
    CLI::App* submit = Verb("submit", "submit a job file", [](Flags& flags, Context& context) {
      return RunSubmit(
          flags.submit, [&] { return Connect(flags, context); }, context);
    });
    submit
        ->add_option("-f,--file", flags_.submit.file,
                     "the job file (see: starling schema); -: standard input")
        ->required();
    submit
        ->add_option("--set", flags_.submit.overrides,
                     "KEY.KEY=VALUE: replaces a value of the file; repeatable")
        ->allow_extra_args(false);
    submit->add_option("--name", flags_.submit.name, "the job's name, in place of the file's");
    submit->add_flag("--replace", flags_.submit.replace,
                     "in place of a job of that name that has ended, which is deleted");
    submit->add_flag("--watch", flags_.submit.watch, "follow the job to its end");
    submit->add_flag("--dry-run", flags_.submit.dry_run, "check it, and its data, only");

    CLI::App* wait = app_.add_subcommand("wait", "follow a job to its end");
    AddName(wait, "the job");
    wait->add_option("--timeout", flags_.timeout,
                     "at most so long: 90s, 30m, 2h (else without bound)")
        ->check([](const std::string& text) {
          return std::string(config::ParseDuration(text).status().message());
        });
    wait->callback([this] {
      action_ = WithClient([](Flags& flags, Client& client, Context& context) {
        const absl::Duration timeout = flags.timeout.empty()
                                           ? absl::InfiniteDuration()
                                           : absl::Seconds(*config::ParseDuration(flags.timeout));
        return RunWait(flags.name, timeout, client, context);
      });
    });
    CLI::App* set = Verb("set", "change the consistency of a running job",
                         WithClient([](Flags& flags, Client& client, Context& context) {
                           return RunSet(flags.name, flags.assignment, client, context);
                         }));
    AddName(set, "the job");
    set->add_option("SETTING", flags_.assignment,
                    "consistency=bsp, consistency=ssp:3 or consistency=async")
        ->required();
    AddName(Verb("cancel", "stop a job; its last parameters stay",
                 WithClient([](Flags& flags, Client& client, Context& context) {
                   return RunCancel(flags.name, client, context);
                 })),
            "the job");
    CLI::App* remove =
        app_.add_subcommand("delete", "forget jobs that have ended, and their parameters");
    CLI::Option* ended = remove->add_flag("--ended", flags_.ended, "all that have ended");
    remove->add_option("NAME", flags_.names, "the jobs")->check(CheckUtf8)->excludes(ended);
    remove->callback([this] {
      if (flags_.names.empty() && !flags_.ended) throw CLI::RequiredError("NAME or --ended");
      action_ = WithClient([](Flags& flags, Client& client, Context& context) {
        return RunDelete(flags.names, flags.ended, client, context);
      });
    });
  }

  void AddInspection() {
    CLI::App* get = Verb("get", "list jobs, workers or shards",
                         WithClient([](Flags& flags, Client& client, Context& context) {
                           return RunGet(flags.kind, flags.list, flags.format, client, context);
                         }));
    AddKind(get, "KIND");
    static const std::map<std::string, JobState> states = {{"pending", PENDING},
                                                           {"running", RUNNING},
                                                           {"succeeded", SUCCEEDED},
                                                           {"failed", FAILED},
                                                           {"cancelled", CANCELLED}};
    CLI::Option* all = get->add_flag("--all", flags_.list.all, "all jobs, however many");
    get->add_option("--limit", flags_.list.limit,
                    "so many jobs, those that live and the newest first")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40))
        ->capture_default_str()
        ->excludes(all);
    get->add_option("--state", flags_.list.states,
                    "jobs that are pending, running, succeeded, failed or cancelled; repeatable")
        ->allow_extra_args(false)
        ->transform(CLI::CheckedTransformer(states, CLI::ignore_case).description(""));
    AddFormat(get);
    CLI::App* describe =
        Verb("describe", "all about one job, worker or shard",
             WithClient([](Flags& flags, Client& client, Context& context) {
               return RunDescribe(flags.kind, flags.name, flags.format, client, context);
             }));
    AddKind(describe, "KIND");
    AddName(describe, "its name");
    AddFormat(describe);
    CLI::App* explain =
        Verb("explain", "why a job is slow or stuck (exit status 1: something is wrong)",
             WithClient([](Flags& flags, Client& client, Context& context) {
               return RunExplain(flags.name, flags.format, client, context);
             }));
    AddName(explain, "the job");
    AddFormat(explain);
    CLI::App* doctor = Verb(
        "doctor", "whether machines and network are fit for a job (exit status 1: a check failed)",
        [](Flags& flags, Context& context) {
          if (flags.node) return RunDoctorOfNode(flags.format, context);
          const auto address = CoordinatorAddress(flags.links.coordinator, context);
          if (!address.ok()) return Fail(address.status(), context);
          const auto client = Connect(flags, context);
          if (!client.ok()) return Fail(client.status(), context);
          return RunDoctor(*address, flags.format, **client, context);
        });
    doctor->add_flag("--node", flags_.node, "this machine by itself, without a cluster");
    AddFormat(doctor);
    CLI::App* logs = Verb("logs", "what the coordinator noted about a job",
                          WithClient([](Flags& flags, Client& client, Context& context) {
                            return RunLogs(flags.name, flags.follow, client, context);
                          }));
    AddName(logs, "the job");
    AddCurves();
    CLI::App* write = Verb("export", "write a job's parameters to a file",
                           WithClient([](Flags& flags, Client& client, Context& context) {
                             return RunExport(flags.name, flags.export_file, client, context);
                           }));
    AddName(write, "the job");
    write->add_option("--format", flags_.export_format, "safetensors")
        ->required()
        ->check(Member({"safetensors"}));
    write->add_option("-o,--output", flags_.export_file, "the file")->required();
    logs->add_flag("-f,--follow", flags_.follow, "until the job has ended");
  }

  void AddCurves() {
    CLI::App* metrics = Verb("metrics", "how a job's loss, accuracy, throughput and staleness went",
                             WithClient([](Flags& flags, Client& client, Context& context) {
                               flags.metrics.name = flags.name;
                               flags.metrics.format = flags.format;
                               return RunMetrics(flags.metrics, client, context);
                             }));
    AddName(metrics, "the job");
    AddFormat(metrics);
    metrics->add_flag("--watch", flags_.metrics.watch, "again each second, until the job has ended")
        ->excludes("-o");
    metrics
        ->add_option("--tensorboard", flags_.metrics.tensorboard,
                     "a folder: write TensorBoard's event files there")
        ->excludes("-o")
        ->excludes("--watch");
    CLI::App* plot = Verb("plot", "draw a job's curves, or those of several to compare",
                          WithClient([](Flags& flags, Client& client, Context& context) {
                            return RunPlot(flags.plot_names, flags.plot_file, client, context);
                          }));
    plot->add_option("NAME", flags_.plot_names, "the jobs")
        ->required()
        ->expected(1, kPlotJobsMax)
        ->check(CheckUtf8);
    plot->add_option("-o,--output", flags_.plot_file, "the .svg file")->required();
    CLI::App* trace = Verb("trace", "record what a running job's processes do, for ui.perfetto.dev",
                           WithClient([](Flags& flags, Client& client, Context& context) {
                             flags.trace.name = flags.name;
                             return RunTrace(flags.trace, client, context);
                           }));
    AddName(trace, "the job");
    trace->add_option("--steps", flags_.trace.steps, "of the job, from now on")
        ->check(CLI::Range(1, 1'000'000))
        ->capture_default_str();
    trace->add_option("-o,--output", flags_.trace.file, "the .json file")->required();
  }

  void AddData() {
    CLI::App* group = app_.add_subcommand("data", "what a job trains on");
    group->require_subcommand(1);
    group->fallthrough();
    CLI::App* inspect =
        Verb(*group, "inspect", "counts, shapes, ranges, classes and a few rows",
             [](Flags& flags, Context& context) { return RunDataInspect(flags.data, context); });
    inspect->add_option("-f,--file", flags_.data.file, "the job file")->required();
    inspect
        ->add_option("--set", flags_.data.overrides,
                     "KEY.KEY=VALUE: replaces a value of the file; repeatable")
        ->allow_extra_args(false);
    inspect->add_option("--sheet", flags_.data.sheet,
                        "writes the first images into one picture, .png or .ppm");
    inspect->add_option("--samples", flags_.data.samples, "looks at so many; 0: at all")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
        ->capture_default_str();
    inspect->add_option("--rows", flags_.data.rows, "shows so many")
        ->check(CLI::Range(0, 1000))
        ->capture_default_str();
  }

  void AddAdvice() {
    CLI::App* group = app_.add_subcommand("advise", "how a job would do best on this machine");
    group->require_subcommand(1);
    group->fallthrough();
    CLI::App* batch =
        Verb(*group, "batch", "the largest batch that fits, and the fastest (measured)",
             [](Flags& flags, Context& context) { return RunAdviseBatch(flags.advise, context); });
    batch->add_option("-f,--file", flags_.advise.file, "the job file")->required();
    batch
        ->add_option("--set", flags_.advise.overrides,
                     "KEY.KEY=VALUE: replaces a value of the file; repeatable")
        ->allow_extra_args(false);
    batch
        ->add_option("--lanes", flags_.advise.lanes,
                     "micro-batches computed at once (else one per core)")
        ->check(CLI::Range(1, 1024));
    batch
        ->add_option("--memory-bytes", flags_.advise.memory_bytes,
                     "that a job may plan, as 8GiB (else nine tenths of what is available)")
        ->transform(CLI::Validator(ReadBytes, ""));
    batch
        ->add_option("--device", flags_.advise.device,
                     "as a worker's: auto (a GPU where there is one), gpu, cpu; the job's own wish "
                     "counts, too")
        ->check(Member({"auto", "gpu", "cpu"}))
        ->capture_default_str();
    batch->add_option("--cuda-library", flags_.advise.cuda_library,
                      "the shared object that computes on a GPU (else beside this program, or as "
                      "the loader finds it)");
    batch
        ->add_option("--seconds", flags_.advise.seconds,
                     "that each batch is measured for, at least")
        ->check(CLI::Range(0, 3600))
        ->capture_default_str();
  }

  void AddChoice(CLI::App* verb, int* threads) {
    verb->add_option("MODEL", flags_.choice.model,
                     "a job, or a safetensors file (whose name has a dot or a slash)")
        ->required();
    verb->add_option("-f,--file", flags_.choice.job_file,
                     "the job file, for a file without an embedded model");
    verb->add_option("--threads", *threads, "that compute (else one per core)")
        ->check(CLI::Range(1, 256));
  }

  void AddUse() {
    CLI::App* predict =
        Verb("predict", "what a model makes of an array", [](Flags& flags, Context& context) {
          flags.predict.choice = flags.choice;
          return RunPredict(
              flags.predict, [&] { return Connect(flags, context); }, context);
        });
    AddChoice(predict, &flags_.predict.threads);
    predict->add_option("--input", flags_.predict.input, "a .npy file: samples")->required();
    predict->add_option("-o,--output", flags_.predict.output, "the .npy file to write")->required();
    predict
        ->add_option("--as", flags_.predict.as,
                     "outputs (of the last layer), probabilities or classes")
        ->transform(OneOf<PredictAs>({{"outputs", PredictAs::kOutputs},
                                      {"probabilities", PredictAs::kProbabilities},
                                      {"classes", PredictAs::kClasses}}));

    CLI::App* generate = Verb("generate", "continue a text", [](Flags& flags, Context& context) {
      flags.generate.choice = flags.choice;
      return RunGenerate(
          flags.generate, [&] { return Connect(flags, context); }, context);
    });
    AddChoice(generate, &flags_.generate.threads);
    generate->add_option("--prompt", flags_.generate.prompt, "the text, for models of bytes");
    generate->add_option("--tokens", flags_.generate.tokens, "the tokens, for all others: 1,2,3");
    generate->add_option("--max-new", flags_.generate.max_new, "tokens to add")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
        ->capture_default_str();
    generate
        ->add_option("--temperature", flags_.generate.temperature,
                     "below 1 bolder, 0 always the likeliest")
        ->check(CLI::Range(0.0, 1000.0))
        ->capture_default_str();
    generate->add_option("--top-k", flags_.generate.top_k, "draw from the k likeliest; 0: from all")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
        ->capture_default_str();
    generate->add_option("--seed", flags_.generate.seed, "of the draws")->capture_default_str();
  }

  Flags flags_;
  Action action_;
  CLI::App app_;
  Settings settings_{&app_};
};

}  // namespace

int Fail(const absl::Status& status, Context& context) {
  context.err << "starling: " << std::string(status.message()) << "\n" << std::flush;
  return ExitCodeFor(status);
}

int RunApp(const std::vector<std::string>& args, Context& context) {
  Parser parser;
  return parser.Run(args, context);
}

}  // namespace starling::cli
