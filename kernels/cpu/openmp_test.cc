#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

// A shell command's output, including libgomp's report of its settings (OMP_DISPLAY_ENV).
std::string Output(const std::string& environment, int* status) {
  const std::string command = "env " + environment +
                              " OMP_DISPLAY_ENV=true sh -c 'echo shell $$; exec "
                              "kernels/cpu/openmp_main one \"two words\"' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char part[256];
  while (pipe != nullptr && std::fgets(part, sizeof(part), pipe) != nullptr) output += part;
  *status = pipe == nullptr ? -1 : pclose(pipe);
  return output;
}

TEST(OpenMpTest, IdleThreadsSleep) {
  int status = 0;
  const std::string output = Output("-u OMP_WAIT_POLICY", &status);
  ASSERT_EQ(status, 0) << output;
  const size_t last = output.rfind("OMP_WAIT_POLICY");
  ASSERT_NE(last, std::string::npos) << output;
  EXPECT_EQ(output.substr(last, 27), "OMP_WAIT_POLICY = 'PASSIVE'");
  const size_t begin = output.find("shell ") + 6;
  const std::string pid = output.substr(begin, output.find('\n', begin) - begin);
  EXPECT_TRUE(absl::StrContains(output, "openmp_main, pid " + pid + ", ")) << output;
  EXPECT_TRUE(absl::StrContains(output, "arguments <one> <two words>\n")) << output;
}

TEST(OpenMpTest, WhatTheUserSaysHolds) {
  int status = 0;
  const std::string output = Output("OMP_WAIT_POLICY=active", &status);
  ASSERT_EQ(status, 0) << output;
  EXPECT_TRUE(absl::StrContains(output, "OMP_WAIT_POLICY = 'ACTIVE'")) << output;
  EXPECT_FALSE(absl::StrContains(output, "PASSIVE")) << output;
}

}  // namespace
}  // namespace starling
