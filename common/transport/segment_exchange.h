// How the two ends of a stream exchange their segments: over a Unix socket of the server
// (docs/decisions/0015-shared-memory.md). Only the server's thread for it waits for a peer.
#ifndef STARLING_COMMON_TRANSPORT_SEGMENT_EXCHANGE_H_
#define STARLING_COMMON_TRANSPORT_SEGMENT_EXCHANGE_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/owned_fd.h"
#include "common/transport/segment.h"

namespace starling {

// The token's key in the opening metadata of a server's stream.
inline constexpr char kSegmentsKey[] = "starling-segments";

// The server's side: a thread that serves one connection at a time. Thread-safe. Any process of
// this network namespace can connect. Those of other users are sent away, but what they pass is
// closed by this thread, which they can make slow: then there are no segments for new streams.
class SegmentExchange {
 public:
  struct Pair {
    std::shared_ptr<Segment> own;
    std::shared_ptr<const Segment> peers;
  };
  // Called on the thread, at most once, when the peer can take the descriptor of `own`.
  using Ready = std::function<void(Pair)>;

  // kUnavailable: the system has no such sockets, or no sealed memory.
  static absl::StatusOr<std::unique_ptr<SegmentExchange>> Open();
  ~SegmentExchange();  // Stop
  SegmentExchange(const SegmentExchange&) = delete;
  SegmentExchange& operator=(const SegmentExchange&) = delete;

  // For the peer of one stream: the socket's name and a nonce, for BeginHandshake. Valid while
  // `stream` is there, until segments have been exchanged.
  std::string NewToken(std::weak_ptr<const void> stream, Ready ready);

  // When this returns `ready` is not called any more. Waits for the thread for a second at most;
  // one that hangs is left behind, and touches nothing of this. Idempotent.
  void Stop();

 private:
  struct Shared;
  explicit SegmentExchange(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  const std::shared_ptr<Shared> shared_;  // with the thread
  std::thread thread_;
};

// The client's side of a handshake. Not thread-safe.
struct SegmentHandshake {
  OwnedFd socket;
  std::shared_ptr<Segment> own;
};

// Passes a new segment to the server. Does not block. kNotFound: the server is not on this host, or
// not in this network namespace; kUnavailable: it has too much to do, or the system has no such
// memory now; kPermissionDenied: it is another user's; kInvalidArgument: not a token.
absl::StatusOr<SegmentHandshake> BeginHandshake(absl::string_view token);

// The server has hung up without an answer. Does not block.
bool IsRefused(const SegmentHandshake& handshake);

// The server's segment. Does not block: kUnavailable if it has not answered.
absl::StatusOr<std::shared_ptr<const Segment>> EndHandshake(const SegmentHandshake& handshake);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_SEGMENT_EXCHANGE_H_
