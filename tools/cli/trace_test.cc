// starling trace, against daemons whose clocks differ and whose answers take time.
#include <filesystem>
#include <map>

#include "nlohmann/json.hpp"
#include "tools/cli/exit_code.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kTripMicros = 80;  // a round trip

// A daemon with its own clock; its recorded spans are a function of the time.
struct FakeDaemon {
  int64_t offset = 0;
  bool worker = false;
  absl::Status down;
  uint64_t lost = 0;  // in each read
  bool applies = true;
};

class TraceTest : public CliTest {
 protected:
  void SetUp() override {
    context_.steady_micros = [this] { return Micros(); };
    context_.daemons = [this] { return std::make_unique<TracedDaemons>(this, cluster_); };
    daemons_["w:1"] = {.offset = 700'000, .worker = true};
    daemons_["s:1"] = {.offset = -400'000};
    for (const auto& [name, state] :
         {std::pair("worker-0", "training"), std::pair("worker-1", "lost")}) {
      WorkerStatus* worker = cluster_.workers.add_workers();
      worker->set_name(name);
      worker->set_state(state);
      worker->set_job("digits");
      worker->set_address("w:1");
    }
    WorkerStatus* other = cluster_.workers.add_workers();
    other->set_name("worker-2");
    other->set_state("idle");
    other->set_address("nobody:1");
    ShardStatus* shard = cluster_.shards.add_shards();
    shard->set_id(4);
    shard->set_name("ps-0");
    shard->set_state("ready");
    shard->set_address("s:1");
    SetSteps({812, 812, 815, 818, 822});
  }

  void SetSteps(const std::vector<uint64_t>& steps, JobState last = RUNNING) {
    cluster_.jobs.clear();
    for (const uint64_t step : steps) {
      JobStatus status = Running();
      status.set_step(step);
      JobReply reply = Reply(status);
      reply.add_views()->set_primary(4);
      cluster_.jobs.push_back(reply);
    }
    cluster_.jobs.back()->mutable_status()->set_state(last);
  }

  int64_t Micros() { return absl::ToUnixMicros(now_) + 10'000'000; }
  void Pass(int64_t micros) { now_ += absl::Microseconds(micros); }

  // A push every 10 ms, its apply 3 ms later, and a forward pass on the worker meanwhile.
  class TracedDaemons : public FakeDaemons {
   public:
    TracedDaemons(TraceTest* test, const FakeCluster& cluster)
        : FakeDaemons(cluster), test_(test) {}

    absl::StatusOr<InfoReply> Info(const std::string& address) override {
      const FakeDaemon& daemon = test_->daemons_.at(address);
      test_->Pass(kTripMicros / 2);
      InfoReply reply;
      reply.set_now_us(static_cast<uint64_t>(test_->Micros() + daemon.offset));
      test_->Pass(kTripMicros / 2);
      if (!daemon.down.ok()) return daemon.down;
      return reply;
    }
    absl::StatusOr<SpansReply> Spans(const std::string& address,
                                     const SpansRequest& request) override {
      const FakeDaemon& daemon = test_->daemons_.at(address);
      if (!daemon.down.ok()) return daemon.down;
      SpansReply all;
      for (int64_t at = 10'000'000; at + 5000 <= test_->Micros(); at += 10'000) {
        const auto flow = static_cast<uint64_t>(at);
        const int64_t begin = at + daemon.offset;
        if (daemon.worker) {
          Record("forward a", "forward", begin, 2000, 0, &all);
          Record("push slice 1", "push", begin + 1000, 4000, flow, &all);
        } else if (daemon.applies) {
          Record("apply slice 1", "apply", begin + 4000, 500, flow, &all);
        }
      }
      SpansReply asked;
      asked.set_dropped(request.after() == 0 ? 0 : daemon.lost);
      asked.set_recorded(static_cast<uint64_t>(all.spans_size()));
      for (int i = static_cast<int>(request.after()); i < all.spans_size(); ++i) {
        if (all.spans(i).begin_us() + all.spans(i).duration_us() > request.after_us())
          *asked.add_spans() = all.spans(i);
      }
      return asked;
    }

   private:
    static void Record(const char* name, const char* category, int64_t begin, uint64_t duration,
                       uint64_t flow, SpansReply* spans) {
      Span& span = *spans->add_spans();
      span.set_name(name);
      span.set_category(category);
      span.set_begin_us(static_cast<uint64_t>(begin));
      span.set_duration_us(duration);
      span.set_thread(1);
      span.set_flow(flow);
    }
    TraceTest* const test_;
  };

  std::string File() { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/trace.json"); }
  nlohmann::json Json() {
    std::ifstream in(File());
    return nlohmann::json::parse(in);
  }

  std::map<std::string, FakeDaemon> daemons_;
};

TEST_F(TraceTest, CollectsTheJobsDaemonsOntoOneClock) {
  EXPECT_EQ(Run({"trace", "digits", "--steps", "8", "-o", File()}), 0) << err_.str();
  EXPECT_THAT(err_.str(),
              AllOf(HasSubstr("2 processes, 10 steps"), HasSubstr("clocks agree within 0.04 ms")));
  const auto json = Json();
  ASSERT_EQ(json["otherData"]["processes"].size(), 2u);
  EXPECT_EQ(json["otherData"]["processes"][0]["name"], "worker-0");
  EXPECT_EQ(json["otherData"]["processes"][0]["clockOffsetMicros"], 700'000);
  EXPECT_EQ(json["otherData"]["processes"][1]["clockOffsetMicros"], -400'000);
  std::map<std::string, int64_t> pushes, applies;
  std::map<std::string, int> phases;
  for (const auto& event : json["traceEvents"]) {
    ++phases[event["ph"].get<std::string>()];
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["ts"], 0);
    if (!event["args"].contains("flow")) continue;
    (event["cat"] == "push" ? pushes : applies)[event["args"]["flow"].get<std::string>()] =
        event["ts"].get<int64_t>();
  }
  EXPECT_GE(pushes.size(), 15u) << "one each 10 ms of 0.2 s";
  for (const auto& [flow, at] : pushes) {
    ASSERT_TRUE(applies.contains(flow));
    EXPECT_NEAR(applies[flow] - at, 3000, 1);  // times are rounded to microseconds
  }
  EXPECT_EQ(phases["s"], static_cast<int>(pushes.size()));
  EXPECT_EQ(phases["f"], static_cast<int>(pushes.size()));
}

TEST_F(TraceTest, AJobThatHasEndedOrDoesNotRunYetIsRefusedAndNothingIsWritten) {
  std::filesystem::remove(File());
  SetSteps({2345}, SUCCEEDED);
  EXPECT_EQ(Run({"trace", "digits", "-o", File()}), kExitError);
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("has ended (SUCCEEDED)"), HasSubstr("while it runs"),
                                HasSubstr("starling metrics digits")));
  SetSteps({0}, PENDING);
  EXPECT_EQ(Run({"trace", "digits", "-o", File()}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("does not run yet"));
  cluster_.jobs.clear();
  EXPECT_EQ(Run({"trace", "digits", "-o", File()}), kExitNotFound);
  for (const auto& entry : std::filesystem::directory_iterator(std::getenv("TEST_TMPDIR"))) {
    EXPECT_THAT(entry.path().filename().string(), Not(StartsWith("trace.json")));
  }
}

TEST_F(TraceTest, AJobThatEndsMeanwhileIsWrittenToItsEnd) {
  SetSteps({812, 812, 815}, SUCCEEDED);
  EXPECT_EQ(Run({"trace", "digits", "--steps", "50", "-o", File()}), 0) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("3 steps (then the job ended)"));
}

TEST_F(TraceTest, InterruptedItWritesWhatThereIs) {
  SetSteps({812});
  interrupt_at_ = now_ + absl::Seconds(2);
  EXPECT_EQ(Run({"trace", "digits", "--steps", "50", "-o", File()}), 0) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("0 steps in 2.0s"));
  EXPECT_GT(Json()["traceEvents"].size(), 100u);
}

TEST_F(TraceTest, WhatWasLostIsSaid) {
  daemons_["w:1"].lost = 7;
  EXPECT_EQ(Run({"trace", "digits", "-o", File()}), 0) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("worker-0: "));
  EXPECT_THAT(err_.str(), HasSubstr("spans were overwritten before they were read"));
  EXPECT_GT(Json()["otherData"]["processes"][0]["spansDropped"], 0);
}

TEST_F(TraceTest, PushesWithoutAnApplyAreWaitedForAndThenSaid) {
  daemons_["s:1"].applies = false;
  const absl::Time begin = now_;
  EXPECT_EQ(Run({"trace", "digits", "-o", File()}), 0) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("pushes have no apply in the trace"));
  EXPECT_GE(now_ - begin, absl::Seconds(5));
}

TEST_F(TraceTest, ADaemonThatIsNotReachedIsNamedAndTheOthersAreTraced) {
  daemons_["s:1"].down = absl::UnavailableError("s:1: connection refused");
  EXPECT_EQ(Run({"trace", "digits", "-o", File()}), 0) << err_.str();
  EXPECT_THAT(err_.str(),
              AllOf(HasSubstr("ps-0: s:1: connection refused"), HasSubstr("1 process, ")));
  daemons_["w:1"].down = absl::UnavailableError("w:1: connection refused");
  SetSteps({812});
  EXPECT_EQ(Run({"trace", "digits", "-o", File()}), kExitUnreachable);
  EXPECT_THAT(err_.str(), HasSubstr("none of job digits's daemons was reached"));
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsSaidBeforeAnythingIsAsked) {
  EXPECT_EQ(Run({"trace", "digits", "-o", "/proc/nothing/t.json"}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("cannot create a file beside /proc/nothing/t.json"));
}

}  // namespace
}  // namespace starling::cli
