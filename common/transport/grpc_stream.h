// What both ends of a gRPC stream share: send queue, credit, parsing, and ending. Internal to
// common/transport; includes gRPC.
#ifndef STARLING_COMMON_TRANSPORT_GRPC_STREAM_H_
#define STARLING_COMMON_TRANSPORT_GRPC_STREAM_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/base/object_pool.h"
#include "common/transport/segment.h"
#include "common/transport/segment_blocks.h"
#include "common/transport/transport.h"

namespace starling {

inline constexpr char kExchangeMethod[] = "/starling.ParameterServer/Exchange";

// What a completion queue returns. Run is called once for each time that the tag was handed in; the
// tag decides whether it is deleted then.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  virtual void Run(bool ok) = 0;
};

// Serves `queue` until it is shut down and empty.
void ServeCompletions(grpc::CompletionQueue* queue);

struct Receipt;
struct KeptPayload;

// Life cycle: created; Open() once the peer is there; then one read (none while paused_: the
// handler has too much to do) and at most one write are in flight; the first failure on either side
// ends the stream (End, StartEnd); the subclass finishes the call, and Finished() reports it.
// Completions run on the queue's one thread; Send, Close and the release of payloads on any thread.
class GrpcStream : public FrameStream, public std::enable_shared_from_this<GrpcStream> {
 public:
  // `receipts`: preallocated for received frames that are not yet handled.
  GrpcStream(const SendQueue::Options& queue, std::shared_ptr<StreamHandler> handler,
             size_t receipts);
  ~GrpcStream() override;

  absl::Status Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) override;
  void Close(const absl::Status& why) override;
  PeerIdentity peer() const override;
  Stats stats() const override;

 protected:
  // Calls the subclass's method once; keeps the stream alive until then.
  template <typename Stream>
  void* Tag(void (Stream::*method)(bool ok)) {
    return NewTag(static_cast<void (GrpcStream::*)(bool)>(method));
  }

  // The call's own operations.
  virtual void StartRead(grpc::ByteBuffer* buffer, void* tag) = 0;
  virtual void StartWrite(const grpc::ByteBuffer& buffer, void* tag) = 0;
  // The stream must end with `why`: make outstanding operations fail soon, and let the call finish.
  // Called once, without the mutex, on any thread. `local`: as in End.
  virtual void StartEnd(const absl::Status& why, bool local) = 0;
  // After End, on the queue's thread: the last read or the last write is over.
  virtual void OnReadsDone() = 0;
  virtual void OnWritesDone() {}

  // Tensors go through the segment as soon as the peer has given blocks of it: OnFirstBlocks. Until
  // then it may be replaced, or given up with null.
  void UseOwnSegment(std::shared_ptr<Segment> own);
  bool granted() const;  // the peer has given blocks
  // Gives the peer all blocks of its segment. Thread-safe.
  void UsePeersSegment(std::shared_ptr<const Segment> peers);
  // On the queue's thread.
  virtual void OnFirstBlocks() = 0;
  // What went through shared memory had a wrong digest: no more goes through the own segment. Once,
  // on any thread.
  virtual void OnDamaged() {}

  void SetPeer(PeerIdentity peer);
  void SetHandler(std::shared_ptr<StreamHandler> handler);
  void Open();
  void Finished(const absl::Status& status);  // the call is over: tells the handler
  std::shared_ptr<StreamHandler> handler() const;
  // Ends the stream once. `local`: we decided it, so `why` is its status, whatever the call's
  // status is.
  void End(const absl::Status& why, bool local);
  bool ended() const;
  bool writing() const;
  bool paused() const;  // not reading: the handler has too much to do

 private:
  friend struct Receipt;
  class OwnTag;
  void* NewTag(void (GrpcStream::*method)(bool ok));
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void Pump();
  void Handled(uint32_t credit, uint32_t uncredited, uint64_t blocks);
  void CountSending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TooManyUnhandled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Receive(grpc::ByteBuffer* buffer);
  absl::Status Count(const FrameHeader& header, Receipt* receipt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeCredit(const FrameHeader& credit);
  void StopSharing();
  void Read();
  grpc::ByteBuffer ToByteBuffer(OutgoingFrame frame);

  // At most one read and one write are in flight: one tag each is enough.
  const std::unique_ptr<OwnTag> read_tag_, write_tag_;
  ObjectPool<Receipt> receipts_;
  ObjectPool<KeptPayload> kept_;
  grpc::ByteBuffer incoming_;  // for the read in flight
  size_t most_pieces_ = 0;     // about the most pieces of a frame; the queue's thread's

  mutable absl::Mutex mutex_;
  std::shared_ptr<StreamHandler> handler_ ABSL_GUARDED_BY(mutex_);
  PeerIdentity peer_ ABSL_GUARDED_BY(mutex_);
  SendQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  size_t writing_payload_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status local_end_ ABSL_GUARDED_BY(mutex_);
  size_t credit_ ABSL_GUARDED_BY(mutex_) = limits::kStreamInFlightBytesMax;
  size_t held_ ABSL_GUARDED_BY(mutex_) = 0;        // received and not yet returned as credit
  size_t returnable_ ABSL_GUARDED_BY(mutex_) = 0;  // of these, released by the handler
  // Received, with a payload that is not yet dropped.
  size_t unhandled_frames_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t uncredited_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of these, other than tensors
  // No read is in flight because of too many unhandled frames or bytes.
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  // Segments of shared memory; null: none, or over.
  struct Own {
    std::shared_ptr<Segment> segment;
    bool exists = false;   // for the peer: it may give blocks of it
    bool granted = false;  // it has
    FreeBlocks blocks;
  };
  Own own_ ABSL_GUARDED_BY(mutex_);
  struct Peers {
    std::shared_ptr<const Segment> segment;
    HeldBlocks blocks;
    bool give = false;  // its blocks, at once
  };
  Peers peers_ ABSL_GUARDED_BY(mutex_);
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  // Since when there has been a payload to send.
  std::optional<std::chrono::steady_clock::time_point> sending_since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_GRPC_STREAM_H_
