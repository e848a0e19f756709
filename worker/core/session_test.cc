// Transcripts: what goes in ("> "), and what comes out. Each scenario is compared with its golden
// file.
#include "worker/core/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/placement/layout.h"
#include "worker/core/testing/driver.h"

namespace starling::session {
namespace {

void ExpectGolden(const Driver& driver, const std::string& name) {
  std::ifstream in(absl::StrCat("worker/core/golden/", name, ".txt"));
  std::stringstream want;
  want << in.rdbuf();
  EXPECT_EQ(want.str(), driver.text())
      << "the golden file is worker/core/golden/" << name << ".txt";
}

WorkRange Item(uint32_t epoch, uint64_t item) { return {WorkPurpose::kTrain, epoch, 4 * item, 4}; }

TEST(Session, RegistersPreparesAndJoins) {
  Driver d;
  d.Serve();
  ExpectGolden(d, "join");
}

TEST(Session, TrainsTwoItemsUnderSsp) {
  Driver d;
  d.Serve();
  d.Forget();
  d.AddLease(11, Item(0, 0));
  d.AddLease(12, Item(0, 1));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Compute(1);
  d.Values({0, 2});
  d.Ack();
  d.Values();
  d.Compute(2);
  d.Ack();
  d.Ack();
  ExpectGolden(d, "ssp");
}

TEST(Session, SaysWhatItStandsAt) {
  Driver d;
  EXPECT_EQ(d.activity(), Activity::kIdle);
  d.Serve();
  EXPECT_EQ(d.activity(), Activity::kIdle) << "a member without a lease";
  for (uint64_t i = 0; i < 3; ++i) d.AddLease(11 + i, Item(0, i));
  d.GiveOrders();
  d.Ack();
  EXPECT_EQ(d.activity(), Activity::kComputing);
  d.Values();
  d.Compute(1);
  EXPECT_EQ(d.activity(), Activity::kComputing);
  d.Values();
  d.Compute(2);
  EXPECT_EQ(d.activity(), Activity::kUnacked) << "two units are open, and there is a third";
  d.orders().set_hold(true);
  d.GiveOrders();
  EXPECT_EQ(d.activity(), Activity::kIdle) << "a policy is being decided";
  d.orders().set_hold(false);
  d.GiveOrders();
  d.Ack();
  d.Ack();
  EXPECT_EQ(d.activity(), Activity::kComputing);
}

TEST(Session, StandsAtAnEvaluation) {
  Driver d;
  d.Serve();
  d.AddLease(12, {WorkPurpose::kEvaluate, 0, 0, 4});
  d.GiveOrders();
  EXPECT_EQ(d.activity(), Activity::kEvaluating);
}

TEST(Session, WithoutAnOpenEpochItIsIdle) {
  Driver d(PolicyKind::kBsp);
  d.orders().set_training_open(true);
  d.Serve();
  d.Ack();
  EXPECT_EQ(d.activity(), Activity::kComputing);
  for (uint64_t step = 1; step <= 4; ++step) {  // of the epoch
    d.Values();
    d.Compute(step);
    d.Ack();
    d.Ack();
  }
  EXPECT_EQ(d.activity(), Activity::kIdle);
}

TEST(Session, SendsTheSameAgainAfterAReconnect) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Gradient(1, 2);
  d.Gradient(1, 1);
  d.Forget();
  d.Step(event::StreamDown{ShardId(1), absl::UnavailableError("cut")});
  d.Gradient(1, 0);
  d.Up(1);
  ExpectGolden(d, "reconnect");
}

TEST(Session, SkipsToWhereTheFurthestPartitionIs) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Forget();
  const std::vector<FrameHeader> enters = std::exchange(d.sent(), {});
  ASSERT_EQ(enters.size(), 2u);
  d.Answer(enters[0], FrameType::kAck, Answer::kCounted, 3);
  d.Answer(enters[1], FrameType::kAck, Answer::kCounted, 5);
  ExpectGolden(d, "skip");
}

// Step 0 was pushed as the only worker's. Before it is sealed, another worker joins and goes, and
// then this one must do all of step 0 again only where it had not.
TEST(Session, ComputesWhatANewRosterAdds) {
  Driver d(PolicyKind::kBsp);
  d.orders().set_training_open(true);
  d.SetRoster(1, {});
  d.Serve();
  d.SetRoster(3, {1, 2});
  d.GiveOrders();
  d.Ack(0);
  d.Forget();
  d.Values();
  d.Compute(1);
  d.Ack(0, 2);          // sealed for slice 2 only:
  d.Values({2});        // its version 1 is here
  d.SetRoster(4, {1});  // the other one is gone
  d.GiveOrders();
  d.Values();
  d.Compute(3);
  d.Ack();
  ExpectGolden(d, "bsp_roster");
}

// A worker whose job has backup workers, as a member of this roster. Values say which part of the
// step before came late.
class BackupDriver : public Driver {
 public:
  BackupDriver(uint32_t backup, const std::vector<uint32_t>& roster)
      : Driver(PolicyKind::kBsp), roster_(roster), sharing_(roster.size() - backup) {
    orders().mutable_job()->mutable_spec()->set_workers_backup(backup);
    orders().mutable_job()->mutable_spec()->mutable_stop()->set_epochs(9);
    orders().set_training_open(true);
    orders().set_epoch(8);  // all of them are open
    Serve();
    SetRoster(3, roster);
    GiveOrders();
    Ack(0);
  }
  // Forgets the text of what came before. `late`: a member; 0: none was.
  void ValuesName(uint32_t late, uint32_t late_us) {
    unit();
    Forget();
    const auto index = std::find(roster_.begin(), roster_.end(), late) - roster_.begin();
    for (const FrameHeader& h : std::exchange(sent(), {})) {
      if (h.type != FrameType::kPull) {
        sent().push_back(h);
        continue;
      }
      FrameHeader pull = h;
      if (late != 0 && h.clock > 0) {
        pull.late_us = late_us;
        pull.late_part = AssignSubtrees(h.clock - 1, index, sharing_, 4).back().first;
      }
      Answer(pull, FrameType::kValue, starling::Answer::kNone, h.clock);
    }
  }
  // The values of the unit come, and it is computed and acked.
  void Train(uint32_t late = 0, uint32_t late_us = 0) {
    ValuesName(late, late_us);
    Compute(unit());
    Ack();
  }
  uint64_t unit() {  // that was begun last
    for (absl::string_view line : absl::StrSplit(text(), '\n')) {
      if (!absl::ConsumePrefix(&line, "  compute unit ")) continue;
      EXPECT_TRUE(absl::SimpleAtoi(line.substr(0, line.find(':')), &unit_));
    }
    return unit_;
  }
  // Whose part it says to repeat, and the milliseconds by which that one was late.
  std::pair<uint32_t, int64_t> Repeats() {
    Wait(absl::Milliseconds(100));
    GiveOrders();
    Wait(absl::Milliseconds(100));
    const starling::Repeats& told = reported().repeats();
    return {told.worker(), std::llround(1e3 * told.late_seconds())};
  }

 private:
  const std::vector<uint32_t> roster_;
  const uint64_t sharing_;
  uint64_t unit_ = 0;
};

// Two of three share each step, 2 of 4 micro-batches each; worker 2 has the first ones in even
// steps, and the last ones in odd steps.
TEST(Session, ABackupWorkerRepeatsThePartOfTheLatestMember) {
  BackupDriver d(1, {2, 3, 1});
  EXPECT_EQ(d.Count(": train 0:[0,2) clock 0 step 0 repeats 2"), 1u) << d.text();
  EXPECT_EQ(d.Repeats(), std::pair(2u, int64_t{0}));
  d.Train();
  EXPECT_EQ(d.Count("close train 0:[0,4)"), 2u) << "like any member: " << d.text();
  EXPECT_EQ(d.Count(": train 0:[6,8) clock 1 step 1 repeats 2"), 1u) << d.text();
  // The unit of step 1 waits for its values when they say what was late.
  d.Train(/*late=*/3, 300'000);
  EXPECT_EQ(d.Count("abandon unit 2"), 1u) << d.text();
  EXPECT_EQ(d.Count(": train 0:[4,6) clock 1 step 1 repeats 3"), 1u) << d.text();
  EXPECT_EQ(d.Count("push slice 0 train 0:[4,6)"), 1u) << d.text();
  EXPECT_EQ(d.Count(": train 0:[10,12) clock 2 step 2 repeats 3"), 1u) << d.text();
  EXPECT_EQ(d.Repeats(), std::pair(3u, int64_t{300}));
  // The other one has cost less, and then more.
  d.Train(/*late=*/2, 200'000);
  EXPECT_EQ(d.Count("abandon"), 0u) << d.text();
  EXPECT_EQ(d.Count(": train 0:[12,14) clock 3 step 3 repeats 3"), 1u) << d.text();
  d.Train(/*late=*/2, 200'000);
  EXPECT_EQ(d.Count(": train 0:[14,16) clock 3 step 3 repeats 2"), 1u) << d.text();
  EXPECT_EQ(d.Count(": train 1:[0,2) clock 4 step 4 repeats 2"), 1u) << d.text();
  EXPECT_EQ(d.Repeats(), std::pair(2u, int64_t{400}));
}

TEST(Session, ABackupWorkerDoesNotTurnWhenItHasPushedOrHolds) {
  BackupDriver d(1, {2, 3, 1});
  d.Train();
  d.Gradient(d.unit(), 2);
  d.ValuesName(/*late=*/3, 300'000);
  EXPECT_EQ(d.Count("abandon"), 0u) << d.text();
  BackupDriver holds(1, {2, 3, 1});
  holds.Train();
  holds.orders().set_hold(true);
  holds.GiveOrders();
  holds.ValuesName(/*late=*/3, 300'000);
  EXPECT_EQ(holds.Count("abandon"), 0u) << "no unit may begin: " << holds.text();
  holds.orders().set_hold(false);
  holds.GiveOrders();
  EXPECT_EQ(holds.Count("abandon"), 1u) << holds.text();
  EXPECT_EQ(holds.Count(" step 1 repeats 3"), 1u) << holds.text();
}

TEST(Session, ABackupWorkerComputesWhatANewRosterAdds) {
  BackupDriver d(1, {2, 3, 1});
  d.Train();
  d.ValuesName(/*late=*/3, 300'000);
  EXPECT_EQ(d.Count(": train 0:[4,6) clock 1 step 1 repeats 3"), 1u) << d.text();
  d.SetRoster(4, {2, 1});
  d.GiveOrders();
  EXPECT_EQ(d.Repeats(), std::pair(2u, int64_t{0}));
  EXPECT_EQ(d.Count(": train 0:[4,8) clock 1 step 1 repeats 2"), 1u) << d.text();
  const uint64_t all = d.unit();
  d.SetRoster(5, {1});
  d.GiveOrders();
  EXPECT_EQ(d.Repeats(), std::pair(0u, int64_t{0})) << "it is no backup worker";
  EXPECT_EQ(d.unit(), all) << "what it computes is its own now: " << d.text();
}

TEST(Session, BackupWorkersRepeatDifferentMembers) {
  BackupDriver first(2, {2, 3, 4, 1, 5}), second(2, {2, 3, 4, 5, 1}), sharing(2, {1, 2, 3, 4, 5});
  for (BackupDriver* d : {&first, &second, &sharing}) {
    for (int step = 0; step < 9; ++step) {
      d->Train();
      d->Wait(absl::Milliseconds(10));
    }
    d->Train(/*late=*/d == &sharing ? 3 : 4, 300'000);
    d->Train(/*late=*/3, 200'000);
  }
  EXPECT_EQ(first.Repeats(), std::pair(4u, int64_t{300}));
  EXPECT_EQ(second.Repeats(), std::pair(3u, int64_t{200}));
  EXPECT_EQ(sharing.Repeats(), std::pair(0u, int64_t{0}));
}

// Of 4 micro-batches 3 members have 1, 1 and 2. Who has 2 may come later by half a step.
TEST(Session, ALargerPartOfAStepIsNotLate) {
  for (const uint32_t late_us : {50'000, 60'000}) {
    BackupDriver d(1, {2, 3, 4, 1});
    for (int step = 0; step < 16; ++step) {
      const bool larger = step > 9 && AssignSubtrees(step - 1, 2, 3, 4)[0].count == 2;
      d.Train(/*late=*/larger ? 4 : 0, late_us);
      d.Wait(absl::Milliseconds(100));
    }
    EXPECT_EQ(d.Repeats().second > 0, late_us > 50'000) << late_us;
  }
}

// Who was late long ago does not come before who is late now.
TEST(Session, ALongPauseIsForgottenInTime) {
  BackupDriver d(1, {2, 3, 1});
  d.Train();
  d.Train(/*late=*/2, 600'000);
  EXPECT_EQ(d.Repeats(), std::pair(2u, int64_t{600}));
  for (int step = 2; step < 33; ++step) d.Train();
  d.Train(/*late=*/3, 200'000);
  EXPECT_EQ(d.Repeats(), std::pair(3u, int64_t{200}));
}

// Eight steps of 300 ms, and then one that waits.
TEST(Session, ABackupWorkerHelpsWithAStepThatIsOverdue) {
  BackupDriver d(1, {2, 3, 1});
  for (int step = 0; step < 9; ++step) {
    d.Train();
    d.Wait(absl::Milliseconds(300));
  }
  d.ValuesName(0, 0);
  d.Compute(d.unit());  // of step 9, which is not sealed
  EXPECT_EQ(d.Count(": train 2:[8,10) clock 10 step 10 repeats 2"), 1u) << d.text();
  d.Wait(absl::Milliseconds(299));
  EXPECT_EQ(d.Count("abandon"), 0u) << d.text();
  d.Wait(absl::Milliseconds(1));
  EXPECT_EQ(d.Count("abandon"), 1u) << d.text();
  EXPECT_EQ(d.Count(": train 2:[4,6) clock 9 step 9 repeats 3"), 1u) << d.text();
  d.Wait(absl::Seconds(1));
  EXPECT_EQ(d.Count("compute unit"), 2u) << "there is nobody else: " << d.text();
  // The step is sealed meanwhile: on to the next one.
  d.Forget();
  d.Ack();
  EXPECT_EQ(d.Count("abandon"), 1u) << d.text();
  EXPECT_EQ(d.Count(": train 2:[8,10) clock 10 step 10 repeats 2"), 1u) << d.text();
}

TEST(Session, OnlyABackupWorkerHelps) {
  for (const uint32_t backup : {0, 1}) {
    BackupDriver d(backup, {1, 2, 3});
    for (int step = 0; step < 9; ++step) {
      d.Train();
      d.Wait(absl::Milliseconds(300));
    }
    d.ValuesName(0, 0);
    d.Compute(d.unit());
    d.Forget();
    d.Wait(absl::Seconds(10));
    EXPECT_EQ(d.Count("compute unit") + d.Count("abandon"), 0u) << d.text();
  }
}

// The copy of epoch 0 was taken by another epoch while this worker still pulled it.
TEST(Session, AnEvaluationWhoseCopyIsGoneEndsWithItsLease) {
  Driver d;
  d.Serve();
  d.AddLease(12, {WorkPurpose::kEvaluate, 0, 0, 4});
  d.GiveOrders();
  ASSERT_EQ(d.sent().size(), 3u);
  d.Forget();
  // The orders still have the lease: they will say more, and until then it is asked for again.
  const FrameHeader first = d.sent()[0];
  d.Answer(first, FrameType::kError, Answer::kStaleClock, 2, "there is no copy of epoch 0");
  EXPECT_EQ(d.Count("abandon"), 0u) << d.text();
  d.Wait(absl::Seconds(1));
  EXPECT_EQ(d.Count("to shard"), 1u) << d.text();
  EXPECT_EQ(d.sent().back(), first);
  // Without it there is nothing to evaluate: training goes on.
  d.orders().clear_leases();
  d.AddLease(13, Item(0, 1));
  d.GiveOrders();
  EXPECT_EQ(d.Count("abandon"), 0u) << "a copy that is there may be read to the end";
  d.Answer(first, FrameType::kError, Answer::kStaleClock, 2, "there is no copy of epoch 0");
  EXPECT_EQ(d.Count("abandon"), 1u) << d.text();
  d.Ack();
  EXPECT_EQ(d.Count("compute"), 1u) << d.text();
  d.Forget();
  for (const FrameHeader& pull : std::exchange(d.sent(), {})) {  // late answers change nothing
    if (pull.key.work.purpose == WorkPurpose::kEvaluate) {
      d.Answer(pull, FrameType::kError, Answer::kStaleClock, 2, "there is no copy of epoch 0");
    }
  }
  EXPECT_EQ(d.Count("abandon"), 0u) << d.text();
}

TEST(Session, EvaluatesBeforeItTrains) {
  Driver d;
  d.Serve();
  d.Forget();
  d.AddLease(11, Item(1, 0));
  d.AddLease(12, {WorkPurpose::kEvaluate, 0, 0, 4});
  d.AddLease(13, {WorkPurpose::kEvaluate, 0, 4, 4});
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Step(event::UnitComputed{UnitId(1), {{1.5, 16, 12}}, true, ""});
  d.Step(event::UnitComputed{UnitId(2), {{1.5, 16, 12}}, true, ""});
  ExpectGolden(d, "evaluate");
}

// fp16: what the adaptor says of a gradient goes with its push, and what a value says of the loss
// scale with the value. Where no decision makes a skip whole, the adaptor has to.
TEST(Session, Fp16SkipsAndScales) {
  for (const PolicyKind policy : {PolicyKind::kSsp, PolicyKind::kBsp}) {
    const bool bsp = policy == PolicyKind::kBsp;
    Driver d(policy);
    d.orders().mutable_job()->mutable_spec()->set_precision(PRECISION_FP16);
    d.orders().set_training_open(true);
    d.Serve();
    if (!bsp) d.AddLease(11, Item(0, 0));
    d.GiveOrders();
    d.Ack(0);
    EXPECT_EQ(d.Count(" whole"), bsp ? 0u : 1u) << d.text();
    for (const FrameHeader& h : std::exchange(d.sent(), {})) {
      if (h.type != FrameType::kPull) continue;
      FrameHeader pull = h;
      pull.loss_scale_log2 = h.key.slice == SliceId(0) ? 13 : 0;
      d.Answer(pull, FrameType::kValue, Answer::kNone, h.clock);
    }
    EXPECT_EQ(d.Count("install slice 0 version 0 loss scale 2^13"), 1u) << d.text();
    d.Forget();
    d.Step(event::SliceGradient{UnitId(1), 0, SliceId(2), BufferId(91), 16, 13, false});
    d.Step(event::SliceGradient{UnitId(1), 0, SliceId(1), BufferId(92), 16, 13, true});
    std::vector<FrameHeader> pushes;
    for (const FrameHeader& h : d.sent()) {
      if (h.type == FrameType::kPush) pushes.push_back(h);
    }
    ASSERT_EQ(pushes.size(), 2u);
    EXPECT_EQ(pushes[0].flags, 0);
    EXPECT_EQ(pushes[1].flags, frame_flags::kSkipped);
    for (const FrameHeader& push : pushes) EXPECT_EQ(push.loss_scale_log2, 13);
  }
}

// The whole cluster was told to stop at once, and the others were quicker.
TEST(Session, ADrainThatNobodyAnswersEndsWithinFiveSeconds) {
  for (const bool streams_break : {true, false}) {
    for (const bool computes : {true, false}) {
      if (!streams_break && computes)
        continue;  // shards that are there may still take what it computes
      Driver d;
      d.Serve();
      d.AddLease(11, Item(0, 0));
      d.GiveOrders();
      d.Ack();
      d.Values();
      if (!computes) {
        for (uint32_t slice : {2, 1, 0}) d.Gradient(1, slice);
        d.Step(event::UnitComputed{UnitId(1), {{}}, true, ""});
      }
      d.Step(event::Drain{});
      if (streams_break) {
        for (uint32_t shard : {1, 2})
          d.Step(event::StreamDown{ShardId(shard), absl::UnavailableError("gone")});
      }
      absl::Duration waited;
      for (; d.Count("exit:") == 0 && waited < absl::Seconds(30);
           waited += absl::Milliseconds(100)) {
        d.Wait(absl::Milliseconds(100));
      }
      EXPECT_EQ(d.Count("exit:"), 1u) << d.text();
      EXPECT_LE(waited, absl::Seconds(4)) << d.text();
      EXPECT_EQ(d.Count("the coordinator did not answer in time"), 1u) << d.text();
      EXPECT_EQ(d.Count("abandon unit 1"), computes ? 1u : 0u) << d.text();
    }
  }
}

// It has nothing to tell, so it need not end with an error.
TEST(Session, AnIdleWorkersDrainThatNobodyAnswersIsComplete) {
  Driver d;
  d.Register();
  d.TakeJobAway();
  d.GiveOrders();
  d.Step(event::Drain{});
  for (int i = 0; i < 40 && d.Count("exit:") == 0; ++i) d.Wait(absl::Milliseconds(100));
  EXPECT_EQ(d.Count("exit: OK"), 1u) << d.text();
}

TEST(Session, ADrainIsNotCutShortWhileSomebodyAnswers) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Step(event::Drain{});
  for (int i = 0; i < 80; ++i) {  // a unit of eight seconds
    d.Wait(absl::Milliseconds(100));
    d.GiveOrders();
  }
  EXPECT_EQ(d.Count("abandon"), 0u);
  for (uint32_t slice : {2, 1, 0}) d.Gradient(1, slice);
  d.Step(event::UnitComputed{UnitId(1), {{}}, true, ""});
  d.Ack();  // pushes and closes
  d.Ack();  // parks
  d.Wait(absl::Milliseconds(100));
  d.GiveOrders();
  d.Step(event::Tick{});
  EXPECT_EQ(d.Count("exit: OK"), 1u) << d.text();
}

TEST(Session, DrainsAndExits) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.AddLease(12, Item(0, 1));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Gradient(1, 2);
  d.Forget();
  d.Step(event::Drain{});
  d.Gradient(1, 1);
  d.Gradient(1, 0);
  d.Step(event::UnitComputed{UnitId(1), {{}}, true, ""});
  d.Ack();
  d.Ack();
  d.Wait(absl::Milliseconds(50));
  d.GiveOrders();
  d.Step(event::Tick{});
  ExpectGolden(d, "drain");
}

// The job goes on without it: others get the lease.
TEST(Session, ALostDeviceEndsTheUnitAndTheWorkerLeaves) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Gradient(1, 2);
  d.Step(event::UnitFailed{UnitId(1), absl::UnavailableError("the GPU is lost"), true});
  d.Ack();  // the push
  d.Ack();  // parks
  for (int i = 0; i < 20 && d.Count("exit:") == 0; ++i) {
    d.Wait(absl::Milliseconds(50));
    d.GiveOrders();
  }
  EXPECT_EQ(d.Count("abandon unit 1"), 1u) << d.text();
  EXPECT_EQ(d.Count("park partition"), 2u) << d.text();
  EXPECT_EQ(d.Count("exit: UNAVAILABLE: the GPU is lost"), 1u) << d.text();
  EXPECT_EQ(d.Count("fault"), 0u) << d.text();
}

// Nothing is wrong with the job.
TEST(Session, ADeviceLostWhileAJobIsPreparedMakesTheWorkerLeave) {
  Driver d;
  d.Register();
  d.GiveOrders();
  d.Step(event::JobPrepared{
      {JobUid(7), 0}, absl::UnavailableError("the GPU is lost"), {}, /*device_lost=*/true});
  EXPECT_EQ(d.Count("close job 7"), 1u) << d.text();
  for (int i = 0; i < 20 && d.Count("exit:") == 0; ++i) {
    d.Wait(absl::Milliseconds(50));
    d.GiveOrders();  // still with the job
  }
  EXPECT_EQ(d.Count("prepare job"), 1u) << d.text();
  EXPECT_GT(d.Count("drained"), 0u) << d.text();
  EXPECT_EQ(d.Count("exit: UNAVAILABLE: the GPU is lost"), 1u) << d.text();
  EXPECT_EQ(d.Count("fault"), 0u) << d.text();
}

// What hinders preparing is told as what it is: only a worker without memory may be replaced.
TEST(Session, SaysWhyItCannotPrepareAJob) {
  const std::pair<absl::Status, const char*> cases[] = {
      {absl::ResourceExhaustedError("needs 3 GiB"), "fault NO_ROOM: worker w: needs 3 GiB"},
      {absl::NotFoundError("no such file"), "fault DATA: worker w: no such file"},
      {absl::DataLossError("a short file"), "fault DATA: worker w: a short file"},
      {absl::UnavailableError("what is stored is out of reach"),
       "fault MODEL: worker w: what is stored is out of reach"},
      {absl::InvalidArgumentError("no such layer"), "fault MODEL: worker w: no such layer"}};
  for (const auto& [status, fault] : cases) {
    Driver d;
    d.Register();
    d.GiveOrders();
    d.Step(event::JobPrepared{{JobUid(7), 0}, status, {}});
    d.Wait(absl::Milliseconds(50));
    EXPECT_GT(d.Count(fault), 0u) << d.text();
    EXPECT_EQ(d.Count("exit:"), 0u) << d.text();
    // Once the job is taken away it is ready for another.
    JobDescription next = d.orders().job();
    next.mutable_run()->set_job_uid(8);
    d.TakeJobAway();
    d.GiveOrders();
    EXPECT_EQ(d.Count("close job 7"), 1u) << d.text();
    *d.orders().mutable_job() = next;
    d.GiveOrders();
    EXPECT_EQ(d.Count("prepare job 8"), 1u) << d.text();
  }
}

// L4 of the trials: what a worker has to tell grows while no coordinator takes it, and a report is
// a message.
TEST(Session, WhatNobodyTakesIsToldInPartsAndHasAnEnd) {
  Driver d(PolicyKind::kSsp, {.name = "w", .metrics_per_report = 3, .metrics_waiting = 10});
  d.Serve();
  for (uint64_t unit = 1; unit <= 12; ++unit) {
    d.orders().clear_leases();
    d.AddLease(unit, Item(0, unit % 4));
    d.GiveOrders(/*taken=*/0);
    d.Ack();
    d.Values();
    d.Compute(unit);
    d.Ack();
    d.Ack();
    d.Wait(absl::Seconds(1));
    EXPECT_LE(d.reported().finished_size(), 3);
    // A lease that is done before its sums are told would be granted again.
    EXPECT_EQ(d.reported().leases_done_size(), unit <= 3 ? 1 : 0) << unit;
    EXPECT_EQ(d.reported().leases_held_size(), unit <= 3 ? 0 : 1) << unit;
  }
  d.orders().clear_leases();
  std::vector<int> parts;
  std::vector<uint64_t> items;
  for (bool more = true; more;) {
    const WorkerReport report = d.reported();
    more = report.finished_size() > 0;
    parts.push_back(report.finished_size());
    for (const StepMetrics& m : report.finished()) items.push_back(m.work().first() / 4);
    d.GiveOrders(report.sequence());
    d.Wait(absl::Seconds(1));
  }
  EXPECT_EQ(parts, (std::vector<int>{3, 3, 3, 1, 0}));
  EXPECT_EQ(items, (std::vector<uint64_t>{3, 0, 1, 2, 3, 0, 1, 2, 3, 0}))
      << "the oldest were given up";
}

// A job is described once. Who has not kept that asks for it, by not taking the orders.
TEST(Session, OrdersWhoseDescriptionItDoesNotHaveAreNotTaken) {
  Driver d;
  d.Register();
  const WorkerOrders whole = d.orders();
  d.orders().clear_job();
  d.orders().mutable_run()->set_job_uid(7);
  d.GiveOrders();
  EXPECT_EQ(d.reported().orders_seen(), 0u);
  EXPECT_EQ(d.Count("prepare job"), 0u);
  *d.orders().mutable_job() = whole.job();
  d.GiveOrders();
  EXPECT_EQ(d.Count("prepare job 7"), 1u);
  // From now on it may be left out, and so may what has not changed.
  WorkerOrders& orders = d.orders();
  orders.clear_job();
  orders.mutable_run()->set_job_uid(7);
  orders.clear_views();
  orders.set_views_unchanged(true);
  d.GiveOrders();
  EXPECT_EQ(d.reported().orders_seen(), orders.version());
  d.Step(event::JobPrepared{
      {JobUid(7), 0},
      absl::OkStatus(),
      {{PartitionId(0), 4, true}, {PartitionId(0), 2, true}, {PartitionId(1), 4, true}}});
  EXPECT_EQ(d.Count("connect 1 at ps-1") + d.Count("connect 2 at ps-2"), 2u) << d.text();
}

// What was in the way may be gone: a new incarnation prepares the job anew, and says nothing of the
// old fault.
TEST(Session, ANewIncarnationTriesAgainWhatTheOldOneCouldNotPrepare) {
  Driver d;
  d.Register();
  d.GiveOrders();
  d.Step(event::JobPrepared{{JobUid(7), 0}, absl::ResourceExhaustedError("needs 3 GiB"), {}});
  d.Wait(absl::Milliseconds(50));
  ASSERT_GT(d.Count("fault NO_ROOM"), 0u) << d.text();
  d.orders().set_rejoin(true);
  d.GiveOrders();
  d.orders().set_rejoin(false);
  d.Forget();
  d.set_incarnation(102);
  d.Step(event::Registered{WorkerId(1), Incarnation(102), Generation(1)});
  d.GiveOrders();
  d.Step(event::JobPrepared{{JobUid(7), 0}, absl::OkStatus(), {}});
  d.Wait(absl::Milliseconds(50));
  EXPECT_EQ(d.Count("fault"), 0u) << d.text();
}

// It has no orders yet, so nothing says that the job was taken away.
TEST(Session, ANewIncarnationTellsWhatItCouldNotPrepareBeforeItsFirstOrders) {
  Driver d;
  d.Register();
  d.GiveOrders();
  d.orders().set_rejoin(true);
  d.GiveOrders();
  d.orders().set_rejoin(false);
  d.set_incarnation(102);
  d.Step(event::Registered{WorkerId(1), Incarnation(102), Generation(1)});
  d.Step(event::JobPrepared{{JobUid(7), 0}, absl::ResourceExhaustedError("needs 3 GiB"), {}});
  d.Wait(absl::Milliseconds(50));
  EXPECT_GT(d.Count("fault NO_ROOM"), 0u) << d.text();
}

TEST(Session, RejoinsWhenItsIncarnationIsStale) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Gradient(1, 2);
  d.Forget();
  for (const FrameHeader& h : std::exchange(d.sent(), {})) {
    if (h.type == FrameType::kPush)
      d.Answer(h, FrameType::kError, Answer::kStaleIncarnation, 0, "not in roster 3");
  }
  d.Gradient(1, 1);
  d.Step(event::Orders{Incarnation(101), d.orders()});  // late, to the old incarnation
  d.set_incarnation(102);
  d.Step(event::Registered{WorkerId(1), Incarnation(102), Generation(1)});
  ExpectGolden(d, "rejoin");
}

TEST(Session, LeavesAJobThatWasTakenAway) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Forget();
  d.TakeJobAway();
  d.orders().clear_leases();
  d.GiveOrders();
  d.Compute(1);
  d.Ack();
  d.Ack();
  ExpectGolden(d, "leave");
}

// What it has of the earlier one counts for nothing: shards have dropped it.
TEST(Session, ALaterEraOfTheJobEndsTheEarlierAtOnce) {
  for (const bool leaves : {false, true}) {
    Driver d;
    d.Serve();
    d.AddLease(11, Item(0, 0));
    d.GiveOrders();
    d.Ack();
    d.Values();
    d.Compute(1);
    d.Wait(absl::Seconds(1));
    ASSERT_EQ(d.reported().finished_size(), 1) << d.text();
    JobDescription job = d.orders().job();
    d.orders().clear_leases();
    if (leaves) {
      d.TakeJobAway();
      d.GiveOrders(/*taken=*/0);
    }
    EXPECT_EQ(d.Count("close job"), 0u) << "pushes are open: " << d.text();
    job.mutable_run()->set_era(1);
    *d.orders().mutable_job() = job;
    d.SetRoster(1, {});
    d.GiveOrders(/*taken=*/0);
    EXPECT_EQ(d.Count("close job 7"), 1u) << d.text();
    EXPECT_EQ(d.Count("prepare job 7"), 2u) << d.text();
    d.Wait(absl::Seconds(1));
    EXPECT_EQ(d.reported().run().era(), 1u);
    EXPECT_FALSE(d.reported().prepared());
    EXPECT_EQ(d.reported().finished_size(), 0) << "losses of the earlier era are void";
  }
}

// A shard without the run sends no more values: the unit in hand would wait for them in vain.
TEST(Session, AShardWithoutTheRunEndsLeavingAtOnce) {
  for (const bool drain : {false, true}) {
    for (const Answer answer : {Answer::kStaleIncarnation, Answer::kStaleRun, Answer::kNotHosted}) {
      Driver d;
      d.Serve();
      d.AddLease(11, Item(0, 0));
      d.GiveOrders();
      d.Ack();
      d.Values({0, 1});
      ASSERT_EQ(d.sent().size(), 1u) << d.text();
      const FrameHeader pull = d.sent().front();
      if (drain) {
        d.Step(event::Drain{});
      } else {
        d.TakeJobAway();
        d.GiveOrders();
      }
      EXPECT_EQ(d.Count("close job"), 0u) << d.text();
      d.Answer(pull, FrameType::kError, answer, 0);
      // Where the job goes on, a shard that does not host it may do so soon.
      const size_t over = drain && answer == Answer::kNotHosted ? 0 : 1;
      EXPECT_EQ(d.Count("abandon unit 1"), over) << d.text();
      EXPECT_EQ(d.Count("close job 7"), over) << d.text();
      EXPECT_EQ(d.Count("warn"), 1 - over) << d.text();
      if (over == 1) continue;
      d.TakeJobAway();
      d.GiveOrders();
      EXPECT_EQ(d.Count("close job"), 0u) << d.text();
      d.Forget();
      d.Wait(absl::Milliseconds(100));
      EXPECT_EQ(d.Count("to shard 2: pull slice 2"), 1u) << d.text();
      d.Answer(pull, FrameType::kError, answer, 0);
      EXPECT_EQ(d.Count("abandon unit 1"), 1u) << d.text();
      EXPECT_EQ(d.Count("close job 7"), 1u) << d.text();
    }
  }
}

TEST(Session, NamesStepWorkerAndLayerOfALossThatIsNotFinite) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(1, 2));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Forget();
  d.Wait(absl::Seconds(1));
  d.Step(event::UnitComputed{UnitId(1), {}, false, "dense1"});
  EXPECT_EQ(d.Count("fault NON_FINITE: step 6 (epoch 1, micro-batches from 8), worker w (id 1): "
                    "the loss is not "
                    "finite; the first such output is layer 'dense1's; of train 1:[8,12)"),
            1u)
      << d.text();
}

// Serves, and computes unit 1 until its push is under way.
FrameHeader PushOfUnit1(Driver& d) {
  d.Serve();
  d.AddLease(11, Item(0, 1));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Gradient(1, 2);
  d.Wait(absl::Seconds(1));
  const FrameHeader push = d.sent().front();
  EXPECT_EQ(push.type, FrameType::kPush);
  return push;
}

TEST(Session, NamesStepWorkerAndParameterOfARefusedGradient) {
  Driver d;
  const FrameHeader push = PushOfUnit1(d);
  d.Forget();
  d.Answer(push, FrameType::kError, Answer::kNonFinite, 0, "dense1.weight[3] is nan");
  EXPECT_EQ(d.Count("fault NON_FINITE: step 1 (epoch 0, micro-batches from 4), worker w (id 1): "
                    "dense1.weight[3] is nan; of train 0:[4,8)"),
            1u)
      << d.text();
  EXPECT_EQ(d.Count("abandon unit 1"), 1u);
}

// Its shard tells the coordinator why: this worker is not to blame.
TEST(Session, APartitionThatHasStoppedIsNoFaultOfTheWorker) {
  Driver d;
  const FrameHeader push = PushOfUnit1(d);
  d.Answer(push, FrameType::kError, Answer::kStopped, 0, "the sum overflowed");
  EXPECT_EQ(d.Count("fault"), 0u) << d.text();
  EXPECT_EQ(d.Count("abandon unit 1"), 0u) << d.text();
}

// No orders come again that would take the job away.
TEST(Session, AFaultWhileAJobIsLeftEndsThat) {
  Driver d;
  const FrameHeader push = PushOfUnit1(d);
  d.TakeJobAway();
  d.GiveOrders();
  EXPECT_EQ(d.Count("close job"), 0u) << d.text();
  d.Answer(push, FrameType::kError, Answer::kNonFinite, 0, "dense1.weight[3] is nan");
  EXPECT_EQ(d.Count("abandon unit 1"), 1u) << d.text();
  EXPECT_EQ(d.Count("close job 7"), 1u) << d.text();
}

// This worker's memory or network damages what it sends: that is no fault of the job.
TEST(Session, FramesThatArriveDamagedAgainAndAgainAreThisWorkersFault) {
  Driver d;
  const FrameHeader push = PushOfUnit1(d);
  for (int i = 1; i <= 5; ++i) {
    EXPECT_EQ(d.Count("fault"), 0u) << i;
    d.Answer(push, FrameType::kError, Answer::kBadDigest, 0, "digest of the payload");
    d.Wait(absl::Milliseconds(50));
  }
  EXPECT_GT(d.Count("fault DAMAGED: worker w: 5 copies of "), 0u) << d.text();
}

// Its bytes would not be the slice's: a text may be longer than the slice.
TEST(Session, RefusesAValueThatIsNotDense) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 1));
  d.GiveOrders();
  d.Ack();
  d.set_value_kind(PayloadKind::kText);
  d.Values({0});
  d.Wait(absl::Seconds(1));
  EXPECT_EQ(d.Count("install"), 0u) << d.text();
  EXPECT_EQ(d.Count("fault INTERNAL: a shard answered the pull of slice 0"), 1u) << d.text();
}

TEST(Session, IgnoresOrdersOfAnOlderGeneration) {
  Driver d;
  d.Serve();
  d.orders().set_generation(3);
  d.GiveOrders();
  d.Forget();
  d.orders().set_generation(2);
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  EXPECT_EQ(d.Count("enter"), 0u) << d.text();
  d.orders().set_generation(3);
  d.GiveOrders();
  EXPECT_EQ(d.Count("enter"), 2u) << d.text();
}

TEST(Session, IgnoresOrdersThatWereOvertaken) {
  Driver d;
  d.Serve();
  const WorkerOrders old = d.orders();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Forget();
  d.Step(event::Orders{Incarnation(101), old});
  d.Ack();
  EXPECT_EQ(d.Count("compute unit 1"), 1u) << d.text();
}

TEST(Session, WaitsWhereAViewIsStaleAndGoesToTheNewPrimary) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Forget();
  const FrameHeader enter = d.sent().front();
  d.Answer(enter, FrameType::kError, Answer::kStaleView, 0);
  EXPECT_EQ(d.Count("to shard"), 0u) << d.text();
  d.orders().mutable_views(0)->set_number(2);
  d.orders().mutable_views(0)->set_primary(2);
  d.GiveOrders();
  EXPECT_EQ(d.Count("disconnect 1"), 1u) << d.text();
  EXPECT_EQ(d.Count("to shard 2: enter partition 0"), 1u) << d.text();
}

TEST(Session, AViewWithAnotherBackupSendsNothingAgain) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Forget();
  d.orders().mutable_views(0)->set_number(2);
  d.orders().mutable_views(0)->set_backup(2);
  d.GiveOrders();
  EXPECT_EQ(d.Count("to shard"), 0u) << d.text();
  EXPECT_EQ(d.Count("disconnect"), 0u) << d.text();
  d.Ack();
  EXPECT_GT(d.Count("compute unit 1"), 0u) << d.text();
}

TEST(Session, TriesAgainWhatIsNotHostedYet) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Answer(d.sent().front(), FrameType::kError, Answer::kNotHosted, 0);
  d.Forget();
  d.Wait(absl::Milliseconds(10));
  EXPECT_EQ(d.Count("to shard 1: enter"), 0u);
  d.Wait(absl::Milliseconds(100));
  EXPECT_EQ(d.Count("to shard 1: enter"), 1u) << d.text();
}

TEST(Session, ARefusalIsLoggedOnceForEachShardAndReason) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  const std::vector<FrameHeader> pulls = d.sent();
  ASSERT_EQ(pulls.size(), 3u);
  for (int round = 0; round < 2; ++round) {
    for (const FrameHeader& pull : pulls) {
      d.Answer(pull, FrameType::kError, Answer::kNotHosted, 0, "not here");
      d.Wait(absl::Seconds(3));
    }
  }
  EXPECT_EQ(d.Count("warn: shard 1 refuses"), 1u) << d.text();
  EXPECT_EQ(d.Count("warn: shard 2 refuses"), 1u) << d.text();
  d.Answer(pulls[0], FrameType::kError, Answer::kStaleView, 0, "a new view");
  EXPECT_EQ(d.Count("warn: shard 1 refuses"), 2u) << d.text();
}

TEST(Session, ReportsUntilTaken) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Compute(1);
  d.Ack();
  d.Wait(absl::Seconds(1));
  for (int i = 0; i < 2; ++i) {
    d.Forget();
    d.Step(event::ReportFailed{Incarnation(101), absl::UnavailableError("lost")});
    d.Step(event::ReportFailed{Incarnation(101), absl::UnavailableError("lost")});
    d.Wait(absl::Seconds(5));
    EXPECT_GE(d.Count("done {11} finished train 0:[0,4)"), 1u) << d.text();
  }
  d.orders().clear_leases();
  d.GiveOrders();
  d.Forget();
  d.GiveOrders();
  EXPECT_EQ(d.Count("done {"), 0u) << d.text();
  EXPECT_EQ(d.Count("finished"), 0u) << d.text();
}

TEST(Session, AsksForDataToBeInspectedOnce) {
  Driver d;
  d.Register();
  d.TakeJobAway();
  d.orders().add_inspect()->set_request(5);
  d.GiveOrders();
  d.GiveOrders();
  EXPECT_EQ(d.Count("  inspect 5"), 1u) << d.text();
  Inspection inspection;
  inspection.set_request(5);
  d.Step(event::Inspected{inspection});
  d.Wait(absl::Seconds(1));
  EXPECT_GE(d.Count("inspected 5"), 2u) << d.text();
}

// BSP: the shards are further than the step that this worker asks for: it asks where they are.
TEST(Session, EntersAgainWhenItsStepIsGone) {
  Driver d(PolicyKind::kBsp);
  d.orders().set_training_open(true);
  d.Serve();
  d.Ack(0);
  d.Forget();
  const auto pull = std::find_if(d.sent().begin(), d.sent().end(),
                                 [](const FrameHeader& h) { return h.type == FrameType::kPull; });
  ASSERT_NE(pull, d.sent().end());
  const FrameHeader request = *pull;
  d.sent().clear();
  d.Answer(request, FrameType::kError, Answer::kStaleClock, 3);
  EXPECT_EQ(d.Count("abandon unit 1"), 1u);
  EXPECT_EQ(d.Count(": enter"), 2u) << d.text();
  d.Ack(2);
  EXPECT_EQ(d.Count("compute unit 2: train 0:[8,12) clock 2 step 2"), 1u) << d.text();
}

TEST(Session, ExitsWhenRefusedByName) {
  Driver d;
  d.Step(event::Tick{});
  d.Step(event::RegisterFailed{absl::UnavailableError("connection refused")});
  EXPECT_EQ(d.Count("exit:"), 0u);
  d.Wait(absl::Seconds(1));
  EXPECT_EQ(d.Count("  register 0"), 2u) << d.text();
  d.Step(event::RegisterFailed{absl::FailedPreconditionError("protocol 2 is not 1")});
  EXPECT_EQ(d.Count("exit: FAILED_PRECONDITION: protocol 2 is not 1"), 1u);
}

}  // namespace
}  // namespace starling::session
