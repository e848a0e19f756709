#include "common/transport/grpc_stream.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace starling {
namespace {

// Credit is returned in lumps of at least this size. It is far below the limit, so that a sender
// never starves for credit that the receiver holds back.
constexpr size_t kCreditLumpBytes = 256 << 10;
static_assert(kCreditLumpBytes + limits::kFramePayloadBytesMax <= limits::kStreamInFlightBytesMax);

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Calls a method of a stream, for events that happen once or seldom.
class MethodTag : public CompletionTag {
 public:
  using Method = void (GrpcStream::*)(bool ok);
  MethodTag(std::shared_ptr<GrpcStream> stream, Method method)
      : stream_(std::move(stream)), method_(method) {}
  void Run(bool ok) override {
    const std::unique_ptr<MethodTag> self(this);
    (stream_.get()->*method_)(ok);
  }

 private:
  const std::shared_ptr<GrpcStream> stream_;
  const Method method_;
};

}  // namespace

class GrpcStream::OwnTag : public CompletionTag {
 public:
  explicit OwnTag(void (GrpcStream::*method)(bool ok)) : method_(method) {}
  void* For(std::shared_ptr<GrpcStream> stream) {
    stream_ = std::move(stream);
    return static_cast<CompletionTag*>(this);
  }
  void Run(bool ok) override {
    // The method may reuse this tag.
    const std::shared_ptr<GrpcStream> stream = std::move(stream_);
    (stream.get()->*method_)(ok);
  }

 private:
  void (GrpcStream::*const method_)(bool ok);
  std::shared_ptr<GrpcStream> stream_;
};

// Keeps a payload's bytes until gRPC drops the slice made of them.
struct KeptPayload {
  std::shared_ptr<const void> keep;
  std::shared_ptr<KeptPayload> self;
  void Recycle() { keep.reset(); }

  static void Drop(void* kept) {
    const std::shared_ptr<KeptPayload> last = std::move(static_cast<KeptPayload*>(kept)->self);
  }
};

// Up to three slices: the header and the payload's head copied, its bytes aliased.
grpc::ByteBuffer GrpcStream::ToByteBuffer(OutgoingFrame frame) {
  std::array<uint8_t, limits::kFrameHeaderBytes> header;
  EncodeFrameHeader(frame.header, header.data());
  grpc::Slice slices[3];
  size_t count = 0;
  slices[count++] = grpc::Slice(header.data(), header.size());
  const std::string& head = frame.payload.head;
  if (!head.empty()) slices[count++] = grpc::Slice(head.data(), head.size());
  if (frame.payload.bytes.empty()) return grpc::ByteBuffer(slices, count);
  const std::shared_ptr<KeptPayload> kept = kept_.Get();
  kept->keep = std::move(frame.payload.keep);
  kept->self = kept;
  slices[count++] = grpc::Slice(const_cast<uint8_t*>(frame.payload.bytes.data()),
                                frame.payload.bytes.size(), KeptPayload::Drop, kept.get());
  return grpc::ByteBuffer(slices, count);
}

void ServeCompletions(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
    static_cast<CompletionTag*>(tag)->Run(ok);
  }
}

// Pieces that a receipt reserves at first, and the most for which it keeps memory.
constexpr size_t kPiecesUsual = 16, kPiecesKeptMax = 1024;

// Owns a received payload's memory. Its end marks the frame as handled and returns the credit.
struct Receipt {
  std::vector<grpc::Slice> slices;
  std::vector<ReceivedPayload::Piece> pieces;  // of the slices, without the header
  std::shared_ptr<const Segment> segment;      // in which the payload lies; null: in the slices
  std::weak_ptr<GrpcStream> stream;
  uint32_t credit = 0;
  uint32_t uncredited = 0;
  uint64_t blocks = 0;  // of the segment

  Receipt() { Reserve(kPiecesUsual); }

  // Reserves memory for a frame of `count` pieces.
  void Reserve(size_t count) {
    slices.reserve(count);
    pieces.reserve(count);
  }

  void Recycle() {
    pieces.clear();
    slices.clear();
    if (slices.capacity() > kPiecesKeptMax) {
      slices.shrink_to_fit();
      pieces.shrink_to_fit();
    }
    segment.reset();
    const std::weak_ptr<GrpcStream> of = std::move(stream);
    if (const std::shared_ptr<GrpcStream> still_there = of.lock()) {
      still_there->Handled(credit, uncredited, blocks);
    }
    credit = uncredited = 0;
    blocks = 0;
  }
};

GrpcStream::GrpcStream(const SendQueue::Options& queue, std::shared_ptr<StreamHandler> handler,
                       size_t receipts)
    : read_tag_(new OwnTag(&GrpcStream::OnRead)),
      write_tag_(new OwnTag(&GrpcStream::OnWritten)),
      receipts_(receipts),
      handler_(std::move(handler)),
      queue_(queue) {}

GrpcStream::~GrpcStream() = default;

void* GrpcStream::NewTag(void (GrpcStream::*method)(bool ok)) {
  return static_cast<CompletionTag*>(new MethodTag(shared_from_this(), method));
}

void GrpcStream::Read() { StartRead(&incoming_, read_tag_->For(shared_from_this())); }

absl::Status GrpcStream::Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) {
  if (payload.size() != header.payload_bytes || header.blocks != 0) {
    return absl::InternalError(absl::StrCat("frame says ", header.payload_bytes,
                                            " payload bytes and has ", payload.size()));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return absl::UnavailableError("the stream is over");
    const absl::Status status = queue_.Push({header, std::move(payload)}, urgency);
    if (!status.ok()) return status;
    CountSending();
  }
  Pump();
  return absl::OkStatus();
}

void GrpcStream::Close(const absl::Status& why) {
  std::shared_ptr<StreamHandler> dropped;
  {
    absl::MutexLock lock(&mutex_);
    dropped.swap(handler_);
  }
  if (absl::IsDataLoss(why)) StopSharing();
  End(why.ok() ? absl::CancelledError("closed") : why, true);
}

PeerIdentity GrpcStream::peer() const {
  absl::MutexLock lock(&mutex_);
  return peer_;
}

FrameStream::Stats GrpcStream::stats() const {
  absl::MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.queued_frames = queue_.frames();
  stats.queued_payload_bytes = queue_.payload_bytes();
  stats.writing_payload_bytes = writing_payload_bytes_;
  if (sending_since_.has_value()) stats.sending_seconds += SecondsSince(*sending_since_);
  return stats;
}

// Called after each change of the send queue.
void GrpcStream::CountSending() {
  const bool sending = !ended_ && (writing_payload_bytes_ > 0 || queue_.payload_bytes() > 0);
  if (sending == sending_since_.has_value()) return;
  if (sending) {
    sending_since_ = std::chrono::steady_clock::now();
  } else {
    stats_.sending_seconds += SecondsSince(*std::exchange(sending_since_, std::nullopt));
  }
}

void GrpcStream::SetPeer(PeerIdentity peer) {
  absl::MutexLock lock(&mutex_);
  peer_ = std::move(peer);
}

void GrpcStream::SetHandler(std::shared_ptr<StreamHandler> handler) {
  absl::MutexLock lock(&mutex_);
  if (!ended_) handler_ = std::move(handler);
}

std::shared_ptr<StreamHandler> GrpcStream::handler() const {
  absl::MutexLock lock(&mutex_);
  return handler_;
}

bool GrpcStream::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

bool GrpcStream::writing() const {
  absl::MutexLock lock(&mutex_);
  return writing_;
}

bool GrpcStream::paused() const {
  absl::MutexLock lock(&mutex_);
  return paused_;
}

void GrpcStream::Open() {
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_) open_ = true;
  }
  Read();
  Pump();
}

void GrpcStream::OnRead(bool ok) {
  if (!ok) {
    End(absl::UnavailableError("the peer ended the stream"), false);
    OnReadsDone();
    return;
  }
  grpc::ByteBuffer buffer;
  buffer.Swap(&incoming_);
  if (!ended()) {
    const absl::Status status = Receive(&buffer);
    if (!status.ok()) End(status, true);
  }
  {
    absl::MutexLock lock(&mutex_);
    paused_ = !ended_ && TooManyUnhandled();
    if (paused_) return;
  }
  Read();
}

bool GrpcStream::TooManyUnhandled() const {
  return unhandled_frames_ >= limits::kStreamFramesUnhandledMax ||
         uncredited_bytes_ >= limits::kStreamUncreditedBytesMax;
}

absl::Status GrpcStream::Receive(grpc::ByteBuffer* buffer) {
  std::shared_ptr<Receipt> receipt = receipts_.Get();
  const size_t length = buffer->Length();
  if (length < limits::kFrameHeaderBytes || length > limits::kFrameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("frame: length must be ",
                                                   limits::kFrameHeaderBytes, " to ",
                                                   limits::kFrameBytesMax, ", not ", length));
  }
  receipt->Reserve(most_pieces_);  // so all soon have room for the most pieces so far
  if (!buffer->Dump(&receipt->slices).ok()) return absl::InternalError("cannot read the buffer");
  buffer->Clear();
  most_pieces_ = std::clamp(std::bit_ceil(receipt->slices.size()), most_pieces_, kPiecesKeptMax);

  std::array<uint8_t, limits::kFrameHeaderBytes> bytes;
  size_t filled = 0;
  for (const grpc::Slice& slice : receipt->slices) {
    ReceivedPayload::Piece piece(slice.begin(), slice.size());
    if (filled < bytes.size()) {
      const size_t take = std::min(bytes.size() - filled, piece.size());
      std::memcpy(bytes.data() + filled, piece.data(), take);
      filled += take;
      piece.remove_prefix(take);
    }
    if (!piece.empty()) receipt->pieces.push_back(piece);
  }
  FrameHeader header;
  if (const absl::Status status = DecodeFrameHeader(bytes, &header); !status.ok()) return status;
  const size_t came = length - bytes.size();
  if (came != (header.blocks == 0 ? header.payload_bytes : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame: payload_bytes says ", header.payload_bytes, ", but ", came, " came",
                     header.blocks == 0 ? "" : " beside shared memory"));
  }
  // Behind the header came what the peer wrote to its segment, and what it read of ours is read.
  if (header.blocks != 0) std::atomic_thread_fence(std::memory_order_acquire);
  if (header.type == FrameType::kCredit) return TakeCredit(header);
  if (header.answer == Answer::kBadDigest) StopSharing();  // what is sent again is sent otherwise

  std::shared_ptr<StreamHandler> handler;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = Count(header, receipt.get());
    if (!status.ok()) return status;
    handler = handler_;
  }
  if (handler != nullptr) {
    const bool shared = header.blocks != 0;
    header.blocks = 0;  // the transport's alone
    const absl::Span<const ReceivedPayload::Piece> pieces = receipt->pieces;
    handler->OnFrame(header, ReceivedPayload(pieces, std::move(receipt), shared));
  }
  return absl::OkStatus();
}

// Counts a frame as received, or refuses it and changes nothing.
absl::Status GrpcStream::Count(const FrameHeader& header, Receipt* receipt) {
  const bool credited = NeedsCredit(header);
  if (credited && held_ + header.payload_bytes > limits::kStreamInFlightBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the peer sent more than its credit of ",
                                                     limits::kStreamInFlightBytesMax, " bytes"));
  }
  if (header.blocks != 0) {
    if (peers_.segment == nullptr)
      return absl::InvalidArgumentError("frame: blocks of shared memory, but the stream has none");
    if (!peers_.blocks.Use(header.blocks))
      return absl::InvalidArgumentError("frame: blocks of shared memory that are not free");
    receipt->segment = peers_.segment;
    receipt->blocks = header.blocks;
    receipt->pieces.emplace_back(peers_.segment->At(header.blocks), header.payload_bytes);
    stats_.shared_payload_bytes += header.payload_bytes;
  }
  stats_.received_payload_bytes += header.payload_bytes;
  receipt->stream = weak_from_this();
  receipt->credit = credited ? header.payload_bytes : 0;
  receipt->uncredited =
      static_cast<uint32_t>(limits::kFrameHeaderBytes) + (credited ? 0 : header.payload_bytes);
  held_ += receipt->credit;
  ++unhandled_frames_;
  uncredited_bytes_ += receipt->uncredited;
  return absl::OkStatus();
}

absl::Status GrpcStream::TakeCredit(const FrameHeader& credit) {
  bool first = false;
  {
    absl::MutexLock lock(&mutex_);
    if (credit_ + credit.elements > limits::kStreamInFlightBytesMax) {
      return absl::InvalidArgumentError("frame: credit for more than was sent");
    }
    if (credit.blocks != 0 && (!own_.exists || !own_.blocks.Add(credit.blocks)))
      return absl::InvalidArgumentError("frame: credit for blocks that are not in use");
    first = credit.blocks != 0 && !std::exchange(own_.granted, true);
    credit_ += credit.elements;
  }
  if (first) OnFirstBlocks();
  Pump();
  return absl::OkStatus();
}

void GrpcStream::UseOwnSegment(std::shared_ptr<Segment> own) {
  absl::MutexLock lock(&mutex_);
  if (ended_ || own_.granted) return;
  own_.segment.swap(own);
  own_.exists = own_.exists || own_.segment != nullptr;
}

bool GrpcStream::granted() const {
  absl::MutexLock lock(&mutex_);
  return own_.granted;
}

void GrpcStream::StopSharing() {
  std::shared_ptr<const Segment> own;  // unmapped without the mutex
  {
    absl::MutexLock lock(&mutex_);
    if (!own_.granted || own_.segment == nullptr) return;
    own = std::move(own_.segment);
  }
  OnDamaged();
}

void GrpcStream::UsePeersSegment(std::shared_ptr<const Segment> peers) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    peers_.segment = std::move(peers);
    peers_.give = true;
  }
  Pump();
}

void GrpcStream::Handled(uint32_t credit, uint32_t uncredited, uint64_t blocks) {
  bool resume = false;
  {
    absl::MutexLock lock(&mutex_);
    --unhandled_frames_;
    uncredited_bytes_ -= uncredited;
    returnable_ += credit;
    if (blocks != 0) peers_.blocks.Release(blocks);
    resume = paused_ && !TooManyUnhandled();
    if (resume) paused_ = false;
  }
  if (resume) Read();
  if (credit > 0) Pump();
}

// Starts the next write, if none is in flight and a frame may be sent.
void GrpcStream::Pump() {
  std::optional<OutgoingFrame> next;
  std::shared_ptr<Segment> segment;  // null: the payload goes over the stream
  {
    absl::MutexLock lock(&mutex_);
    if (!open_ || writing_ || ended_) return;
    if (returnable_ >= kCreditLumpBytes || peers_.give) {
      next.emplace();
      next->header.type = FrameType::kCredit;
      next->header.elements = static_cast<uint32_t>(returnable_);
      if (peers_.segment != nullptr) next->header.blocks = peers_.blocks.Give();
      peers_.give = false;
      held_ -= returnable_;
      returnable_ = 0;
    } else {
      next = queue_.Pop(credit_);
      if (!next.has_value()) return;
      const size_t bytes = next->payload.size();
      if (NeedsCredit(next->header)) credit_ -= bytes;
      stats_.sent_payload_bytes += bytes;
      writing_payload_bytes_ = bytes;
      const bool large = bytes >= limits::kSharedPayloadBytesMin;
      if (own_.segment != nullptr && large && MayShare(next->header)) {
        next->header.blocks = own_.blocks.Take(bytes);
        if (next->header.blocks != 0) {
          segment = own_.segment;
          stats_.shared_payload_bytes += bytes;
        }
      }
    }
    writing_ = true;
  }
  if (segment != nullptr) {
    segment->Write(next->header.blocks, next->payload);
    next->payload = {};
  }
  // The peer reads the segment behind the header, and writes to its own behind the blocks that it
  // gets back. (What gRPC and the system do on the way orders both, too, but promises nothing.)
  std::atomic_thread_fence(std::memory_order_release);
  StartWrite(ToByteBuffer(*std::move(next)), write_tag_->For(shared_from_this()));
}

void GrpcStream::OnWritten(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    writing_payload_bytes_ = 0;
    CountSending();
  }
  // If the write failed, the read will, too, and report the end of the stream.
  if (ended()) {
    OnWritesDone();
  } else if (ok) {
    Pump();
  }
}

void GrpcStream::End(const absl::Status& why, bool local) {
  bool resume = false;
  std::vector<OutgoingFrame> dropped;  // destroyed at once, for their memory, without the mutex
  std::shared_ptr<const Segment> own, peers;  // unmapped without it, too
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    while (auto frame = queue_.Pop(SIZE_MAX)) dropped.push_back(*std::move(frame));
    CountSending();
    if (local) local_end_ = why;
    resume = std::exchange(paused_, false);
    own = std::move(own_.segment);
    peers = std::move(peers_.segment);
  }
  dropped.clear();
  StartEnd(why, local);
  if (resume) Read();  // fails, and so reports the end of reading
}

void GrpcStream::Finished(const absl::Status& status) {
  std::shared_ptr<StreamHandler> handler;
  absl::Status why = status.ok() ? absl::UnavailableError("the peer ended the stream") : status;
  std::vector<OutgoingFrame> dropped;  // destroyed without the mutex
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    if (!local_end_.ok()) why = local_end_;
    handler.swap(handler_);
    while (auto frame = queue_.Pop(SIZE_MAX)) dropped.push_back(*std::move(frame));
  }
  if (handler != nullptr) handler->OnDown(why);
}

}  // namespace starling
