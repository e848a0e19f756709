#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>
#include <spdlog/spdlog.h>

#include <optional>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/transport/grpc_stream.h"
#include "common/transport/grpc_util.h"
#include "common/transport/segment_exchange.h"

namespace starling {
namespace {

constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);
// Offers of a segment that fail for a passing reason are repeated, each after twice the time.
constexpr absl::Duration kOfferDelay = absl::Seconds(1);
constexpr int kOffersMax = 6;

// A client's streams that are not over yet.
class LiveStreams {
 public:
  void Add(std::shared_ptr<GrpcStream> stream) {
    absl::MutexLock lock(&mutex_);
    streams_.insert(std::move(stream));
  }
  void Remove(const std::shared_ptr<GrpcStream>& stream) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(stream);
  }
  // Closes all. From now on none waits for its connection.
  void Close(const absl::Status& why) {
    std::set<std::shared_ptr<GrpcStream>> streams;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      streams = streams_;
    }
    for (const std::shared_ptr<GrpcStream>& stream : streams) stream->Close(why);
  }
  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }
  void AwaitNone() const {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](const std::set<std::shared_ptr<GrpcStream>>* streams) { return streams->empty(); },
        &streams_));
  }

 private:
  mutable absl::Mutex mutex_;
  std::set<std::shared_ptr<GrpcStream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// What a client knows of servers and shared memory, by their addresses.
class SharedMemoryHistory {
 public:
  // What came through it was damaged: it is not used with this server any more.
  void AddDamaged(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    damaged_.insert(address);
  }
  bool IsDamaged(const std::string& address) const {
    absl::MutexLock lock(&mutex_);
    return damaged_.count(address) > 0;
  }
  // True once for each server: the log says once that there is none.
  bool FirstWithout(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    return without_.insert(address).second;
  }

 private:
  mutable absl::Mutex mutex_;
  std::set<std::string> damaged_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> without_ ABSL_GUARDED_BY(mutex_);
};

// A worker's handler may be late for a moment. (A server has one stream per worker, and handles
// frames as they arrive.)
constexpr size_t kReceiptsAtFirst = 32;

// Makes one attempt after another until one is accepted or refused, or the deadline passes.
// `attempt_mutex_` guards what Close on another thread touches; all else belongs to the queue's
// thread.
class ClientStream final : public GrpcStream {
 public:
  ClientStream(const ConnectOptions& options, std::shared_ptr<StreamHandler> handler, Identity self,
               std::shared_ptr<const LinkSecurity> security, SharedMemoryHistory* history,
               grpc::CompletionQueue* queue, LiveStreams* live)
      : GrpcStream(options.queue, std::move(handler), kReceiptsAtFirst),
        options_(options),
        self_(std::move(self)),
        history_(history),
        queue_(queue),
        live_(live),
        address_allowed_(CheckPeerAddress(options.address, security.get())),
        channel_(MakeChannel(options.address, std::move(security), {options.role})),
        stub_(channel_),
        since_(MonotonicNow()) {}

  void Start() {
    live_->Add(shared_from_this());
    absl::MutexLock lock(&attempt_mutex_);
    deadline_alarm_.Set(queue_, GrpcDeadline(options_.deadline), Tag(&ClientStream::OnDeadline));
    Attempt();
  }

 private:
  void StartRead(grpc::ByteBuffer* buffer, void* tag) override { call_->Read(buffer, tag); }
  void StartWrite(const grpc::ByteBuffer& buffer, void* tag) override { call_->Write(buffer, tag); }

  void StartEnd(const absl::Status&, bool local) override {
    if (!local) return;  // the call is over already: its reads ended
    absl::MutexLock lock(&attempt_mutex_);
    if (context_ != nullptr) context_->TryCancel();
    retry_alarm_.Cancel();
    deadline_alarm_.Cancel();
    offer_alarm_.Cancel();
  }

  void OnReadsDone() override {
    handshake_ = {};
    call_->Finish(&status_, Tag(&ClientStream::OnFinished));
  }

  void OnWritesDone() override { OverIfDone(); }

  void OnDamaged() override {
    spdlog::error(
        "what went through memory that is shared with {} at {} was damaged: from now on "
        "tensors go over TCP",
        options_.whom, options_.address);
    history_->AddDamaged(options_.address);
  }

  void Attempt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(attempt_mutex_) {
    call_.reset();  // lives in memory of the context's call
    context_ = std::make_unique<grpc::ClientContext>();
    AddIdentity(self_, context_.get());
    call_ = stub_.PrepareCall(context_.get(), kExchangeMethod, queue_);
    call_->StartCall(Tag(&ClientStream::OnStarted));
    if (ended()) context_->TryCancel();
  }

  void OnStarted(bool ok) {
    if (!ok) {
      OnReadsDone();
    } else {
      call_->ReadInitialMetadata(Tag(&ClientStream::OnMetadata));
    }
  }

  void OnMetadata(bool ok) {
    absl::StatusOr<PeerIdentity> peer = absl::UnavailableError("no answer");
    if (ok) {
      const auto& metadata = context_->GetServerInitialMetadata();
      if (metadata.find(kIdentityKey) != metadata.end()) {
        peer = CheckPeer([&](absl::string_view key) -> absl::string_view {
          const auto it = metadata.find(grpc::string_ref(key.data(), key.size()));
          if (it == metadata.end()) return {};
          return {it->second.data(), it->second.size()};
        });
        if (peer.ok() && peer->identity.role != options_.role) {
          peer = absl::PermissionDeniedError(
              absl::StrCat("expected a ", PeerRoleName(options_.role), " there, met ",
                           IdentityToString(peer->identity)));
        }
        if (!peer.ok()) End(peer.status(), true);
        const auto token = metadata.find(kSegmentsKey);
        const bool share = history_ != nullptr && !history_->IsDamaged(options_.address);
        if (peer.ok() && share && token != metadata.end()) {
          token_ = {token->second.data(), token->second.size()};
          Offer();
        }
      }
    }
    if (!peer.ok()) {
      OnReadsDone();  // the call's status says why
      return;
    }
    up_ = true;
    {
      absl::MutexLock lock(&attempt_mutex_);
      deadline_alarm_.Cancel();
    }
    SetPeer(*std::move(peer));
    if (const std::shared_ptr<StreamHandler> up = handler(); up != nullptr && !ended()) up->OnUp();
    Open();
  }

  // Offers a segment to the server, if it runs on this host.
  void Offer() {
    absl::StatusOr<SegmentHandshake> handshake = BeginHandshake(token_);
    if (handshake.ok()) {
      UseOwnSegment(handshake->own);
      handshake_ = *std::move(handshake);
    } else if (!absl::IsUnavailable(handshake.status())) {
      return GoWithout(handshake.status());
    }
    offered_ = handshake.ok() ? absl::UnavailableError("it does not answer") : handshake.status();
    AwaitAnswer();
  }

  void AwaitAnswer() {
    const absl::Duration delay = kOfferDelay * (1 << offers_++);
    absl::MutexLock lock(&attempt_mutex_);
    offer_alarm_.Set(queue_, GrpcDeadline(delay), Tag(&ClientStream::OnOfferDue));
    if (ended()) offer_alarm_.Cancel();
  }

  void OnOfferDue(bool) {
    if (ended() || granted()) return;
    if (offers_ == kOffersMax) return GoWithout(offered_);
    if (!handshake_.socket.open() || IsRefused(handshake_)) return Offer();
    AwaitAnswer();
  }

  void GoWithout(const absl::Status& why) {
    handshake_ = {};
    UseOwnSegment(nullptr);
    if (history_->FirstWithout(options_.address)) {
      spdlog::info("no shared memory with {} at {}: {}", options_.whom, options_.address,
                   std::string(why.message()));
    }
  }

  void OnFirstBlocks() override {
    absl::StatusOr<std::shared_ptr<const Segment>> peers =
        EndHandshake(std::exchange(handshake_, {}));
    if (!peers.ok()) {
      spdlog::warn("no shared memory from {} at {}: {}", options_.whom, options_.address,
                   std::string(peers.status().message()));
      return;
    }
    spdlog::info("shares memory with {} at {}", options_.whom, options_.address);
    UsePeersSegment(*std::move(peers));
  }

  void OnFinished(bool) {
    const absl::Status status = address_allowed_.ok() ? FromGrpc(status_) : address_allowed_;
    const bool again = status.code() == absl::StatusCode::kUnavailable ||
                       status.code() == absl::StatusCode::kDeadlineExceeded;
    if (up_ || ended() || !again) {
      over_ = status.ok() || up_ ? status : Explain(status);
      return OverIfDone();
    }
    last_error_ = status;
    absl::MutexLock lock(&attempt_mutex_);
    retry_alarm_.Set(queue_, GrpcDeadline(kRetryDelay), Tag(&ClientStream::OnRetry));
    if (ended()) retry_alarm_.Cancel();
  }

  void OnRetry(bool) {
    if (ended()) {
      over_ = absl::CancelledError("closed");
      return OverIfDone();
    }
    absl::MutexLock lock(&attempt_mutex_);
    Attempt();
  }

  void OnDeadline(bool ok) {
    if (!ok || up_) return;
    if (last_error_.ok() && channel_->GetState(false) != GRPC_CHANNEL_READY) {
      last_error_ = absl::UnavailableError("the connection was not made");
    }
    End(absl::DeadlineExceededError(Explain(last_error_).message()), true);
  }

  absl::Status Explain(const absl::Status& error) const {
    return absl::Status(
        error.ok() ? absl::StatusCode::kUnavailable : error.code(),
        absl::StrCat(
            "no stream to ", options_.whom, " at ", options_.address, " after ",
            absl::FormatDuration(absl::Trunc(MonotonicNow() - since_, absl::Milliseconds(1))),
            "; last error: ", error.ok() ? "the peer did not answer" : error.ToString()));
  }

  // A write in flight ends first: the thread that claimed it may still copy what it writes, and the
  // queue is not shut down before that.
  void OverIfDone() {
    if (!over_.has_value() || writing()) return;
    {
      absl::MutexLock lock(&attempt_mutex_);
      deadline_alarm_.Cancel();
      offer_alarm_.Cancel();
    }
    Finished(*over_);
    LetChannelGo(true);
  }

  // A channel that connects is kept until that has ended: gRPC (1.51) neither uses nor closes a
  // connection that is made after its channel is gone.
  void LetChannelGo(bool) {
    if (channel_->GetState(false) == GRPC_CHANNEL_CONNECTING && !live_->closed()) {
      absl::MutexLock lock(&attempt_mutex_);
      retry_alarm_.Set(queue_, GrpcDeadline(kRetryDelay), Tag(&ClientStream::LetChannelGo));
    } else {
      live_->Remove(shared_from_this());
    }
  }

  const ConnectOptions options_;
  const Identity self_;
  SharedMemoryHistory* const history_;  // null: no shared memory
  grpc::CompletionQueue* const queue_;
  LiveStreams* const live_;
  const absl::Status address_allowed_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  const absl::Time since_;

  absl::Mutex attempt_mutex_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::Alarm deadline_alarm_ ABSL_GUARDED_BY(attempt_mutex_);
  grpc::Alarm retry_alarm_ ABSL_GUARDED_BY(attempt_mutex_);
  grpc::Alarm offer_alarm_ ABSL_GUARDED_BY(attempt_mutex_);
  grpc::Status status_;
  absl::Status last_error_;
  bool up_ = false;
  std::optional<absl::Status> over_;  // the call is over
  // Offers of a segment.
  std::string token_;
  SegmentHandshake handshake_;
  absl::Status offered_;  // why there is no answer to the last one
  int offers_ = 0;        // and times that its answer was waited for
};

class GrpcStreamClient final : public StreamClient {
 public:
  GrpcStreamClient(Identity self, std::shared_ptr<const LinkSecurity> security, bool shared_memory)
      : self_(std::move(self)),
        security_(std::move(security)),
        shared_memory_(shared_memory),
        thread_([this] { ServeCompletions(&queue_); }) {}

  ~GrpcStreamClient() override {
    live_.Close(absl::CancelledError("shutting down"));
    live_.AwaitNone();
    queue_.Shutdown();
    thread_.join();
  }

  std::shared_ptr<FrameStream> Connect(const ConnectOptions& options,
                                       std::shared_ptr<StreamHandler> handler) override {
    auto stream =
        std::make_shared<ClientStream>(options, std::move(handler), self_, security_,
                                       shared_memory_ ? &history_ : nullptr, &queue_, &live_);
    stream->Start();
    return stream;
  }

 private:
  const Identity self_;
  const std::shared_ptr<const LinkSecurity> security_;
  const bool shared_memory_;
  SharedMemoryHistory history_;
  LiveStreams live_;
  grpc::CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<StreamClient> MakeStreamClient(const Identity& self,
                                               std::shared_ptr<const LinkSecurity> security,
                                               bool shared_memory) {
  return std::make_unique<GrpcStreamClient>(self, std::move(security), shared_memory);
}

}  // namespace starling
