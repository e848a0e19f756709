// The transport on the simulated network; common/transport has the one over gRPC.
#ifndef STARLING_TESTS_SIM_SIM_STREAMS_H_
#define STARLING_TESTS_SIM_SIM_STREAMS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/transport/transport.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace starling::sim {

// Shows checkers the frames on all streams.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  // A server passes a VALUE to the stream. The truth about it travels with it.
  virtual ValueTruth OnValueSent(const Process& /*by*/, const FrameHeader& /*header*/,
                                 absl::Span<const uint8_t> /*bytes*/) {
    return {};
  }
  // Right before a client's frame leaves on `link`. May change it, and send others first.
  virtual void OnSending(const Process& /*by*/, const Network::StreamPtr& /*link*/,
                         Message* /*message*/) {}
  // Right before the receiver's handler gets the frame. `server`: the receiver is the server.
  virtual void OnDelivered(const Process& /*to*/, bool /*server*/, const FrameHeader& /*header*/,
                           const ReceivedPayload& /*payload*/, const ValueTruth& /*truth*/) {}
};

class SimFrameStream;

// All streams of a cluster.
class SimStreams {
 public:
  SimStreams(World* world, Network* network) : world_(world), network_(network) {}
  ~SimStreams();  // ends all streams; calls nothing
  SimStreams(const SimStreams&) = delete;
  SimStreams& operator=(const SimStreams&) = delete;

  void SetObserver(StreamObserver* observer) { observer_ = observer; }

  // Replaces limits::kStreamInFlightBytesMax as the flow window: the payload bytes of one direction
  // of a stream that are in flight or held by the receiver.
  void SetWindow(size_t bytes) { window_ = bytes; }

  // `process` accepts streams at `address`, in this life only.
  void Listen(Process* process, const std::string& address, RpcServer::Accept accept);
  void StopListening(const std::string& address) { listeners_.erase(address); }

  // The memory of a delivered push's payload, which the worker shares with the shard; each once.
  // Expired: the shard has dropped it, or the push did not come through shared memory.
  std::weak_ptr<std::vector<uint8_t>> TakeShared(const FrameHeader& push);

  // For this life of `process`.
  std::unique_ptr<StreamClient> MakeClient(Process* process, const Identity& self);

 private:
  friend class SimFrameStream;
  class Client;
  struct Listener {
    Process* process = nullptr;
    uint32_t life = 0;
    RpcServer::Accept accept;
  };

  using PushKey = std::tuple<Incarnation, PartitionId, uint64_t>;
  static PushKey KeyOf(const FrameHeader& push) {
    return {push.origin.incarnation, push.partition, push.request_id};
  }

  // nullptr: nothing listens there.
  Listener* FindListener(const std::string& address);
  void Attempt(const std::shared_ptr<SimFrameStream>& stream, absl::Time deadline);
  void ReachServer(const std::shared_ptr<SimFrameStream>& stream);

  World* const world_;
  Network* const network_;
  StreamObserver* observer_ = nullptr;
  size_t window_ = limits::kStreamInFlightBytesMax;
  std::map<std::string, Listener> listeners_;
  std::vector<std::weak_ptr<SimFrameStream>> streams_;
  std::map<PushKey, std::deque<std::weak_ptr<std::vector<uint8_t>>>> shared_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SIM_STREAMS_H_
