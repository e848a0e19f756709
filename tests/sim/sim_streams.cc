#include "tests/sim/sim_streams.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/transport/segment_blocks.h"
#include "common/version/version.h"

namespace starling::sim {
namespace {

constexpr absl::Duration kRetryPeriod = absl::Milliseconds(100);
// Of a segment. Few, so that some tensors find no room.
constexpr uint64_t kBlocks = 0b111;

uint64_t DigestOf(absl::Span<const uint8_t> bytes) {
  return bytes.empty() ? 0 : XXH3_64bits(bytes.data(), bytes.size());
}

// Reports and their answers. All else between shards has a number of its round.
bool IsOfDecisions(const FrameHeader& header) {
  return header.type == FrameType::kDecision ||
         (header.type == FrameType::kError && header.request_id == 0);
}

PeerIdentity PeerOf(const Identity& self) {
  return {self, std::string(ReleaseVersion()), ProtocolVersion()};
}

}  // namespace

// One end. It has a link once the server has accepted.
class SimFrameStream final : public FrameStream,
                             public std::enable_shared_from_this<SimFrameStream> {
 public:
  // `end`: 0 the client's, 1 the server's.
  SimFrameStream(SimStreams* streams, Process* process, int end, const PeerIdentity& peer,
                 const SendQueue::Options& queue)
      : streams_(streams),
        process_(process),
        life_(process->life),
        end_(end),
        peer_(peer),
        queue_(queue) {}

  using FrameStream::Send;
  absl::Status Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) override {
    if (payload.size() != header.payload_bytes) {
      return absl::InternalError(absl::StrCat("a header says ", header.payload_bytes,
                                              " payload bytes, there are ", payload.size()));
    }
    if (over_) return absl::UnavailableError("the stream is over");
    if (absl::Status pushed = queue_.Push({header, std::move(payload)}, urgency); !pushed.ok())
      return pushed;
    if (up_) Pump();
    return absl::OkStatus();
  }

  void Close(const absl::Status& why) override {
    if (std::exchange(over_, true)) return;
    const std::shared_ptr<StreamHandler> handler = std::move(handler_);
    DropQueue();
    if (link_ != nullptr) streams_->network_->Close(link_, end_, why);
  }

  PeerIdentity peer() const override { return peer_; }

  Stats stats() const override {
    Stats stats;
    stats.queued_frames = queue_.frames();
    stats.queued_payload_bytes = queue_.payload_bytes();
    stats.writing_payload_bytes = writing_bytes_;
    stats.sent_payload_bytes = sent_bytes_;
    stats.received_payload_bytes = received_bytes_;
    return stats;
  }

  // ---- For SimStreams ----
  struct Options {
    ConnectOptions connect;
    Identity self;
  };
  Options options;  // the client's

  void SetHandler(std::shared_ptr<StreamHandler> handler) { handler_ = std::move(handler); }
  bool over() const { return over_; }
  // Shards open streams to each other alone.
  bool between_shards() const {
    return (end_ == 0 ? options.self.role : peer_.identity.role) == PeerRole::kShard;
  }
  bool linked() const { return link_ != nullptr; }
  Process* process() const { return process_; }
  bool alive() const { return process_->alive && process_->life == life_; }

  void Link(Network::StreamPtr link, bool up) {
    link_ = std::move(link);
    up_ = up;
    if (up_) Pump();
  }
  Network::End MakeEnd() {
    return {process_, life_,
            [self = shared_from_this()](const Message& message) { self->Deliver(message); },
            [self = shared_from_this()](const absl::Status& why) { self->Down(why); }};
  }
  void SetOther(std::weak_ptr<SimFrameStream> other) { other_ = std::move(other); }
  // The other end may use its segment.
  void GiveBlocks() {
    const bool taken = other_.lock()->free_blocks_.Add(held_blocks_.Give() & kBlocks);
    STARLING_CHECK(taken, "blocks are given twice");
  }

  void Down(const absl::Status& why) {
    if (std::exchange(over_, true)) return;
    const std::shared_ptr<StreamHandler> handler = std::move(handler_);
    DropQueue();
    handler->OnDown(why);
  }
  // Calls nothing.
  void Abandon() {
    over_ = true;
    const std::shared_ptr<StreamHandler> handler = std::move(handler_);
    link_ = nullptr;  // its ends refer to the streams
    DropQueue();
  }

 private:
  // A payload that the receiver holds. When it is freed the sender gets credit.
  struct Received {
    std::vector<uint8_t> bytes;
    std::vector<ReceivedPayload::Piece> pieces;
    std::weak_ptr<SimFrameStream> sender;  // expired: needs no credit
    std::weak_ptr<SimFrameStream> receiver;
    uint64_t blocks = 0;  // of the segment, in which it came

    ~Received() {
      uint64_t given = 0;
      const std::shared_ptr<SimFrameStream> from = receiver.lock();
      if (from != nullptr && blocks != 0) {
        from->held_blocks_.Release(blocks);
        given = from->held_blocks_.Give();
      }
      const std::shared_ptr<SimFrameStream> to = sender.lock();
      if (to == nullptr || to->over_) return;
      to->streams_->world_->After(
          to->streams_->network_->Delay(), to->process_,
          [to, size = bytes.size(), given] { to->TakeCredit(size, given); });
    }
  };

  void TakeCredit(size_t bytes, uint64_t blocks) {
    in_flight_ -= std::min(in_flight_, bytes);
    if (!free_blocks_.Add(blocks)) {
      streams_->world_->Violate(Promise::kG8, "credit for blocks that are free");
    }
    if (!over_) Pump();
  }

  void DropQueue() {
    while (queue_.Pop(SIZE_MAX).has_value()) {
    }
  }

  // A frame may be larger than a small window. Then it goes alone, but between shards.
  size_t Credit() const {
    const bool any = between_shards() || in_flight_ == 0;
    const size_t window = any ? limits::kStreamInFlightBytesMax : streams_->window_;
    return window - std::min(window, in_flight_);
  }

  void Pump() {
    while (std::optional<OutgoingFrame> frame = queue_.Pop(Credit())) {
      Message message;
      message.header = frame->header;
      const absl::Span<const uint8_t> bytes = frame->payload.bytes;
      if (frame->header.type == FrameType::kValue && end_ == 1 && streams_->observer_ != nullptr)
        message.truth = streams_->observer_->OnValueSent(*process_, frame->header, bytes);
      const size_t size = frame->payload.size();
      if (NeedsCredit(frame->header)) in_flight_ += size;
      if (size > streams_->window_ && !between_shards())
        streams_->world_->Count("frames larger than their window");
      message.bytes_digest = DigestOf(bytes);
      if (between_shards() && IsOfDecisions(message.header)) {
        sent_bytes_ += size;
        message.bytes = std::move(frame->payload);
        SendDecision(std::move(message));
        continue;
      }
      if (between_shards() && message.header.type == FrameType::kAck) RepeatLate(message);
      writing_bytes_ += size;
      message.bytes = std::move(frame->payload);
      message.wrote = [self = weak_from_this(), size] {
        if (const auto sender = self.lock()) {
          sender->writing_bytes_ -= size;
          sender->sent_bytes_ += size;
        }
      };
      if (streams_->observer_ != nullptr) {
        if (end_ == 0) {
          streams_->observer_->OnSending(*process_, link_, &message);
        } else if (message.header.type == FrameType::kValue && !bytes.empty() &&
                   peer_.identity.role == PeerRole::kWorker &&
                   streams_->world_->Draw("corrupted value", streams_->network_->faults().corrupt,
                                          process_->name)) {
          Damage(&message);
        }
      }
      message.header.blocks = TakeBlocks(message.header);
      streams_->network_->Send(link_, 1 - end_, std::move(message));
    }
  }

  // Half of the tensors between workers and shards go through shared memory, while there is room.
  uint64_t TakeBlocks(const FrameHeader& header) {
    const PeerRole peer = peer_.identity.role;
    const bool with_worker =
        end_ == 0 ? options.self.role == PeerRole::kWorker : peer == PeerRole::kWorker;
    const bool may = with_worker && MayShare(header) && header.payload_bytes > 0;
    if (!may || header.request_id % 2 != 0) return 0;
    const uint64_t blocks = free_blocks_.Take(header.payload_bytes);
    if (blocks == 0) streams_->world_->Count("segments without room");
    return blocks;
  }

  // Changes a value but not the header's digest. For the checkers no value has come.
  void Damage(Message* message) {
    const absl::Span<const uint8_t> bytes = message->bytes.bytes;
    auto values = std::make_shared<Values>(bytes.size() / sizeof(float));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(values->data()));
    (*values)[streams_->world_->random().Below(values->size())] += 1;
    message->payload = std::move(values);
    message->truth = {};
  }

  // Reports and decisions may be lost, duplicated and late, which a stream alone does not do.
  void SendDecision(Message message) {
    const std::shared_ptr<SimFrameStream> to = other_.lock();
    if (to == nullptr) return;
    streams_->network_->SendDecision(to->process_,
                                     [to, held = std::move(message)] { to->Deliver(held); });
  }

  // What a backup said is heard again much later, as if its reader had been paused.
  void RepeatLate(const Message& message) {
    World& world = *streams_->world_;
    const std::shared_ptr<SimFrameStream> to = other_.lock();
    const double p = streams_->network_->faults().decision_lost;
    if (to == nullptr || !world.Draw("late answer of a backup", p, process_->name)) return;
    world.After(world.random().Between(absl::Milliseconds(1), absl::Seconds(3)), to->process_,
                [to, held = message] { to->Deliver(held); });
  }

  // Splits the payload into pieces at any byte.
  ReceivedPayload Receive(const Message& message) {
    absl::Span<const uint8_t> bytes = message.bytes.bytes;
    if (message.payload != nullptr) {
      bytes = {reinterpret_cast<const uint8_t*>(message.payload->data()),
               message.payload->size() * sizeof(float)};
    }
    auto received = std::make_shared<Received>();
    received->bytes.assign(message.bytes.head.begin(), message.bytes.head.end());
    received->bytes.insert(received->bytes.end(), bytes.begin(), bytes.end());
    if (NeedsCredit(message.header)) received->sender = other_;
    received_bytes_ += received->bytes.size();
    Random& random = streams_->world_->random();
    absl::Span<const uint8_t> left = received->bytes;
    while (!left.empty()) {
      const size_t cut =
          random.Chance(0.8) ? left.size() : 1 + random.Below(static_cast<uint64_t>(left.size()));
      received->pieces.push_back(left.subspan(0, cut));
      left.remove_prefix(cut);
    }
    // Code that reads a shared payload in place ends the process.
    const bool shared = message.header.blocks != 0;
    received->blocks = message.header.blocks;
    received->receiver = weak_from_this();
    if (shared && message.header.type == FrameType::kPush) {
      const std::shared_ptr<std::vector<uint8_t>> memory(received, &received->bytes);
      streams_->shared_[SimStreams::KeyOf(message.header)].push_back(memory);
    }
    const absl::Span<const ReceivedPayload::Piece> pieces = received->pieces;
    return {pieces, std::move(received), shared};
  }

  void Deliver(const Message& message) {
    if (message.wrote) message.wrote();
    if (over_) return;
    const std::shared_ptr<StreamHandler> handler = handler_;
    if (message.accepted) {
      up_ = true;
      handler->OnUp();
      if (!over_) Pump();
      return;
    }
    if (message.payload == nullptr && DigestOf(message.bytes.bytes) != message.bytes_digest) {
      streams_->world_->Violate(Promise::kBytes,
                                absl::StrCat("bytes of a frame changed before it arrived: ",
                                             FrameToString(message.header)));
    }
    if (message.header.blocks != 0 && !held_blocks_.Use(message.header.blocks)) {
      streams_->world_->Violate(Promise::kG8, "a frame names blocks that are not free");
      return;
    }
    ReceivedPayload payload = Receive(message);
    uint8_t encoded[limits::kFrameHeaderBytes];
    EncodeFrameHeader(message.header, encoded);
    FrameHeader decoded;
    if (absl::Status status = DecodeFrameHeader(encoded, &decoded); !status.ok()) {
      streams_->world_->Violate(Promise::kG8, absl::StrCat("a frame is not well-formed: ",
                                                           std::string(status.message())));
      return;
    }
    decoded.blocks = 0;  // the transport's alone
    if (streams_->observer_ != nullptr)
      streams_->observer_->OnDelivered(*process_, end_ == 1, decoded, payload, message.truth);
    handler->OnFrame(decoded, std::move(payload));
  }

  SimStreams* const streams_;
  Process* const process_;
  const uint32_t life_;
  const int end_;
  const PeerIdentity peer_;
  SendQueue queue_;
  std::shared_ptr<StreamHandler> handler_;
  Network::StreamPtr link_;
  std::weak_ptr<SimFrameStream> other_;
  bool up_ = false;
  bool over_ = false;
  FreeBlocks free_blocks_;
  HeldBlocks held_blocks_;
  size_t in_flight_ = 0;
  size_t writing_bytes_ = 0;
  uint64_t sent_bytes_ = 0;
  uint64_t received_bytes_ = 0;
};

std::weak_ptr<std::vector<uint8_t>> SimStreams::TakeShared(const FrameHeader& push) {
  const auto it = shared_.find(KeyOf(push));
  if (it == shared_.end()) return {};
  const std::weak_ptr<std::vector<uint8_t>> memory = it->second.front();
  it->second.pop_front();
  if (it->second.empty()) shared_.erase(it);
  return memory;
}

class SimStreams::Client final : public StreamClient {
 public:
  Client(SimStreams* streams, Process* process, const Identity& self)
      : streams_(streams), process_(process), self_(self) {}
  ~Client() override {
    for (const auto& known : opened_) {
      if (const auto stream = known.lock()) stream->Close(absl::CancelledError("shutting down"));
    }
  }

  std::shared_ptr<FrameStream> Connect(const ConnectOptions& options,
                                       std::shared_ptr<StreamHandler> handler) override {
    auto stream = std::make_shared<SimFrameStream>(
        streams_, process_, 0, PeerOf({options.role, options.address}), options.queue);
    stream->options = {options, self_};
    stream->SetHandler(std::move(handler));
    streams_->streams_.push_back(stream);
    std::erase_if(opened_, [](const auto& known) { return known.expired(); });
    opened_.push_back(stream);
    streams_->world_->After(
        streams_->network_->Delay(), process_,
        [streams = streams_, stream, deadline = streams_->world_->now() + options.deadline] {
          streams->Attempt(stream, deadline);
        });
    return stream;
  }

 private:
  SimStreams* const streams_;
  Process* const process_;
  const Identity self_;
  std::vector<std::weak_ptr<SimFrameStream>> opened_;
};

SimStreams::~SimStreams() {
  for (const auto& known : streams_) {
    if (const auto stream = known.lock()) stream->Abandon();
  }
}

void SimStreams::Listen(Process* process, const std::string& address, RpcServer::Accept accept) {
  listeners_[address] = {process, process->life, std::move(accept)};
}

std::unique_ptr<StreamClient> SimStreams::MakeClient(Process* process, const Identity& self) {
  return std::make_unique<Client>(this, process, self);
}

SimStreams::Listener* SimStreams::FindListener(const std::string& address) {
  const auto it = listeners_.find(address);
  if (it == listeners_.end()) return nullptr;
  const Listener& listener = it->second;
  return listener.process->alive && listener.process->life == listener.life ? &it->second : nullptr;
}

void SimStreams::Attempt(const std::shared_ptr<SimFrameStream>& stream, absl::Time deadline) {
  if (stream->over() || stream->linked()) return;
  const ConnectOptions& options = stream->options.connect;
  if (world_->now() >= deadline) {
    return stream->Down(absl::UnavailableError(
        absl::StrCat("waited for ", options.whom, " at ", options.address, ": nothing answers")));
  }
  if (Listener* const listener = FindListener(options.address)) {
    world_->After(network_->Delay(), listener->process, [this, stream] { ReachServer(stream); });
  }
  world_->After(kRetryPeriod, stream->process(),
                [this, stream, deadline] { Attempt(stream, deadline); });
}

void SimStreams::ReachServer(const std::shared_ptr<SimFrameStream>& client) {
  if (client->over() || client->linked() || !client->alive()) return;
  Listener* const listener = FindListener(client->options.connect.address);
  if (listener == nullptr) return;
  const PeerIdentity peer = PeerOf(client->options.self);
  auto server =
      std::make_shared<SimFrameStream>(this, listener->process, 1, peer, SendQueue::Options());
  const Network::StreamPtr link =
      network_->Open(client->MakeEnd(), server->MakeEnd(), client->between_shards());
  if (link == nullptr) return;
  streams_.push_back(server);
  client->SetOther(server);
  server->SetOther(client);
  client->GiveBlocks();
  server->GiveBlocks();
  client->Link(link, /*up=*/false);
  server->Link(link, /*up=*/true);
  auto handler = listener->accept(server, peer);
  if (!handler.ok()) return server->Close(handler.status());
  server->SetHandler(*std::move(handler));
  Message accepted;
  accepted.accepted = true;
  network_->Send(link, 0, std::move(accepted));
}

}  // namespace starling::sim
