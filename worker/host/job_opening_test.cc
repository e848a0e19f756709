#include "worker/host/job_opening.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace starling {
namespace {

// Runs posted tasks when it is told to.
class ManualLoop : public EventLoop {
 public:
  absl::Time Now() const override { return absl::UnixEpoch(); }
  bool Post(Task task) override {
    tasks_.push_back(std::move(task));
    return true;
  }
  TimerId PostAt(absl::Time, Task) override { return 0; }
  bool Cancel(TimerId) override { return false; }
  void Stop() override {}
  bool InLoop() const override { return true; }

  void RunAll() {
    while (!tasks_.empty()) {
      std::vector<Task> now = std::exchange(tasks_, {});
      for (Task& task : now) task();
    }
  }

 private:
  std::vector<Task> tasks_;
};

class SmallJob : public ServedJob {
 public:
  explicit SmallJob(const JobDescription& description) : ServedJob(description, Layout()) {}
  ParameterCopy& copy(session::Params) override { return copy_; }
  absl::Status Prefetch(const WorkRange&) override { return absl::OkStatus(); }
  void ClearPrefetched() override {}
  uint64_t data_digest() const override { return 0; }
  JobMemory memory() const override { return {}; }
  ExecutorTimes times() const override { return {}; }
  std::vector<std::string> slower_operators() const override { return {}; }

 private:
  ParameterCopy copy_{layout(), session::Params::kLive, nullptr};
};

// Opens a job when it is told to.
class ManualOpener : public JobOpener {
 public:
  void Open(const JobDescription& description, std::function<void(OpenedJob)> done) override {
    names.push_back(description.spec().name());
    description_ = description;
    done_ = std::move(done);
  }
  void Inspect(const JobSpec&, std::function<void(Inspection)>) override {}

  // Returns the job, too.
  std::weak_ptr<ServedJob> Finish() {
    auto job = std::make_shared<SmallJob>(description_);
    std::weak_ptr<ServedJob> held = job;
    std::exchange(done_, nullptr)({std::move(job)});
    return held;
  }

  std::vector<std::string> names;  // of the jobs that were to be opened

 private:
  JobDescription description_;
  std::function<void(OpenedJob)> done_;
};

// Its units stop when it is told to.
class ManualRunner : public UnitRunner {
 public:
  void Start(std::shared_ptr<ServedJob>, session::action::Compute) override {}
  void Abandon(session::UnitId) override {}
  void Release() override {}
  void WhenStopped(std::function<void()> stopped) override { stopped_.push_back(stopped); }
  void ReturnMemory() override {}

  void Stop() {
    for (const auto& stopped : std::exchange(stopped_, {})) stopped();
  }

 private:
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
    std::weak_ptr<ServedJob> job = opener_.Finish();
    loop_.RunAll();
    return job;
  }

  ManualLoop loop_;
  ManualOpener opener_;
  ManualRunner runner_;
  std::vector<std::string> opened_;
  std::vector<std::shared_ptr<ServedJob>> jobs_;
  JobOpening opening_{&loop_, &opener_, &runner_,
                      [this](const JobDescription& description, OpenedJob opened) {
                        opened_.push_back(description.spec().name());
                        jobs_.push_back(*opened.job);
                      }};
};

TEST_F(JobOpeningTest, OpensWhenTheUnitsBeforeHaveStopped) {
  opening_.Open(Job("a"));
  loop_.RunAll();
  EXPECT_TRUE(opener_.names.empty());
  Stop();
  EXPECT_EQ(opener_.names, std::vector<std::string>{"a"});
  EXPECT_TRUE(opened_.empty());
  Finish();
  EXPECT_EQ(opened_, std::vector<std::string>{"a"});
}

TEST_F(JobOpeningTest, AJobThatWasClosedBeforeItsTurnIsNotOpened) {
  opening_.Open(Job("a"));
  opening_.Close();
  Stop();
  EXPECT_TRUE(opener_.names.empty());
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
  EXPECT_EQ(opener_.names.size(), 1u);
  EXPECT_TRUE(Finish().expired());
  Stop();
  EXPECT_EQ(opener_.names.size(), 2u);
  EXPECT_TRUE(opened_.empty());
  EXPECT_FALSE(Finish().expired());
  EXPECT_EQ(opened_, std::vector<std::string>{"a"});
}

TEST_F(JobOpeningTest, TheNewestThatWaitsIsOpened) {
  opening_.Open(Job("a"));
  opening_.Close();
  opening_.Open(Job("b"));
  Stop();
  EXPECT_EQ(opener_.names, std::vector<std::string>{"b"});
}

}  // namespace
}  // namespace starling
