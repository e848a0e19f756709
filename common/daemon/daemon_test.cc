#include "common/daemon/daemon.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/transport/testing/certificates.h"

namespace starling {
namespace {

struct Parsed {
  std::optional<int> exit;
  DaemonFlags flags;
  std::string state;
  std::string err;
};

Parsed Parse(PeerRole role, std::vector<const char*> arguments,
             std::map<std::string, std::string> environment = {}) {
  Parsed parsed;
  arguments.insert(arguments.begin(), "program");
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  parsed.exit = ParseDaemonFlags(static_cast<int>(arguments.size()), arguments.data(), role,
                                 {{"--state", "folder", &parsed.state}}, &parsed.flags,
                                 [&](const std::string& name) -> std::optional<std::string> {
                                   const auto it = environment.find(name);
                                   if (it == environment.end()) return std::nullopt;
                                   return it->second;
                                 });
  parsed.err = testing::internal::GetCapturedStderr() + testing::internal::GetCapturedStdout();
  return parsed;
}

TEST(DaemonFlags, Parses) {
  const Parsed parsed =
      Parse(PeerRole::kShard,
            {"--name", "ps-0", "--coordinator", "127.0.0.1:7070", "--listen", "127.0.0.1:0",
             "--port-file", "/tmp/p", "--state", "/s", "--inject-clock-offset", "-200ms",
             "--admin-address", "0.0.0.0:7080", "--admin-port-file", "/tmp/a"});
  EXPECT_FALSE(parsed.exit.has_value()) << parsed.err;
  EXPECT_EQ(parsed.flags.name, "ps-0");
  EXPECT_EQ(parsed.flags.coordinator, "127.0.0.1:7070");
  EXPECT_EQ(parsed.flags.port_file, "/tmp/p");
  EXPECT_EQ(parsed.state, "/s");
  EXPECT_EQ(parsed.flags.clock_offset, absl::Milliseconds(-200));
  EXPECT_EQ(parsed.flags.admin_address, "0.0.0.0:7080");
  EXPECT_EQ(parsed.flags.admin_port_file, "/tmp/a");
}

TEST(DaemonFlags, TheAdminPortIsOnLoopbackUnlessToldOtherwise) {
  EXPECT_EQ(Parse(PeerRole::kShard, {"--name", "ps-0", "--coordinator", "127.0.0.1:1"})
                .flags.admin_address,
            "127.0.0.1:0");
}

TEST(DaemonFlags, Mistakes) {
  struct Case {
    std::vector<const char*> arguments;
    const char* says;
  };
  for (const Case& c : std::vector<Case>{
           {{"--coordinator", "127.0.0.1:1"}, "--name"},
           {{"--name", "a"}, "--coordinator"},
           {{"--name", "a b", "--coordinator", "127.0.0.1:1"}, "--name"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--listen", "0.0.0.0:0"}, "loopback"},
           {{"--name", "a", "--coordinator", "10.0.0.1:1"}, "loopback"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--listen", "0.0.0.0:0", "--insecure"},
            "--advertise-address"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--advertise-address", "a:b"},
            "host:port"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--tls-cert", "c.crt"}, "all three"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--tls-cert", "/nowhere/c", "--tls-key",
             "/nowhere/k", "--tls-ca", "/nowhere/a"},
            "--tls-cert /nowhere/c"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--cluster", "a b"}, "--cluster"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--log-level", "loud"}, "loud"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--inject-clock-offset", "far"},
            "-200ms"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--inject-clock-offset", "2h"},
            "an hour"},
           {{"--name", "a", "--coordinator", "127.0.0.1:1", "--frobnicate"}, "frobnicate"}}) {
    const Parsed parsed = Parse(PeerRole::kWorker, c.arguments);
    EXPECT_EQ(parsed.exit, kExitUsage) << c.says;
    EXPECT_NE(parsed.err.find(c.says), std::string::npos) << parsed.err;
  }
}

TEST(DaemonFlags, OneOfTlsAndInsecure) {
  const TestAuthority authority;
  const TlsFiles files =
      WriteTlsFiles(testing::TempDir() + "/tls", authority.Issue({"starling", PeerRole::kWorker}),
                    authority.certificate());
  std::vector<const char*> arguments = {"--name",        "a",
                                        "--coordinator", "10.0.0.1:1",
                                        "--tls-cert",    files.certificate.c_str(),
                                        "--tls-key",     files.key.c_str(),
                                        "--tls-ca",      files.authorities.c_str()};
  const Parsed parsed = Parse(PeerRole::kWorker, arguments);
  EXPECT_FALSE(parsed.exit.has_value()) << parsed.err;
  EXPECT_TRUE(parsed.flags.security->tls());
  EXPECT_EQ(Parse(PeerRole::kShard, arguments).exit, kExitUsage);  // a worker's certificate
  arguments.push_back("--insecure");
  const Parsed both = Parse(PeerRole::kWorker, arguments);
  EXPECT_EQ(both.exit, kExitUsage);
  EXPECT_NE(both.err.find("contradicts"), std::string::npos) << both.err;
}

TEST(DaemonFlags, InsecureIsWarnedOf) {
  const Parsed parsed =
      Parse(PeerRole::kWorker, {"--name", "a", "--coordinator", "10.0.0.1:1", "--insecure"});
  EXPECT_FALSE(parsed.exit.has_value()) << parsed.err;
  EXPECT_TRUE(parsed.flags.security->insecure());
  ASSERT_FALSE(parsed.flags.warnings.empty());
  EXPECT_EQ(parsed.flags.warnings.back(), kInsecureWarning);
  const Parsed plain = Parse(PeerRole::kWorker, {"--name", "a", "--coordinator", "127.0.0.1:1"});
  EXPECT_FALSE(plain.flags.security->insecure());
}

TEST(DaemonFlags, FromTheEnvironment) {
  const Parsed parsed = Parse(PeerRole::kWorker, {"--name", "flag"},
                              {{"STARLING_NAME", "variable"},
                               {"STARLING_COORDINATOR", "127.0.0.1:5"},
                               {"STARLING_STATE", "/s"}});
  EXPECT_FALSE(parsed.exit.has_value()) << parsed.err;
  EXPECT_EQ(parsed.flags.name, "flag");
  EXPECT_EQ(parsed.flags.coordinator, "127.0.0.1:5");
  EXPECT_EQ(parsed.state, "/s");
}

TEST(DaemonFlags, PrintConfig) {
  const Parsed parsed = Parse(PeerRole::kCoordinator, {"--print-config", "--log-level", "warn"},
                              {{"STARLING_CLUSTER", "prod"}});
  EXPECT_EQ(parsed.exit, kExitOk);
  for (const char* part :
       {"coordinator", "default", "warn", "--log-level", "prod", "STARLING_CLUSTER"}) {
    EXPECT_NE(parsed.err.find(part), std::string::npos) << part << "\n" << parsed.err;
  }
}

TEST(DaemonFlags, PrintConfigNeedsNoOtherFlag) {
  const Parsed parsed = Parse(PeerRole::kWorker, {"--print-config", "--log-level", "warn"});
  EXPECT_EQ(parsed.exit, kExitOk) << parsed.err;
  EXPECT_NE(parsed.err.find("required, and missing"), std::string::npos) << parsed.err;
  EXPECT_EQ(
      Parse(PeerRole::kWorker, {"--print-config", "--name", "a b", "--coordinator", "127.0.0.1:1"})
          .exit,
      kExitUsage);
}

TEST(DaemonFlags, HelpHasNothingThatIsForTestsAlone) {
  const Parsed help = Parse(PeerRole::kWorker, {"--help"});
  EXPECT_NE(help.err.find("--log-format"), std::string::npos) << help.err;
  EXPECT_EQ(help.err.find("inject"), std::string::npos) << help.err;
  EXPECT_FALSE(Parse(PeerRole::kWorker,
                     {"--name", "a", "--coordinator", "127.0.0.1:1", "--inject-clock-offset", "1s"})
                   .exit.has_value());
}

TEST(DaemonFlags, AMistakeIsSaidInWords) {
  const Parsed typo = Parse(PeerRole::kWorker, {"--name", "a", "--coordinater", "127.0.0.1:1"});
  EXPECT_NE(
      typo.err.find("starling-worker: unknown flag --coordinater; did you mean \"--coordinator\"?\n"
                    "see: starling-worker --help\n"),
      std::string::npos)
      << typo.err;
  EXPECT_NE(Parse(PeerRole::kWorker, {"--name"}).err.find("--name: expected a value, got none"),
            std::string::npos);
}

TEST(AdvertisedAddress, TakesThePortThatIsListenedOn) {
  struct Case {
    const char* advertise;
    const char* listening;
    const char* reached;
  };
  for (const Case& c : std::vector<Case>{{"", "127.0.0.1:7071", "127.0.0.1:7071"},
                                         {"10.1.2.3", "0.0.0.0:7071", "10.1.2.3:7071"},
                                         {"10.1.2.3:0", "0.0.0.0:7071", "10.1.2.3:7071"},
                                         {"ps-0.ps:80", "0.0.0.0:7071", "ps-0.ps:80"},
                                         {"[fd00::1]", "[::]:7071", "[fd00::1]:7071"},
                                         {"[fd00::1]:80", "[::]:7071", "[fd00::1]:80"}}) {
    EXPECT_EQ(AdvertisedAddress(c.advertise, c.listening).value(), c.reached);
  }
  for (const char* bad : {":80", "a:b", "a:70000", "fd00::1", "0.0.0.0", "[::]:80"}) {
    EXPECT_EQ(AdvertisedAddress(bad, "0.0.0.0:1").status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
  EXPECT_FALSE(AdvertisedAddress("", "0.0.0.0:7071").ok());
}

TEST(FileLimit, IsAsHighAsItMayBe) {
  RaiseFileLimit();
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST(DaemonFlags, HelpAndVersionExitWithZero) {
  EXPECT_EQ(Parse(PeerRole::kCoordinator, {"--help"}).exit, kExitOk);
  const Parsed version = Parse(PeerRole::kCoordinator, {"--version"});
  EXPECT_EQ(version.exit, kExitOk);
  EXPECT_NE(version.err.find("starling-coordinator"), std::string::npos) << version.err;
}

TEST(PortFile, HoldsThePort) {
  const std::string path = testing::TempDir() + "/port";
  ASSERT_TRUE(WritePortFile(path, 40123).ok());
  std::ifstream in(path);
  int port = 0;
  in >> port;
  EXPECT_EQ(port, 40123);
  const absl::Status error = WritePortFile("/nonexistent/folder/port", 1);
  EXPECT_EQ(error.message().find("port file: "), 0u) << error;
}

TEST(Logging, OneFormatOnStderr) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(SetUpLogging(PeerRole::kShard, "ps-0", "info").ok());
  spdlog::info("hello {}", 7);
  spdlog::debug("not this");
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("Z info  shard ps-0: hello 7\n"), std::string::npos) << line;
  EXPECT_EQ(line.find("not this"), std::string::npos);
  EXPECT_FALSE(SetUpLogging(PeerRole::kShard, "ps-0", "loud").ok());
}

TEST(Logging, JsonIsAnObjectALine) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(SetUpLogging(PeerRole::kShard, "ps-0", "info", "json").ok());
  spdlog::warn("a \"quote\",\na line and \xff");
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_EQ(line.find('{'), 0u) << line;
  EXPECT_NE(line.find("\"level\":\"warn\",\"process\":\"shard ps-0\","
                      "\"message\":\"a \\\"quote\\\",\\na line and \xef\xbf\xbd\"}\n"),
            std::string::npos)
      << line;
  EXPECT_FALSE(SetUpLogging(PeerRole::kShard, "ps-0", "info", "xml").ok());
}

TEST(DaemonExit, SignalsAndRequestsInTheOrderOfWaiting) {
  DaemonExit exit;
  EXPECT_FALSE(exit.WaitUntil(absl::Now() + absl::Milliseconds(5)).has_value());
  kill(getpid(), SIGTERM);
  EXPECT_EQ(exit.Wait().signal, SIGTERM);
  kill(getpid(), SIGINT);
  EXPECT_EQ(exit.Wait().signal, SIGINT);
  std::thread other([&] { exit.Request(kExitError); });
  const DaemonExit::Reason reason = exit.Wait();
  other.join();
  EXPECT_EQ(reason.signal, 0);
  EXPECT_EQ(reason.exit_status, kExitError);
}

TEST(ExitDeadlineDeathTest, EndsAProcessThatHangsAndSaysWhatItWaitsFor) {
  EXPECT_EXIT(
      {
        if (!SetUpLogging(PeerRole::kCoordinator, "coordinator", "info").ok()) _exit(kExitUsage);
        ExitDeadline deadline(absl::Milliseconds(500), kExitError, "the state to be stored");
        deadline.WaitsFor("files to be written");
        absl::SleepFor(absl::Seconds(60));
      },
      testing::ExitedWithCode(kExitError),
      "ends at once: after 500ms still waits for files to be written");
}

TEST(DrainTimeout, IsMoreThanNothingAndAtMostADay) {
  EXPECT_EQ(ParseDrainTimeout("20s").value(), absl::Seconds(20));
  EXPECT_EQ(ParseDrainTimeout("1h30m").value(), absl::Minutes(90));
  for (const char* wrong : {"", "20", "0s", "-5s", "25h", "inf", "soon"}) {
    const absl::StatusOr<absl::Duration> timeout = ParseDrainTimeout(wrong);
    ASSERT_FALSE(timeout.ok()) << wrong;
    EXPECT_EQ(timeout.status().message(),
              absl::StrCat("--drain-timeout: expected more than 0s and at most 24h, as 20s or 5m, "
                           "got \"",
                           wrong, "\""));
  }
}

TEST(NoCoordinator, SaysAllThereIsToKnow) {
  EXPECT_EQ(
      NoCoordinator("127.0.0.1:7070", absl::Milliseconds(12345), absl::UnavailableError("refused")),
      "no coordinator at 127.0.0.1:7070 for 12.3s; last error: UNAVAILABLE: refused; start one "
      "with: "
      "starling-coordinator --listen 127.0.0.1:7070 --state DIR");
}

}  // namespace
}  // namespace starling
