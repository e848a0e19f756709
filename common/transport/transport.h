// Streams of frames between processes (docs/protocol.md, section 6): the data plane's view of the
// network. Implemented over gRPC.
#ifndef STARLING_COMMON_TRANSPORT_TRANSPORT_H_
#define STARLING_COMMON_TRANSPORT_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/transport/identity.h"
#include "common/transport/link_security.h"
#include "common/transport/payload.h"
#include "common/transport/send_queue.h"

namespace grpc {
class Service;
}

namespace starling {

// Receives the events of one stream. Calls come one at a time, on a transport thread that serves
// all streams: they must be quick and must not block.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // The peer has accepted the stream. Client side only.
  virtual void OnUp() {}
  // Frames come in the order in which they were sent. The header is well-formed and the payload has
  // its length; the digest is not checked yet. The frame counts as handled, and the peer gets its
  // credit back, when the payload's last copy is gone, even if it is empty: code that posts a frame
  // to another thread must pass the payload along. Beyond limits::kStreamFramesUnhandledMax or
  // kStreamUncreditedBytesMax reading pauses until some frames are handled, so a handler must not
  // hold a payload while it waits for a later frame.
  virtual void OnFrame(const FrameHeader& header, ReceivedPayload payload) = 0;
  // The stream is over; no more calls. Not called after FrameStream::Close.
  virtual void OnDown(const absl::Status& status) = 0;
};

// One bidirectional stream. Thread-safe.
class FrameStream {
 public:
  virtual ~FrameStream() = default;

  // Queues a frame; never blocks. Negative urgency, for small frames only, goes first; then the
  // lowest urgency, equals in order (SendQueue). Frames sent before OnUp wait for it. At most
  // limits::kStreamInFlightBytesMax of tensor bytes are in flight; the rest waits here. On error
  // the frame is dropped: kUnavailable if the stream is over, kResourceExhausted if the queue is
  // full (then Close: a frame is missing), kInternal if the payload has not header.payload_bytes
  // bytes.
  virtual absl::Status Send(const FrameHeader& header, OutgoingPayload payload,
                            int64_t urgency) = 0;
  absl::Status Send(const FrameHeader& header) { return Send(header, {}, -1); }

  // Ends the stream and drops queued frames. A server's peer sees `why`, unless it does not take
  // the frame being written within 1 s: that frame is cut off, and the peer sees kCancelled. No
  // callback starts after this returns, but one may still be running. Idempotent.
  virtual void Close(const absl::Status& why) = 0;

  // The other end; empty on the client side before OnUp.
  virtual PeerIdentity peer() const = 0;

  struct Stats {
    size_t queued_frames = 0;
    size_t queued_payload_bytes = 0;
    size_t writing_payload_bytes = 0;  // handed to the network, which has not taken all of it
    uint64_t sent_payload_bytes = 0;
    uint64_t received_payload_bytes = 0;
    uint64_t shared_payload_bytes = 0;  // of both, those that went through shared memory
    // Total time during which at least one payload was being written, or waited to be.
    double sending_seconds = 0;
  };
  virtual Stats stats() const = 0;
};

struct ConnectOptions {
  std::string address;                          // "host:port"
  std::string whom;                             // names the peer in errors: "shard ps-0"
  PeerRole role = PeerRole::kShard;             // a peer with another role is refused
  absl::Duration deadline = absl::Seconds(10);  // for the peer's acceptance, over all attempts
  SendQueue::Options queue = {};
};

// Opens streams; one thread serves all of them. Thread-safe.
class StreamClient {
 public:
  virtual ~StreamClient() = default;  // closes all streams; not from a callback
  // Returns at once and retries until the deadline. Then, or when the peer refuses, OnDown gets an
  // error with the peer, its address, the time waited and the last error.
  virtual std::shared_ptr<FrameStream> Connect(const ConnectOptions& options,
                                               std::shared_ptr<StreamHandler> handler) = 0;
};

// `shared_memory`: tensors go through it where a server offers it on the same host
// (docs/decisions/0015). Received payloads may then be shared.
std::unique_ptr<StreamClient> MakeStreamClient(
    const Identity& self, std::shared_ptr<const LinkSecurity> security = nullptr,
    bool shared_memory = false);

// A process's gRPC server: streams, plain services, health and reflection on one port. Every call
// is checked against its caller's role first (access.h). Thread-safe.
class RpcServer {
 public:
  // Called on the transport's thread for each new stream. An error is sent to the peer.
  using Accept = std::function<absl::StatusOr<std::shared_ptr<StreamHandler>>(
      std::shared_ptr<FrameStream> stream, const PeerIdentity& peer)>;

  struct Options {
    std::string listen;  // "127.0.0.1:0"; see CheckListenAddress
    std::shared_ptr<const LinkSecurity> security = nullptr;
    Identity self;
    std::vector<grpc::Service*> services;  // sync or callback; must outlive the server
    Accept accept;                         // empty: no streams
    SendQueue::Options queue = {};         // of each stream
    // Offers shared memory to workers. What comes from them may then be a shared payload.
    bool shared_memory = false;
  };

  virtual ~RpcServer() = default;  // Shutdown(2 s)
  virtual int port() const = 0;
  virtual std::string address() const = 0;    // "127.0.0.1:40123"
  virtual void SetServing(bool serving) = 0;  // what the health service answers
  // Refuses new calls, closes streams, waits up to `grace` for running calls, then cancels them.
  virtual void Shutdown(absl::Duration grace) = 0;
};

// kInvalidArgument as CheckListenAddress; kUnavailable: cannot listen, with the system's reason.
absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcServer(RpcServer::Options options);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_TRANSPORT_H_
