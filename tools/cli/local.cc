// starling local up | down: a cluster on this machine (tools/local).
#include "tools/cli/local.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/verbs.h"
#include "tools/local/cluster.h"
#include "tools/local/detach.h"
#include "tools/local/instance_lock.h"
#include "tools/local/process.h"
#include "tools/local/state_directory.h"

namespace starling::cli {
namespace {

// The stopping cluster's 5 s plus a margin.
constexpr absl::Duration kDownPatience = absl::Seconds(8);
constexpr uint32_t kJobsShown = 8;

struct LocalOptions {
  int shards = 2;
  int workers = 2;
  bool detach = false;
  bool no_restart = false;
  bool fresh = false;
  int port = 0;
  std::string binary_directory;  // empty: next to the client
  std::string state_directory;   // empty: the default
};

// ${XDG_STATE_HOME:-~/.local/state}/starling/local.
absl::StatusOr<std::string> DefaultStateDirectory(const Context& context) {
  const auto state = context.environment("XDG_STATE_HOME");
  if (state && !state->empty()) return absl::StrCat(*state, "/starling/local");
  const auto home = context.environment("HOME");
  if (home && !home->empty()) return absl::StrCat(*home, "/.local/state/starling/local");
  return absl::FailedPreconditionError("neither XDG_STATE_HOME nor HOME is set: give --state DIR");
}

absl::StatusOr<local::StateDirectory> Directory(const std::string& flag, const Context& context) {
  if (flag.empty()) {
    STARLING_ASSIGN_OR_RETURN(std::string directory, DefaultStateDirectory(context));
    return local::StateDirectory(directory);
  }
  return local::StateDirectory(std::filesystem::absolute(flag).lexically_normal().string());
}

// "starling local down" for the cluster in the folder that `flag` names.
std::string DownCommand(const std::string& flag) {
  if (flag.empty()) return "starling local down";
  const bool plain =
      flag.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=:,@%") ==
      std::string::npos;
  return absl::StrCat(
      "starling local down --state ",
      plain ? flag : absl::StrCat("'", absl::StrReplaceAll(flag, {{"'", "'\\''"}}), "'"));
}

// `held`: who holds the lock.
absl::Status RunsAlready(const local::StateDirectory& directory, const absl::Status& held,
                         const std::string& flag) {
  return absl::AlreadyExistsError(absl::StrCat(
      "a local cluster runs already in ", directory.root(), " (", held.message(),
      "; coordinator at ", directory.ReadAddress().value_or("an address not known yet"),
      ").\nStop it with: ", DownCommand(flag), ", or choose another folder with --state"));
}

// The daemons that are registered, of this cluster: those of an earlier one are not heard.
absl::StatusOr<std::set<std::string>> Registered(Client& client) {
  std::set<std::string> names;
  const auto add = [&](const auto& daemons) {
    for (const auto& daemon : daemons) {
      const bool gone =
          daemon.state() == "lost" || daemon.state() == "left" || daemon.state() == "unknown";
      if (!gone) names.insert(daemon.name());
    }
  };
  STARLING_ASSIGN_OR_RETURN(const ListShardsReply shards, client.ListShards());
  STARLING_ASSIGN_OR_RETURN(const ListWorkersReply workers, client.ListWorkers());
  add(shards.shards());
  add(workers.workers());
  return names;
}

// Whether the job goes on when a cluster is started here again.
bool GoesOn(const JobStatus& job) { return job.state() == PENDING || job.goes_back_on_stop(); }

// "RUNNING, epoch 3/5, step 812/2,345; from step 800"
std::string WhereText(const JobStatus& job) {
  const std::string from =
      job.checkpoint().has_last()
          ? absl::StrCat("; from step ", CountText(job.checkpoint().last().step()))
      : job.restored_from().empty() ? "; from its start"
                                    : "; from the checkpoint with which it began";
  // A shard that is killed is lost, which counts.
  const std::string if_in_time = job.restarts_left() == 0 ? ", if its shards stop in time" : "";
  return absl::StrCat(JobState_Name(job.state()), ", ", PositionText(job, ", "),
                      job.goes_back_on_stop() ? from + if_in_time : "");
}

// "a, b and 3 more": the newest jobs in these states, of those for which it holds. Empty: none.
absl::StatusOr<std::string> JobsIn(std::initializer_list<JobState> states,
                                   const std::function<bool(const JobStatus&)>& holds,
                                   Client& client) {
  ListJobsRequest request;
  for (const JobState state : states) request.add_states(state);
  STARLING_ASSIGN_OR_RETURN(const ListJobsReply reply, client.ListJobs(request));
  std::vector<std::string> names;
  size_t others =
      reply.total() - std::min<uint64_t>(reply.total(), static_cast<uint64_t>(reply.jobs_size()));
  for (const JobStatus& job : reply.jobs()) {
    if (!holds(job)) continue;
    if (names.size() == kJobsShown) {
      ++others;
      continue;
    }
    names.push_back(IsEnd(job.state()) ? job.name()
                                       : absl::StrCat(job.name(), " (", WhereText(job), ")"));
  }
  return absl::StrCat(absl::StrJoin(names, ", "),
                      others > 0 && !names.empty() ? absl::StrCat(" and ", others, " more") : "");
}

// Says what goes on with the next cluster here, what ends with this one, and what stays.
void SayWhatEnds(const local::StateDirectory& directory, Context& context) {
  const auto address = directory.ReadAddress();
  if (!address.ok()) return;
  context.security = LinkSecurity::Loopback();
  const auto client = context.connect(*address);
  const auto any = [](const JobStatus&) { return true; };
  const auto stays = [](const JobStatus& job) { return !GoesOn(job); };
  const auto resumes = JobsIn({PENDING, RUNNING}, GoesOn, *client);
  const auto ends = resumes.ok() ? JobsIn({RUNNING}, stays, *client) : resumes;
  const auto ended = ends.ok() ? JobsIn({SUCCEEDED, FAILED, CANCELLED}, any, *client) : ends;
  if (!ended.ok()) {
    context.err << "its coordinator at " << *address
                << " does not answer, so what it runs is not known\n";
    return;
  }
  if (!resumes->empty())
    context.err << "goes on with the next starling local up: " << *resumes << "\n";
  if (!ends->empty()) {
    context.err
        << "stops before its end, for good, as maxRestarts is 0 or its checkpoint cannot be "
           "read; `starling checkpoint restore` goes on from one: "
        << *ends << "\n";
  }
  if (!ended->empty()) {
    context.err << "loses the values of jobs that are over, which are in memory alone: " << *ended
                << "\n";
  }
  context.err << "keeps " << directory.OutputsPath() << " (files of spec.output), "
              << directory.CheckpointsPath()
              << " (a job can be started from one: starling checkpoint list), logs, and what was "
                 "exported\n";
}

class StreamAnnouncer : public local::Announcer {
 public:
  explicit StreamAnnouncer(Context& context) : context_(context) {}
  void Out(const std::string& line) override { context_.out << line << "\n" << std::flush; }
  void Err(const std::string& line) override { context_.err << line << "\n" << std::flush; }
  void Done(int) override {}

 private:
  Context& context_;
};

// Runs the supervisor to its end. Returns its exit code.
int RunSupervisor(const LocalOptions& up, const local::StateDirectory& directory,
                  const local::Binaries& binaries, Context& context, local::Announcer& announcer) {
  const auto fail = [&](const absl::Status& status) {
    announcer.Err(absl::StrCat("starling: ", std::string(status.message())));
    announcer.Done(ExitCodeFor(status));
    return ExitCodeFor(status);
  };
  local::HoldSignals();
  // This cluster's daemons use loopback without TLS, whatever other clusters use.
  context.security = LinkSecurity::Loopback();
  const auto lock = local::InstanceLock::Take(directory.LockPath());
  if (absl::IsAlreadyExists(lock.status()))
    return fail(RunsAlready(directory, lock.status(), up.state_directory));
  if (!lock.ok()) return fail(lock.status());
  std::unique_ptr<Client> client;
  local::ClusterOptions options{.directory = directory,
                                .binaries = binaries,
                                .shards = up.shards,
                                .workers = up.workers,
                                .port = up.port,
                                .fresh = up.fresh,
                                .restart = !up.no_restart};
  options.registered = [&](const std::string& address) {
    if (client == nullptr) client = context.connect(address);
    return Registered(*client);
  };
  options.say = [&](const std::string& line) { announcer.Err(line); };
  options.orphaned = [&] { return !lock->in_place(); };
  local::Cluster cluster(std::move(options));
  const absl::Status started = cluster.Start();
  client.reset();
  if (!started.ok()) return fail(started);
  announcer.Err(absl::StrCat("the local cluster runs: ", up.shards, " shards, ", up.workers,
                             " workers, logs in ", directory.root(), "/logs. Stop it with ",
                             up.detach ? DownCommand(up.state_directory) : "Ctrl-C"));
  announcer.Err(absl::StrCat("see it at ", cluster.page()));
  announcer.Out(absl::StrCat("address=", cluster.address()));
  announcer.Done(kExitOk);
  cluster.Supervise();
  announcer.Err("stopping");
  cluster.Stop();
  return kExitOk;
}

// Starts the cluster, waits until all daemons have registered (says which are missing), prints
// address=... on out, and then, unless `detach`, keeps it running until Ctrl-C.
absl::StatusOr<int> RunLocalUp(const LocalOptions& options, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const local::StateDirectory directory,
                            Directory(options.state_directory, context));
  const auto binaries = local::FindBinaries(options.binary_directory, context.executable_directory);
  STARLING_RETURN_IF_ERROR(Local(binaries.status()));
  STARLING_RETURN_IF_ERROR(Local(directory.Create()));
  if (!options.detach) {
    StreamAnnouncer announcer(context);
    return RunSupervisor(options, directory, *binaries, context, announcer);
  }
  const auto code = local::RunDetached(
      directory.LogPath("supervisor"), context.out, context.err, [&](local::Announcer& announcer) {
        RunSupervisor(options, directory, *binaries, context, announcer);
      });
  STARLING_RETURN_IF_ERROR(Local(code.status()));
  return *code;
}

// Stops it. kExitOk even if none runs.
absl::StatusOr<int> RunLocalDown(const LocalOptions& options, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const local::StateDirectory directory,
                            Directory(options.state_directory, context));
  const auto holder = local::LockHolder(directory.LockPath());
  if (holder.ok() && *holder != 0) {
    context.err << "stopping the local cluster in " << directory.root() << "\n";
    SayWhatEnds(directory, context);
  }
  const auto stopped = local::StopLockHolder(directory.LockPath(), kDownPatience);
  STARLING_RETURN_IF_ERROR(Local(stopped.status()));
  context.err << (*stopped ? "stopped the local cluster in " : "no local cluster runs in ")
              << directory.root() << "\n";
  return kExitOk;
}

}  // namespace

absl::StatusOr<std::string> CoordinatorAddress(const std::string& given, const Context& context) {
  if (!given.empty()) return given;
  STARLING_ASSIGN_OR_RETURN(const std::string directory, DefaultStateDirectory(context));
  const auto address = local::StateDirectory(directory).ReadAddress();
  if (address.ok()) return address;
  return absl::UnavailableError(absl::StrCat(
      "no coordinator is known: --coordinator is not given, STARLING_COORDINATOR is not set, and "
      "no local "
      "cluster runs (",
      directory, ").\nStart one with: starling local up --shards 2 --workers 2 --detach"));
}

absl::StatusOr<std::string> LocalCheckpointRoot(const Context& context) {
  STARLING_ASSIGN_OR_RETURN(const std::string directory, DefaultStateDirectory(context));
  return local::StateDirectory(directory).CheckpointsPath();
}

void AddLocal(CommandLine& line) {
  const auto add_state = [](CLI::App* verb, LocalOptions* options) {
    verb->add_option("--state", options->state_directory,
                     "its folder: address, logs, state (else ~/.local/state/starling/local)")
        ->check(CLI::Validator(
            [](const std::string& path) {
              return path.empty() ? std::string("expected a folder, got an empty name") : "";
            },
            ""));
  };
  CLI::App* group = line.Group("local", "a cluster on this machine");
  const auto [up, options] =
      line.Verb<LocalOptions>("up", "start one, and keep its processes running", RunLocalUp, group);
  AddNumber(up, "--shards", &options->shards, CLI::Range(1, 64), "parameter-server shards");
  AddNumber(up, "--workers", &options->workers, CLI::Range(0, 64), "workers");
  up->add_flag("--detach", options->detach,
               "return once it runs; stop it with: starling local down");
  up->add_flag("--no-restart", options->no_restart, "leave dead processes dead");
  up->add_flag("--fresh", options->fresh,
               "forget the jobs of the last cluster there, once this one runs");
  AddNumber(up, "--port", &options->port, CLI::Range(0, 65535),
            "the coordinator's; 0: as the last time, or any free one");
  up->add_option("--bin-dir", options->binary_directory,
                 "where the daemons' binaries are (else beside this one)");
  add_state(up, options);
  const auto [down, down_options] = line.Verb<LocalOptions>("down", "stop it", RunLocalDown, group);
  add_state(down, down_options);
}

}  // namespace starling::cli
