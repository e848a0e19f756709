#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/owned_fd.h"
#include "tools/local/cluster.h"
#include "tools/local/detach.h"
#include "tools/local/instance_lock.h"
#include "tools/local/process.h"
#include "tools/local/restart_backoff.h"
#include "tools/local/state_directory.h"

namespace starling::local {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string FakeDaemon() { return fs::absolute("tools/local/fake_daemon").string(); }

class LocalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::string(std::getenv("TEST_TMPDIR")) + "/local-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = std::make_unique<StateDirectory>(pattern);
    ASSERT_TRUE(directory_->Create().ok());
    HoldSignals();
  }
  void TearDown() override {
    unsetenv("FAKE_DAEMON_FAILS");
    unsetenv("FAKE_DAEMON_STUBBORN");
    unsetenv("FAKE_DAEMON_FAILS_TWICE");
  }

  // Every daemon with a running process counts as registered, except `never`.
  ClusterOptions Options(const std::string& never = "") {
    ClusterOptions options{.directory = *directory_,
                           .binaries = {FakeDaemon(), FakeDaemon(), FakeDaemon()}};
    options.registered = [this,
                          never](const std::string&) -> absl::StatusOr<std::set<std::string>> {
      std::set<std::string> names;
      for (const auto& entry : fs::directory_iterator(directory_->root() + "/run")) {
        if (entry.path().extension() == ".pid" && entry.path().stem() != never)
          names.insert(entry.path().stem());
      }
      return names;
    };
    options.say = [this](const std::string& line) { said_ += line + "\n"; };
    return options;
  }

  pid_t Pid(const std::string& name) {
    const auto text = ReadSmallFile(directory_->PidPath(name));
    int pid = -1;
    if (!text.ok() || !absl::SimpleAtoi(*text, &pid)) return -1;
    return pid;
  }

  std::unique_ptr<StateDirectory> directory_;
  std::string said_;
};

// One that nobody listens at.
std::string FreePort() {
  const OwnedFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(socket.get(), any, size), 0);
  EXPECT_EQ(getsockname(socket.get(), any, &size), 0);
  return absl::StrCat(ntohs(address.sin_port));
}

bool Runs(pid_t pid) { return pid > 0 && kill(pid, 0) == 0; }

// Signals one process only: -1 would mean all processes.
bool Kill(pid_t pid, int signal) { return pid > 0 && kill(pid, signal) == 0; }

// A folder that is not the cluster's keeps its mode and what is in it.
TEST_F(LocalTest, TakesNoFolderOfSomebodyElse) {
  const std::string root = directory_->root() + "/theirs";
  fs::create_directory(root);
  const auto mode = [&] { return static_cast<unsigned>(fs::status(root).permissions()); };
  ASSERT_EQ(chmod(root.c_str(), 01777), 0);
  const absl::Status shared = StateDirectory(root).Create();
  EXPECT_EQ(shared.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shared.message()), HasSubstr("others may write in"));
  EXPECT_EQ(mode(), 01777u);
  EXPECT_TRUE(fs::is_empty(root));

  ASSERT_EQ(chmod(root.c_str(), 0755), 0);
  ASSERT_TRUE(WriteSmallFile(root + "/thesis.txt", "x").ok());
  EXPECT_THAT(std::string(StateDirectory(root).Create().message()), HasSubstr("has thesis.txt"));

  fs::remove(root + "/thesis.txt");
  EXPECT_TRUE(StateDirectory(root).Create().ok()) << "an empty folder of one's own";
  EXPECT_EQ(mode(), 0755u);
  EXPECT_TRUE(StateDirectory(root).Create().ok()) << "its own, without a lock yet";
  ASSERT_TRUE(WriteSmallFile(root + "/lock", "").ok());
  ASSERT_TRUE(WriteSmallFile(root + "/notes.txt", "x").ok());
  EXPECT_TRUE(StateDirectory(root).Create().ok()) << "what people keep beside its files";
}

TEST_F(LocalTest, StartsAllAndStopsAll) {
  Cluster cluster(Options());
  const absl::Status status = cluster.Start();
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<std::string> names = {"coordinator", "shard-0", "shard-1", "worker-0",
                                          "worker-1"};
  std::vector<pid_t> pids;
  for (const std::string& name : names) {
    pids.push_back(Pid(name));
    EXPECT_TRUE(Runs(pids.back())) << name;
  }
  EXPECT_EQ(directory_->ReadAddress().value_or(""), cluster.address());
  EXPECT_EQ(cluster.address(), absl::StrCat("127.0.0.1:", pids[0]));
  EXPECT_EQ(cluster.page(), absl::StrCat("http://127.0.0.1:", pids[0], "/"));
  cluster.Stop();
  for (pid_t pid : pids) EXPECT_FALSE(Runs(pid));
  EXPECT_FALSE(directory_->ReadAddress().ok());
}

TEST_F(LocalTest, AProcessThatFailsAtItsStartStopsAllAndIsQuoted) {
  setenv("FAKE_DAEMON_FAILS", "worker-1", 1);
  Cluster cluster(Options("worker-1"));
  const absl::Status status = cluster.Start();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker-1 exited with status 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker-1 cannot: the port is in use"));
  EXPECT_EQ(Pid("coordinator"), -1);
  EXPECT_EQ(Pid("worker-0"), -1);
}

TEST_F(LocalTest, TheCoordinatorIsStartedAgainForAMoment) {
  setenv("FAKE_DAEMON_FAILS_TWICE", (directory_->root() + "/fails").c_str(), 1);
  Cluster cluster(Options());
  const absl::Status status = cluster.Start();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(LocalTest, EachTryOfTheCoordinatorTakesThePortsOfTheClusterBefore) {
  const std::string port = FreePort(), admin_port = FreePort();
  ASSERT_TRUE(WriteSmallFile(directory_->PortPath("coordinator"), port).ok());
  ASSERT_TRUE(WriteSmallFile(directory_->AdminPortPath("coordinator"), admin_port).ok());
  setenv("FAKE_DAEMON_FAILS_TWICE", (directory_->root() + "/fails").c_str(), 1);
  Cluster cluster(Options());
  const absl::Status status = cluster.Start();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(cluster.address(), absl::StrCat("127.0.0.1:", port));
  EXPECT_EQ(cluster.page(), absl::StrCat("http://127.0.0.1:", admin_port, "/"));
}

TEST_F(LocalTest, ACoordinatorThatFailsSaysWhatIsForgotten) {
  setenv("FAKE_DAEMON_FAILS", "coordinator", 1);
  Cluster cluster(Options());
  const absl::Status status = cluster.Start();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("coordinator cannot: the port is in use"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("and forgets its jobs"));
}

TEST_F(LocalTest, SaysForWhomItWaitedAndHowLong) {
  ClusterOptions options = Options("shard-1");
  options.start_deadline = absl::Milliseconds(300);
  Cluster cluster(std::move(options));
  const absl::Status status = cluster.Start();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("waits for shard-1 to register with 127.0.0.1:"));
}

TEST_F(LocalTest, AStopSignalWhileStartingStopsAll) {
  Cluster cluster(Options("shard-1"));
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(absl::IsCancelled(cluster.Start()));
  EXPECT_EQ(Pid("coordinator"), -1);
}

// Runs Supervise in a child, since lock and signals belong to a process.
class Supervised {
 public:
  explicit Supervised(ClusterOptions options) {
    pid_ = fork();
    if (pid_ != 0) return;
    Cluster cluster(std::move(options));
    if (!cluster.Start().ok()) _exit(1);
    cluster.Supervise();
    cluster.Stop();
    _exit(0);
  }
  ~Supervised() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  int Join() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (absl::Now() < deadline) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

TEST_F(LocalTest, StartsDeadProcessesAgainAndTheCoordinatorAtItsAddress) {
  Supervised supervised(Options());
  ASSERT_TRUE(Eventually([&] { return directory_->ReadAddress().ok(); }));
  const std::string address = *directory_->ReadAddress();
  const std::string page_port =
      ReadSmallFile(directory_->AdminPortPath("coordinator")).value_or("");
  EXPECT_NE(page_port, "");
  for (const char* name : {"worker-0", "coordinator", "shard-1"}) {
    const pid_t before = Pid(name);
    ASSERT_TRUE(Kill(before, SIGKILL));
    EXPECT_TRUE(Eventually([&] { return Pid(name) != before && Runs(Pid(name)); })) << name;
  }
  EXPECT_TRUE(Eventually(
      [&] { return ReadSmallFile(directory_->PortPath("coordinator")).value_or("") == address; }));
  EXPECT_EQ(ReadSmallFile(directory_->AdminPortPath("coordinator")).value_or(""), page_port);
  const pid_t worker = Pid("worker-0");
  ASSERT_TRUE(Kill(supervised.pid(), SIGTERM));
  EXPECT_EQ(supervised.Join(), 0);
  EXPECT_FALSE(Runs(worker));
}

TEST_F(LocalTest, AnotherClusterGoesOnWithTheStateUnlessItIsFresh) {
  const std::string state = directory_->CoordinatorStatePath() + "/coordinator.db";
  fs::create_directories(directory_->CoordinatorStatePath());
  ASSERT_TRUE(WriteSmallFile(state, "jobs").ok());
  ASSERT_TRUE(WriteSmallFile(directory_->PidPath("shard-9"), "123").ok());
  {
    Cluster cluster(Options());
    ASSERT_TRUE(cluster.Start().ok());
    EXPECT_FALSE(fs::exists(directory_->PidPath("shard-9"))) << "of a cluster that is over";
  }
  EXPECT_EQ(ReadSmallFile(state).value_or(""), "jobs");
  ClusterOptions fresh = Options();
  fresh.fresh = true;
  Cluster cluster(std::move(fresh));
  ASSERT_TRUE(cluster.Start().ok());
  EXPECT_FALSE(fs::exists(state));
}

TEST_F(LocalTest, AStartThatFailsForgetsNeitherJobsNorPorts) {
  const std::string state = directory_->CoordinatorStatePath() + "/coordinator.db";
  fs::create_directories(directory_->CoordinatorStatePath());
  ASSERT_TRUE(WriteSmallFile(state, "jobs").ok());
  std::map<std::string, std::string> ports;  // by path
  for (const char* name : {"coordinator", "shard-1"}) {
    ports[directory_->PortPath(name)] = FreePort();
    ports[directory_->AdminPortPath(name)] = FreePort();
  }
  for (const auto& [path, port] : ports) ASSERT_TRUE(WriteSmallFile(path, port).ok());
  for (const bool fresh : {true, false}) {
    for (const char* fails : {"coordinator", "shard-1"}) {
      SCOPED_TRACE(absl::StrCat(fails, fresh ? ", fresh" : ""));
      setenv("FAKE_DAEMON_FAILS", fails, 1);
      ClusterOptions options = Options(fails);
      options.fresh = fresh;
      Cluster cluster(std::move(options));
      ASSERT_FALSE(cluster.Start().ok());
      EXPECT_EQ(ReadSmallFile(state).value_or(""), "jobs");
      for (const auto& [path, port] : ports) EXPECT_EQ(ReadSmallFile(path).value_or(""), port);
    }
  }
}

// Its supervisor was killed before all had registered.
TEST_F(LocalTest, AFreshStartThatDidNotComeToItsEndHasForgottenNothing) {
  const std::string state = directory_->CoordinatorStatePath() + "/coordinator.db";
  fs::create_directories(directory_->CoordinatorStatePath());
  ASSERT_TRUE(WriteSmallFile(state, "jobs").ok());
  ASSERT_TRUE(directory_->Clear(/*fresh=*/true).ok());
  fs::create_directories(directory_->CoordinatorStatePath());
  ASSERT_TRUE(WriteSmallFile(state, "new").ok());
  ASSERT_TRUE(directory_->Clear(/*fresh=*/false).ok());
  EXPECT_EQ(ReadSmallFile(state).value_or(""), "jobs");
  ASSERT_TRUE(directory_->Clear(/*fresh=*/true).ok());
  ASSERT_TRUE(directory_->Forget().ok());
  EXPECT_FALSE(fs::exists(state));
  ASSERT_TRUE(directory_->PutBack().ok());
  EXPECT_FALSE(fs::exists(state));
}

TEST_F(LocalTest, WithoutRestartTheDeadStayDead) {
  ClusterOptions options = Options();
  options.restart = false;
  options.say = [this](const std::string& line) {
    ASSERT_TRUE(WriteSmallFile(directory_->root() + "/said", line).ok());
  };
  Supervised supervised(std::move(options));
  ASSERT_TRUE(Eventually([&] { return directory_->ReadAddress().ok(); }));
  const pid_t before = Pid("worker-0");
  ASSERT_TRUE(Kill(before, SIGKILL));
  ASSERT_TRUE(Eventually([&] { return ReadSmallFile(directory_->root() + "/said").ok(); }));
  const std::string said = *ReadSmallFile(directory_->root() + "/said");
  EXPECT_THAT(said, HasSubstr("worker-0 (process"));
  EXPECT_THAT(said, HasSubstr("was killed by signal 9"));
  EXPECT_FALSE(absl::StrContains(said, "again"));
  EXPECT_EQ(Pid("worker-0"), -1);
}

TEST_F(LocalTest, AClusterThatNobodyCanFindEnds) {
  ClusterOptions options = Options();
  const std::string gone = directory_->root() + "/gone";
  options.orphaned = [gone] { return ReadSmallFile(gone).ok(); };
  Supervised supervised(std::move(options));
  ASSERT_TRUE(Eventually([&] { return directory_->ReadAddress().ok(); }));
  const pid_t worker = Pid("worker-0");
  ASSERT_TRUE(Runs(worker));
  ASSERT_TRUE(WriteSmallFile(gone, "").ok());
  EXPECT_EQ(supervised.Join(), 0);
  EXPECT_FALSE(Runs(worker));
}

TEST_F(LocalTest, NoProcessOutlivesASupervisorThatIsKilled) {
  Supervised supervised(Options());
  ASSERT_TRUE(Eventually([&] { return directory_->ReadAddress().ok(); }));
  const pid_t shard = Pid("shard-0");
  ASSERT_TRUE(Runs(shard));
  ASSERT_TRUE(Kill(supervised.pid(), SIGKILL));
  supervised.Join();
  // Its new parent may take a moment to reap it: a zombie has no command line.
  EXPECT_TRUE(Eventually([&] {
    return !Runs(shard) ||
           ReadSmallFile(absl::StrCat("/proc/", shard, "/cmdline")).value_or("").empty();
  }));
}

// Each still finds the daemons that it needs.
TEST_F(LocalTest, WorkersStopBeforeShardsAndTheCoordinatorLast) {
  const std::string log = directory_->root() + "/ends";
  setenv("FAKE_DAEMON_LOG", log.c_str(), 1);
  Cluster cluster(Options());
  ASSERT_TRUE(cluster.Start().ok());
  // They hold signals once these files exist.
  for (const char* name : {"shard-0", "shard-1", "worker-0", "worker-1"}) {
    ASSERT_TRUE(Eventually([&] { return fs::exists(directory_->PortPath(name)); })) << name;
  }
  cluster.Stop();
  unsetenv("FAKE_DAEMON_LOG");
  std::string roles;
  for (const absl::string_view name :
       absl::StrSplit(ReadSmallFile(log).value_or(""), '\n', absl::SkipEmpty())) {
    roles += name[0];
  }
  EXPECT_EQ(roles, "wwssc");
}

TEST_F(LocalTest, AStubbornProcessIsKilledWithinFiveSeconds) {
  setenv("FAKE_DAEMON_STUBBORN", "worker-1", 1);
  Cluster cluster(Options());
  ASSERT_TRUE(cluster.Start().ok());
  // It holds signals once this file exists.
  ASSERT_TRUE(Eventually([&] { return fs::exists(directory_->PortPath("worker-1")); }));
  const pid_t stubborn = Pid("worker-1");
  // A second stop signal ends the patience at once.
  kill(getpid(), SIGINT);
  cluster.Stop();
  EXPECT_FALSE(Runs(stubborn));
  EXPECT_THAT(said_, HasSubstr("worker-1 did not end in time and is killed"));
}

TEST_F(LocalTest, ALockHasOneHolderAndDiesWithIt) {
  const std::string path = directory_->LockPath();
  EXPECT_EQ(LockHolder(path).value_or(-1), 0);
  EXPECT_EQ(StopLockHolder(path, absl::Seconds(1)).value_or(true), false);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = InstanceLock::Take(path);
    [[maybe_unused]] const auto written = write(ready[1], "x", 1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(LockHolder(path).value_or(-1), child);
  const auto second = InstanceLock::Take(path);
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat(child)));
  EXPECT_EQ(StopLockHolder(path, absl::Seconds(5)).value_or(false), true);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  const auto third = InstanceLock::Take(path);
  ASSERT_TRUE(third.ok());
  EXPECT_TRUE(third->in_place());
  unlink(path.c_str());
  EXPECT_FALSE(third->in_place());
}

TEST_F(LocalTest, ADetachedProcessAnnouncesAndGoesOn) {
  std::ostringstream out, err;
  const std::string proof = directory_->root() + "/proof";
  const auto code =
      RunDetached(directory_->LogPath("supervisor"), out, err, [&](Announcer& announcer) {
        announcer.Err("starting\nsecond line");
        announcer.Out("address=1");
        announcer.Done(7);
        announcer.Err("nobody reads this");
        if (!WriteSmallFile(proof, absl::StrCat(getppid() == getpid() ? "" : "ran on")).ok())
          abort();
      });
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 7);
  EXPECT_EQ(out.str(), "address=1\n");
  EXPECT_EQ(err.str(), "starting\nsecond line\n");
  EXPECT_TRUE(Eventually([&] { return ReadSmallFile(proof).value_or("") == "ran on"; }));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(LastLines(directory_->LogPath("supervisor"), 5), "nobody reads this");
  }));
}

TEST_F(LocalTest, ADetachedProcessThatDiesIsAnError) {
  std::ostringstream out, err;
  const auto code =
      RunDetached(directory_->LogPath("supervisor"), out, err, [](Announcer&) { _exit(1); });
  EXPECT_TRUE(absl::IsUnavailable(code.status()));
}

TEST_F(LocalTest, AMissingProgramIsNamedWithTheCommandThatBuildsIt) {
  const auto binaries = FindBinaries("/nowhere", "/elsewhere");
  EXPECT_TRUE(absl::IsNotFound(binaries.status()));
  EXPECT_THAT(std::string(binaries.status().message()),
              HasSubstr("bazel build //server/coordinator:starling-coordinator"));
  const auto spawned = Spawn({"/nowhere/daemon"}, directory_->LogPath("x"));
  EXPECT_TRUE(absl::IsNotFound(spawned.status())) << spawned.status();
}

TEST_F(LocalTest, AProcessReadsTheInputThatItIsGiven) {
  const std::string input = directory_->root() + "/input";
  ASSERT_TRUE(WriteSmallFile(input, "from a file").ok());
  const auto spawned = Spawn({"/bin/cat"}, directory_->LogPath("cat"), input);
  ASSERT_TRUE(spawned.ok()) << spawned.status();
  int status = -1;
  ASSERT_EQ(waitpid(*spawned, &status, 0), *spawned);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(LastLines(directory_->LogPath("cat"), 1), "  from a file\n");
  EXPECT_TRUE(
      absl::IsNotFound(Spawn({"/bin/cat"}, directory_->LogPath("cat"), "/nowhere/input").status()));
}

TEST(RestartBackoff, DoublesUpToItsLimitAndForgetsAfterAGoodLife) {
  RestartBackoff backoff;
  EXPECT_EQ(backoff.OnDeath(absl::Seconds(1)), absl::Milliseconds(250));
  EXPECT_EQ(backoff.OnDeath(absl::Seconds(1)), absl::Milliseconds(500));
  for (int i = 0; i < 10; ++i) backoff.OnDeath(absl::Seconds(1));
  EXPECT_EQ(backoff.OnDeath(absl::Seconds(1)), absl::Seconds(15));
  EXPECT_EQ(backoff.OnDeath(absl::Seconds(31)), absl::Milliseconds(250));
}

}  // namespace
}  // namespace starling::local
