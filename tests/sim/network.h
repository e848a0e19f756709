// Streams between workers and shards, unary calls to the coordinator, and their faults: delays,
// cuts that lose what is in flight in one or both directions, lost requests, lost replies,
// duplicates, reordering.
#ifndef STARLING_TESTS_SIM_NETWORK_H_
#define STARLING_TESTS_SIM_NETWORK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/frame.h"
#include "common/transport/payload.h"
#include "tests/sim/checker.h"
#include "tests/sim/world.h"

namespace starling::sim {

// Probabilities and delays of faults; all zero once faults have healed.
struct NetworkFaults {
  double cut = 0;        // per frame
  double corrupt = 0;    // per push: a changed value
  double forge = 0;      // per push: a forged one is sent ahead of it
  double call_lost = 0;  // per call: request
  double reply_lost = 0;
  double duplicate = 0;      // per call
  double slow = 0;           // per frame or call: a long delay
  double decision_lost = 0;  // per frame between shards; the same for duplicates and late frames
  absl::Duration slow_most = absl::ZeroDuration();
  absl::Duration shards_apart;  // each frame between shards takes this much longer
};

struct Message {
  FrameHeader header;
  ValuesPtr payload;  // of frames that are damaged or forged in flight
  ValueTruth truth;   // kValue
  // Without `payload`. Read in place when the message arrives, as by a network that sends late.
  OutgoingPayload bytes;
  uint64_t bytes_digest = 0;    // when the sender passed them on
  std::function<void()> wrote;  // the network has no more use for `bytes`
  bool accepted = false;        // no frame: the server has accepted the stream
};

class Network {
 public:
  explicit Network(World* world) : world_(world) {}
  ~Network();  // delivers nothing more

  NetworkFaults& faults() { return faults_; }

  // One end of a stream. Messages of a direction arrive in order, until the stream is cut.
  struct End {
    Process* process = nullptr;
    uint32_t life = 0;
    std::function<void(const Message&)> deliver;
    // At most once; nothing is delivered after it, and both functions are destroyed.
    std::function<void(const absl::Status&)> down;
  };
  class Stream {
   public:
    uint64_t id = 0;

   private:
    friend class Network;
    End ends[2];
    bool between_shards = false;
    absl::Time last[2] = {absl::InfinitePast(), absl::InfinitePast()};  // towards ends[i]
    bool down[2] = {false, false};
    bool cut = false;
  };
  using StreamPtr = std::shared_ptr<Stream>;

  // nullptr: the link between the two is cut.
  StreamPtr Open(End client, End server, bool between_shards);
  // To ends[to]: 0 the worker, 1 the shard.
  void Send(const StreamPtr& stream, int to, Message message);
  // Both ends learn of it, at different times; until then messages in flight may still arrive.
  void Cut(const StreamPtr& stream);
  // One end is gone (crash, disconnect): it hears nothing more, and the other learns of it.
  void Close(const StreamPtr& stream, int end,
             const absl::Status& why = absl::UnavailableError("the peer is gone"));

  // All streams with an end at `process`.
  void CutAllOf(const Process* process);
  // The process has died.
  void CloseAllOf(const Process* process);
  // Until then the two have no stream; both reach all others. One such pair at a time.
  void CutBetween(const Process* a, const Process* b, absl::Time until);

  // A frame between shards about a decision: it may be lost, duplicated, late or reordered.
  // `deliver` runs at the receiver.
  void SendDecision(Process* to, std::function<void()> deliver);

  // Carries a request to a server and its reply back. `serve` runs at the server, maybe twice, with
  // a function that answers. `done` runs at the caller once, with the first answer, or with nullopt
  // if none came in time.
  template <typename Reply>
  void Call(Process* caller, Process* server, std::function<void(std::function<void(Reply)>)> serve,
            std::function<void(std::optional<Reply>)> done) {
    auto state = std::make_shared<bool>(false);  // answered
    const auto finish = [state, done](std::optional<Reply> reply) {
      if (std::exchange(*state, true)) return;
      done(std::move(reply));
    };
    if (!server->alive) {
      world_->After(Delay(), caller, [finish] { finish(std::nullopt); });
      return;
    }
    world_->After(kCallDeadline, caller, [this, finish, state] {
      if (!*state) world_->Count("calls without answer");
      finish(std::nullopt);
    });
    if (caller->unheard_until > world_->now()) return world_->Count("fault: unheard call");
    // Never so many in a row that a live daemon looks dead, for its jobs would rightly fail.
    const bool may_fail = caller->calls_lost < kCallsLostInARowMost;
    if (may_fail && world_->Draw("lost request (call)", faults_.call_lost, caller->name)) {
      ++caller->calls_lost;
      return;
    }
    const int copies = world_->Draw("duplicate (call)", faults_.duplicate, caller->name) ? 2 : 1;
    const uint64_t number = ++caller->calls;
    for (int i = 0; i < copies; ++i) {
      world_->After(Delay(), server, [this, caller, serve, finish, may_fail, number] {
        if (number < caller->last_call_served) world_->Count("fault: reordered (call)");
        caller->last_call_served = std::max(caller->last_call_served, number);
        serve([this, caller, finish, may_fail](Reply reply) {
          if (caller->deaf_until > world_->now()) return world_->Count("fault: unheard reply");
          if (may_fail && world_->Draw("lost reply (call)", faults_.reply_lost, caller->name)) {
            ++caller->calls_lost;
            return;
          }
          caller->calls_lost = 0;
          auto held = std::make_shared<Reply>(std::move(reply));
          world_->After(Delay(), caller, [finish, held] { finish(std::move(*held)); });
        });
      });
    }
  }

  static constexpr absl::Duration kCallDeadline = absl::Milliseconds(300);
  static constexpr int kCallsLostInARowMost = 2;
  absl::Duration Delay();

 private:
  bool IsCut(const Process* a, const Process* b) const {
    return world_->now() < cut_until_ && cut_.contains(a) && cut_.contains(b);
  }
  void Deliver(const StreamPtr& stream, int to, const Message& message);
  void TellDown(const StreamPtr& stream, int end, absl::Duration delay, const absl::Status& why);
  std::vector<StreamPtr> StreamsOf(const Process* process);

  World* const world_;
  NetworkFaults faults_;
  std::map<uint64_t, std::weak_ptr<Stream>> open_;  // by id; some have expired
  uint64_t streams_ = 0;
  std::set<const Process*> cut_;  // CutBetween
  absl::Time cut_until_ = absl::InfinitePast();
  uint64_t decision_frames_ = 0;
  uint64_t last_decision_frame_ = 0;  // delivered
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_NETWORK_H_
