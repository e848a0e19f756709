// Drives a session by hand: says what comes in, keeps what goes out, and answers as shards would.
#ifndef STARLING_WORKER_CORE_TESTING_DRIVER_H_
#define STARLING_WORKER_CORE_TESTING_DRIVER_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/core/session.h"
#include "worker/core/testing/transcript.h"

namespace starling::session {

// A worker of a job with 3 slices in 2 partitions on 2 shards. Remembers what was sent, so that a
// test can answer it.
class Driver {
 public:
  explicit Driver(PolicyKind policy = PolicyKind::kSsp, SessionOptions options = {.name = "w"})
      : session_(std::move(options)) {
    orders_.set_generation(1);
    JobDescription& job = *orders_.mutable_job();
    job.mutable_run()->set_job_uid(7);
    job.set_partitions(2);
    job.set_train_samples(64);
    job.mutable_spec()->mutable_batch()->set_global(16);
    job.mutable_spec()->mutable_batch()->set_micro_batches(4);
    job.mutable_spec()->mutable_stop()->set_epochs(2);
    for (uint32_t p = 0; p < 2; ++p) {
      View& view = *orders_.add_views();
      view.set_partition(p);
      view.set_number(1);
      view.set_primary(p + 1);
      view.set_primary_address(absl::StrCat("ps-", p + 1));
    }
    orders_.mutable_policy()->mutable_policy()->set_kind(static_cast<Policy::Kind>(policy));
    orders_.mutable_policy()->mutable_policy()->set_staleness(2);
    SetRoster(1, {});
  }

  void Step(const Event& event) {
    text_ += absl::StrCat("> ", ToString(event), "\n");
    Actions actions;
    session_.Step(event, now_, actions);
    for (const Action& action : actions) Take(action);
  }
  void Wait(absl::Duration d) {
    now_ += d;
    Step(event::Tick{});
  }

  void SetRoster(uint64_t number, const std::vector<uint32_t>& workers) {
    Roster& roster = *orders_.mutable_roster();
    roster.Clear();
    roster.set_number(number);
    for (uint32_t w : workers) {
      Member& m = *roster.add_members();
      m.set_replica(w);
      m.set_worker(w);
      m.set_incarnation(w == 1 ? incarnation_ : 100 + w);
    }
  }
  void AddLease(uint64_t id, WorkRange work) {
    Lease& lease = *orders_.add_leases();
    lease.set_id(id);
    lease.set_attempt(1);
    lease.mutable_work()->set_purpose(static_cast<Purpose>(work.purpose));
    lease.mutable_work()->set_epoch(work.epoch);
    lease.mutable_work()->set_first(work.first);
    lease.mutable_work()->set_count(work.count);
  }
  // Whole ones: nothing is left out.
  void GiveOrders() { GiveOrders(reported_.sequence()); }
  void GiveOrders(uint64_t taken) {
    if (orders_.has_job()) *orders_.mutable_run() = orders_.job().run();
    orders_.set_version(orders_.version() + 1);
    orders_.set_sequence_taken(taken);
    Step(event::Orders{Incarnation(incarnation_), orders_});
  }

  void Register() {
    Step(event::Tick{});
    Step(event::Registered{WorkerId(1), Incarnation(incarnation_), Generation(1)});
  }
  // To the point where the job is prepared, and this worker alone is a member.
  void Serve() {
    Register();
    GiveOrders();
    Step(event::JobPrepared{
        {JobUid(7), 0},
        absl::OkStatus(),
        {{PartitionId(0), 4, true}, {PartitionId(0), 2, true}, {PartitionId(1), 4, true}}});
    Up(1);
    Up(2);
    SetRoster(2, {1});
    GiveOrders();
  }
  void Up(uint32_t shard) { Step(event::StreamUp{ShardId(shard)}); }

  // Answers every open close, enter, park and push (of this slice; -1: any), as a shard would.
  void Ack(Clock clock = 0, int only_slice = -1) {
    for (const FrameHeader& h : std::exchange(sent_, {})) {
      const bool push = h.type == FrameType::kPush;
      if (h.type == FrameType::kPull ||
          (only_slice >= 0 && (!push || static_cast<int>(h.key.slice.value) != only_slice))) {
        sent_.push_back(h);
        continue;
      }
      Answer(h, FrameType::kAck, Answer::kCounted, clock);
    }
  }
  // Answers every open pull of these slices.
  void Values(std::vector<uint32_t> slices = {0, 1, 2}) {
    for (const FrameHeader& h : std::exchange(sent_, {})) {
      if (h.type == FrameType::kPull &&
          std::count(slices.begin(), slices.end(), h.key.slice.value) > 0) {
        Answer(h, FrameType::kValue, Answer::kNone, h.clock);
      } else {
        sent_.push_back(h);
      }
    }
  }
  void Answer(const FrameHeader& request, FrameType type, starling::Answer answer, Clock clock,
              std::string text = "") {
    FrameHeader h = request;
    h.type = type;
    h.answer = answer;
    h.clock = clock;
    h.flags = 0;
    h.min_lsn = Lsn();
    h.elements = type == FrameType::kValue ? (h.key.slice.value == 1 ? 2 : 4) : 0;
    if (type == FrameType::kValue) {
      h.kind = value_kind_;
      h.payload_bytes = h.elements * sizeof(float);
    }
    if (type != FrameType::kError) h.base_lsn = Lsn(++lsn_);
    const BufferId buffer(type == FrameType::kValue ? ++buffer_ : 0);
    Step(event::Frame{ShardId(h.partition.value + 1), h, buffer, std::move(text)});
  }
  void Gradient(uint64_t unit, uint32_t slice, uint32_t range = 0) {
    Step(event::SliceGradient{UnitId(unit), range, SliceId(slice), BufferId(++buffer_), 16});
  }
  void Compute(uint64_t unit, uint32_t ranges = 1) {
    for (uint32_t slice : {2, 1, 0}) {
      for (uint32_t r = 0; r < ranges; ++r) Gradient(unit, slice, r);
    }
    Step(event::UnitComputed{UnitId(unit), decltype(event::UnitComputed::metrics)(ranges), true,
                             ""});
  }

  void set_value_kind(PayloadKind kind) { value_kind_ = kind; }

  Activity activity() const { return session_.activity(); }
  void Forget() { text_.clear(); }
  const std::string& text() const { return text_; }
  std::vector<FrameHeader>& sent() { return sent_; }
  WorkerOrders& orders() { return orders_; }
  // As if there was no job for it.
  void TakeJobAway() {
    orders_.clear_job();
    orders_.clear_run();
  }
  const WorkerReport& reported() const { return reported_; }
  void set_incarnation(uint64_t incarnation) { incarnation_ = incarnation; }

  size_t Count(absl::string_view what) const {
    size_t n = 0;
    for (absl::string_view line : absl::StrSplit(text_, '\n')) {
      if (line.find(what) != absl::string_view::npos) ++n;
    }
    return n;
  }

 private:
  void Take(const Action& action) {
    text_ += absl::StrCat("  ", ToString(action), "\n");
    if (const auto* send = std::get_if<action::Send>(&action)) sent_.push_back(send->header);
    if (const auto* report = std::get_if<action::Report>(&action)) reported_ = report->report;
  }

  Session session_;
  absl::Time now_ = absl::UnixEpoch();
  WorkerOrders orders_;
  std::vector<FrameHeader> sent_;
  std::string text_;
  WorkerReport reported_;  // the last one
  uint64_t incarnation_ = 101;
  uint64_t buffer_ = 0;
  uint64_t lsn_ = 0;
  PayloadKind value_kind_ = PayloadKind::kDense;
};

}  // namespace starling::session

#endif  // STARLING_WORKER_CORE_TESTING_DRIVER_H_
