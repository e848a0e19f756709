// starling local, driven through the command line.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tools/cli/testing/cli_fixture.h"
#include "tools/local/instance_lock.h"
#include "tools/local/state_directory.h"

namespace starling::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The coordinator knows which jobs go on. Another process stands for the supervisor.
TEST_F(CliTest, LocalDownSaysWhatGoesOnWithTheNextCluster) {
  const local::StateDirectory directory(absl::StrCat(std::getenv("TEST_TMPDIR"), "/down"));
  ASSERT_TRUE(directory.Create().ok());
  std::ofstream(directory.AddressPath()) << "127.0.0.1:4";
  const auto add = [&](const std::string& name, bool goes_back, uint32_t left, uint64_t step,
                       const std::string& from = "c-1-1") {
    JobStatus& job = *cluster_.job_list.add_jobs();
    job.set_name(name);
    job.set_state(RUNNING);
    job.set_goes_back_on_stop(goes_back);
    job.set_restarts_left(left);
    job.set_restored_from(from);
    if (step > 0) job.mutable_checkpoint()->mutable_last()->set_step(step);
  };
  add("digits", true, 3, 800);
  add("stubborn", true, 0, 90);
  add("copy", true, 1, 0);
  add("young", true, 3, 0, "");
  add("doomed", false, 3, 0);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = local::InstanceLock::Take(directory.LockPath());
    [[maybe_unused]] const auto written = write(ready[1], "x", 1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGTERM, SIG_DFL);
    for (;;) pause();
  }
  close(ready[1]);  // a child that ends early ends the read
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(Run({"local", "down", "--state", directory.root()}), 0) << err_.str();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  const std::string said = err_.str();
  const size_t ends = said.find("stops before its end, for good");
  ASSERT_NE(ends, std::string::npos) << said;
  EXPECT_THAT(
      said.substr(0, ends),
      AllOf(HasSubstr("; from step 800)"), HasSubstr("; from step 90, if its shards stop in time)"),
            HasSubstr("; from the checkpoint with which it began)"), HasSubstr("; from its start)"),
            Not(HasSubstr("doomed"))));
  EXPECT_THAT(said.substr(ends), AllOf(HasSubstr("doomed"), Not(HasSubstr("digits"))));
}

}  // namespace
}  // namespace starling::cli
