#include "worker/host/job_opening.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "worker/host/testing/plain_job.h"

namespace starling {
namespace {

// Runs posted tasks when it is told to.
class ManualLoop : public EventLoop {
 public:
  absl::Time Now() const override { return now_; }
  bool Post(Task task) override {
    if (!stopped_) tasks_.push_back(std::move(task));
    return !stopped_;
  }
  TimerId PostAt(absl::Time when, Task task) override {
    timers_[++last_] = {when, std::move(task)};
    return last_;
  }
  bool Cancel(TimerId timer) override { return timers_.erase(timer) > 0; }
  void Stop() override { stopped_ = true; }
  bool InLoop() const override { return true; }

  void RunAll() {
    while (!tasks_.empty()) {
      std::vector<Task> now = std::exchange(tasks_, {});
      for (Task& task : now) task();
    }
  }
  // Timers that are set meanwhile are for later.
  void Pass(absl::Duration time) {
    now_ += time;
    auto timers = std::exchange(timers_, {});
    for (auto& [id, timer] : timers) {
      if (timer.first > now_) {
        timers_[id] = std::move(timer);
      } else {
        timer.second();
      }
    }
  }

 private:
  absl::Time now_ = absl::UnixEpoch();
  std::vector<Task> tasks_;
  std::map<TimerId, std::pair<absl::Time, Task>> timers_;
  TimerId last_ = 0;
  bool stopped_ = false;
};

class SmallJob : public PlainJob {
 public:
  explicit SmallJob(const JobDescription& description) : PlainJob(description, Layout()) {}
  ParameterCopy& copy(session::Params) override { return copy_; }
  void Start(session::action::Compute) override {}

 private:
  ParameterCopy copy_{layout(), session::Params::kLive, nullptr};
};

// Opens a job, and its units stop, when it is told to.
class ManualRunner : public JobRunner {
 public:
  void Open(const JobDescription& description, std::function<void(OpenedJob)> done) override {
    names.push_back(description.spec().name());
    description_ = description;
    done_ = std::move(done);
  }
  void Inspect(const JobSpec&, std::function<void(Inspection)>) override {}
  void Abandon(session::UnitId) override {}
  void Release() override {}
  void WhenStopped(std::function<void()> stopped) override { stopped_.push_back(stopped); }
  void ReturnMemory() override {}

  // Returns the job, too.
  std::weak_ptr<ServedJob> Finish() {
    auto job = std::make_shared<SmallJob>(description_);
    std::weak_ptr<ServedJob> held = job;
    std::exchange(done_, nullptr)({std::move(job)});
    return held;
  }
  void Stop() {
    for (const auto& stopped : std::exchange(stopped_, {})) stopped();
  }

  std::vector<std::string> names;  // of the jobs that were to be opened

 private:
  JobDescription description_;
  std::function<void(OpenedJob)> done_;
  std::vector<std::function<void()>> stopped_;
};

class JobOpeningTest : public testing::Test {
 protected:
  static JobDescription Job(const std::string& name) {
    JobDescription job;
    job.mutable_spec()->set_name(name);
    return job;
  }
  void Stop() {
    runner_.Stop();
    loop_.RunAll();
  }
  std::weak_ptr<ServedJob> Finish() {
    std::weak_ptr<ServedJob> job = runner_.Finish();
    loop_.RunAll();
    return job;
  }

  ManualLoop loop_;
  ManualRunner runner_;
  std::vector<std::string> opened_;
  std::vector<std::shared_ptr<ServedJob>> jobs_;
  std::unique_ptr<JobOpening> owned_ = std::make_unique<JobOpening>(
      &loop_, &runner_, [this](const JobDescription& description, OpenedJob opened) {
        opened_.push_back(description.spec().name());
        jobs_.push_back(*opened.job);
      });
  JobOpening& opening_ = *owned_;
};

TEST_F(JobOpeningTest, OpensWhenTheUnitsBeforeHaveStopped) {
  opening_.Open(Job("a"));
  loop_.RunAll();
  EXPECT_TRUE(runner_.names.empty());
  Stop();
  EXPECT_EQ(runner_.names, std::vector<std::string>{"a"});
  EXPECT_TRUE(opened_.empty());
  Finish();
  EXPECT_EQ(opened_, std::vector<std::string>{"a"});
}

TEST_F(JobOpeningTest, AJobThatWasClosedBeforeItsTurnIsNotOpened) {
  opening_.Open(Job("a"));
  opening_.Close();
  Stop();
  EXPECT_TRUE(runner_.names.empty());
  opening_.Open(Job("b"));
  Stop();
  Finish();
  EXPECT_EQ(opened_, std::vector<std::string>{"b"});
}

TEST_F(JobOpeningTest, AJobThatWasClosedWhileItWasOpenedIsGoneBeforeTheNextIsOpened) {
  opening_.Open(Job("a"));
  Stop();
  opening_.Close();
  opening_.Open(Job("a"));  // the same one, prepared anew
  Stop();
  EXPECT_EQ(runner_.names.size(), 1u);
  EXPECT_TRUE(Finish().expired());
  Stop();
  EXPECT_EQ(runner_.names.size(), 2u);
  EXPECT_TRUE(opened_.empty());
  EXPECT_FALSE(Finish().expired());
  EXPECT_EQ(opened_, std::vector<std::string>{"a"});
}

TEST_F(JobOpeningTest, TheNewestThatWaitsIsOpened) {
  opening_.Open(Job("a"));
  opening_.Close();
  opening_.Open(Job("b"));
  Stop();
  EXPECT_EQ(runner_.names, std::vector<std::string>{"b"});
}

// The host's order of ending: the session's loop, this, and then the runner, which may be at it.
TEST_F(JobOpeningTest, TheRunnerMayCallBackAfterTheEnd) {
  opening_.Open(Job("a"));
  Stop();
  opening_.Close();
  opening_.Open(Job("b"));
  loop_.Stop();
  owned_.reset();
  EXPECT_TRUE(Finish().expired());
}

TEST_F(JobOpeningTest, TheRunnersUnitsMayStopAfterTheEnd) {
  opening_.Open(Job("a"));
  loop_.Stop();
  owned_.reset();
  Stop();
  EXPECT_TRUE(runner_.names.empty());
}

TEST_F(JobOpeningTest, SaysInTheLogWhatItWaitsFor) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const auto said = [&](absl::string_view what) { return absl::StrContains(log.str(), what); };
  opening_.Open(Job("a"));
  loop_.Pass(absl::Seconds(9));
  EXPECT_EQ(log.str(), "");
  loop_.Pass(absl::Seconds(1));
  EXPECT_TRUE(said("has waited 10s for units of the job before to stop")) << log.str();
  loop_.Pass(absl::Seconds(10));
  EXPECT_TRUE(said("has waited 20s for units of the job before to stop")) << log.str();
  Stop();
  loop_.Pass(absl::Seconds(10));
  EXPECT_TRUE(said("has waited 10s for the data and memory of a job")) << log.str();
  Finish();
  log.str("");
  loop_.Pass(absl::Seconds(60));
  EXPECT_EQ(log.str(), "");
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace starling
