#include "common/daemon/settings.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace starling {
namespace {

// A program with two text settings and a switch.
struct Program {
  explicit Program(std::vector<std::string> arguments,
                   std::map<std::string, std::string> environment = {}) {
    settings.Add("--listen", "where", &listen);
    settings.Add("--tls-cert", "a file", &tls_cert, /*required=*/true);
    settings.AddSwitch("--insecure", "really", &insecure);
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    status = settings.Resolve([&](const std::string& name) -> std::optional<std::string> {
      const auto it = environment.find(name);
      if (it == environment.end()) return std::nullopt;
      return it->second;
    });
  }

  CLI::App app;
  Settings settings{&app};
  std::string listen = "127.0.0.1:0";
  std::string tls_cert;
  bool insecure = false;
  absl::Status status;
};

TEST(Settings, FlagsThenEnvironmentThenDefaults) {
  const std::map<std::string, std::string> environment = {{"STARLING_LISTEN", "from:environment"},
                                                          {"STARLING_TLS_CERT", "e.crt"}};
  const Program flag({"--listen", "from:flag"}, environment);
  ASSERT_TRUE(flag.status.ok()) << flag.status;
  EXPECT_EQ(flag.listen, "from:flag");
  EXPECT_EQ(flag.tls_cert, "e.crt");
  EXPECT_EQ(Program({}, environment).listen, "from:environment");
  const Program neither({"--tls-cert", "f.crt"});
  EXPECT_EQ(neither.listen, "127.0.0.1:0");
  EXPECT_FALSE(neither.insecure);
}

TEST(Settings, EmptyVariablesSayNothing) {
  EXPECT_EQ(
      Program({"--tls-cert", "f"}, {{"STARLING_LISTEN", ""}, {"STARLING_INSECURE", ""}}).listen,
      "127.0.0.1:0");
}

TEST(Settings, SwitchesInTheEnvironment) {
  for (const char* on : {"1", "true", "TRUE"}) {
    EXPECT_TRUE(Program({"--tls-cert", "f"}, {{"STARLING_INSECURE", on}}).insecure) << on;
  }
  for (const char* off : {"0", "false"}) {
    EXPECT_FALSE(Program({"--tls-cert", "f"}, {{"STARLING_INSECURE", off}}).insecure) << off;
  }
  EXPECT_TRUE(
      Program({"--tls-cert", "f", "--insecure"}, {{"STARLING_INSECURE", "false"}}).insecure);
  const absl::Status status =
      Program({"--tls-cert", "f"}, {{"STARLING_INSECURE", "perhaps"}}).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("perhaps"), absl::string_view::npos) << status;
}

TEST(Settings, WhatIsRequiredIsNamedBothWays) {
  const Program program({});
  EXPECT_EQ(program.settings.CheckRequired().message(),
            "--tls-cert is required (or the variable STARLING_TLS_CERT)");
  EXPECT_TRUE(program.status.ok()) << "what is there can be printed";
  EXPECT_NE(program.settings.Text().find("required, and missing"), std::string::npos);
  EXPECT_TRUE(Program({"--tls-cert", "f"}).settings.CheckRequired().ok());
}

TEST(Settings, TextSaysWhereEachCameFrom) {
  const Program program({"--tls-cert", "f.crt"}, {{"STARLING_INSECURE", "true"}});
  const std::string text = program.settings.Text();
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    lines.push_back(text.substr(at, text.find('\n', at) - at));
  }
  ASSERT_EQ(lines.size(), 3u) << text;
  for (const auto& [line, parts] : std::vector<std::pair<int, std::vector<std::string>>>{
           {0, {"listen ", " 127.0.0.1:0 ", " default"}},
           {1, {"tls-cert ", " f.crt ", " --tls-cert"}},
           {2, {"insecure ", " true ", " STARLING_INSECURE"}}}) {
    for (const std::string& part : parts) {
      EXPECT_NE(lines[line].find(part), std::string::npos) << lines[line] << "|" << part;
    }
  }
}

TEST(Settings, UnknownVariables) {
  const Program program({"--tls-cert", "f"});
  EXPECT_EQ(program.settings.Unknown({"STARLING_TLS_CRT", "STARLING_DATA", "STARLING_LISTEN",
                                      "HOME", "STARLING_COORDINATOR", "STARLINGS", "STARLING_A"}),
            (std::vector<std::string>{"STARLING_A", "STARLING_TLS_CRT"}));
}

}  // namespace
}  // namespace starling
