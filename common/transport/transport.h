// Streams of frames between processes (docs/protocol.md, section 6): what the data plane sees of
// the network. Implemented over gRPC; no gRPC type shows.
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

// Receives what happens on one stream. All calls come one after the other on a thread of the
// transport, which serves all streams: they must be quick and must not block.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // The peer has accepted the stream. Client side only.
  virtual void OnUp() {}
  // In the order in which they were sent. The header is well-formed and the payload has its length;
  // the digest is not yet checked. The frame is handled, and the peer gets credit for the payload,
  // when the payload's last copy is gone, also where it is empty: who posts a frame to another
  // thread takes it along. Beyond limits::kStreamFramesUnhandledMax or kStreamUncreditedBytesMax
  // nothing more is read until some are handled, so no frame may wait for a later one with its
  // payload in hand.
  virtual void OnFrame(const FrameHeader& header, ReceivedPayload payload) = 0;
  // The stream is over; nothing more comes. Not called after FrameStream::Close.
  virtual void OnDown(const absl::Status& status) = 0;
};

// One bidirectional stream. Thread-safe.
class FrameStream {
 public:
  virtual ~FrameStream() = default;

  // Queues a frame; never blocks. Negative urgency, for small frames alone, goes before everything;
  // then the lowest urgency, equals in order (SendQueue). Frames sent before OnUp wait for it. At
  // most limits::kStreamInFlightBytesMax of tensor bytes are under way; the rest waits here. On
  // error the frame is dropped: kUnavailable when the stream is over, kResourceExhausted when the
  // queue is full (then Close: a frame is missing). Checks that payload.bytes has
  // header.payload_bytes bytes.
  virtual absl::Status Send(const FrameHeader& header, OutgoingPayload payload,
                            int64_t urgency) = 0;
  absl::Status Send(const FrameHeader& header) { return Send(header, {}, -1); }

  // Ends the stream and drops what is queued. A server's peer sees `why`, unless a frame is being
  // written that it does not take within 1 s: that is cut off, and it sees kCancelled. No callback
  // begins after this returned, except one that is running already. Idempotent.
  virtual void Close(const absl::Status& why) = 0;

  // Who is at the other end; empty on the client side before OnUp.
  virtual PeerIdentity peer() const = 0;

  struct Stats {
    size_t queued_frames = 0;
    size_t queued_payload_bytes = 0;
    size_t writing_payload_bytes = 0;  // handed to the network, which has not taken all of it
    uint64_t sent_payload_bytes = 0;
    uint64_t received_payload_bytes = 0;
    // For so long at least one payload was being written, or waited for that.
    double sending_seconds = 0;
  };
  virtual Stats stats() const = 0;
};

struct ConnectOptions {
  std::string address;                          // "host:port"
  std::string whom;                             // for errors: "shard ps-0"
  PeerRole role = PeerRole::kShard;             // another is not talked to
  absl::Duration deadline = absl::Seconds(10);  // for the peer's acceptance, over all attempts
  SendQueue::Options queue = {};
};

// Opens streams; one thread serves them all. Thread-safe.
class StreamClient {
 public:
  virtual ~StreamClient() = default;  // closes all streams; must not be called from a callback
  // Returns at once and keeps trying until the deadline. Then, or when the peer refuses, OnDown
  // says for whom it waited, at which address, how long, and the last error.
  virtual std::shared_ptr<FrameStream> Connect(const ConnectOptions& options,
                                               std::shared_ptr<StreamHandler> handler) = 0;
};

std::unique_ptr<StreamClient> MakeStreamClient(
    const Identity& self, std::shared_ptr<const LinkSecurity> security = nullptr);

// A process's gRPC server: streams, plain services, health and reflection on one port. Every call
// is judged by its caller's role first (access.h). Thread-safe.
class RpcServer {
 public:
  // Called on the transport's thread for each new stream. An error is what the peer gets.
  using Accept = std::function<absl::StatusOr<std::shared_ptr<StreamHandler>>(
      std::shared_ptr<FrameStream> stream, const PeerIdentity& peer)>;

  struct Options {
    std::string listen;  // "127.0.0.1:0"; see CheckListenAddress
    std::shared_ptr<const LinkSecurity> security = nullptr;
    Identity self;
    std::vector<grpc::Service*> services;  // sync or callback; must outlive the server
    Accept accept;                         // empty: no streams
    SendQueue::Options queue = {};         // of each stream
  };

  virtual ~RpcServer() = default;  // Shutdown(2 s)
  virtual int port() const = 0;
  virtual std::string address() const = 0;    // "127.0.0.1:40123"
  virtual void SetServing(bool serving) = 0;  // what the health service answers
  // Refuses new calls, closes streams, and waits for running calls until `grace`, then cancels
  // them.
  virtual void Shutdown(absl::Duration grace) = 0;
};

// kInvalidArgument as CheckListenAddress; kUnavailable: cannot listen, with the system's reason.
absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcServer(RpcServer::Options options);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_TRANSPORT_H_
