#include <grpcpp/alarm.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/transport/connection_listener.h"
#include "common/transport/grpc_security.h"
#include "common/transport/grpc_stream.h"
#include "common/transport/grpc_util.h"
#include "common/transport/segment_exchange.h"
#include "common/version/version.h"

namespace starling {
namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

// Far longer than cancelled calls need to end and the queue needs to return their operations.
constexpr absl::Duration kQuietDeadline = absl::Seconds(10);
constexpr absl::Duration kDrainDeadline = absl::Seconds(10);

class ServerImpl;

// How long a peer may take for the frame that is being written when the stream ends.
constexpr absl::Duration kLastWriteTimeout = absl::Seconds(1);

// The server's side of a stream. When we end it, the call is finished as soon as no write is in
// flight, so that the peer sees the status; it is cancelled if that takes too long or the peer is
// gone.
class ServerStream final : public GrpcStream {
 public:
  explicit ServerStream(ServerImpl* server, const SendQueue::Options& queue)
      : GrpcStream(queue, nullptr, /*receipts=*/0), server_(server), call_(&context_) {}

  void Request();  // waits for the next call
  void Refuse(const absl::Status& why) { End(why, true); }
  // Cancels an accepted call: its pending operations fail soon. Thread-safe.
  void Cancel() { context_.TryCancel(); }
  // What the stream waits for, for the log.
  std::string Describe() const;

 private:
  void StartRead(grpc::ByteBuffer* buffer, void* tag) override { call_.Read(buffer, tag); }
  void StartWrite(const grpc::ByteBuffer& buffer, void* tag) override { call_.Write(buffer, tag); }

  void StartEnd(const absl::Status& why, bool local) override {
    {
      absl::MutexLock lock(&end_mutex_);
      end_ = why;
      local_ = local;
      if (sending_metadata_) return;  // OnMetadataSent continues
    }
    FinishCall();
  }
  void FinishCall();
  void OnWriteTimeout(bool expired) {
    if (expired) context_.TryCancel();
  }

  void OnFirstBlocks() override {
    spdlog::info("shares memory with {}", IdentityToString(peer().identity));
  }

  void OnReadsDone() override {
    reads_done_ = true;
    OverIfDone();
  }
  void OnWritesDone() override;
  void OnFinished(bool) {
    finished_ = true;
    OverIfDone();
  }

  void OnCall(bool ok);
  void Accept();
  void OnMetadataSent(bool);

  void OverIfDone();

  ServerImpl* const server_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter call_;

  mutable absl::Mutex end_mutex_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(end_mutex_);
  bool sending_metadata_ ABSL_GUARDED_BY(end_mutex_) = false;
  // The end of the call is settled: it is being finished, or was cancelled because of a write in
  // flight.
  bool settled_ ABSL_GUARDED_BY(end_mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(end_mutex_) = false;
  bool awaits_write_ ABSL_GUARDED_BY(end_mutex_) = false;  // and finishes after it
  bool local_ ABSL_GUARDED_BY(end_mutex_) = false;  // we end the stream: the peer is told why
  grpc::Alarm write_alarm_;
  // Written only on the queue's thread.
  std::atomic<bool> reads_done_ = true;  // until the first read
  std::atomic<bool> finished_ = false;
  std::atomic<bool> over_ = false;
};

// Kept alive by the queue's thread, with all that the queue may still touch until it is empty.
class ServerImpl final : public std::enable_shared_from_this<ServerImpl> {
 public:
  explicit ServerImpl(RpcServer::Options options) : options_(std::move(options)) {}

  absl::Status Start() {
    absl::Status status = CheckListenAddress(options_.listen, options_.security.get());
    if (!status.ok()) return status;
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    const std::shared_ptr<Acceptor> acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        MakeServerCredentials(options_.security));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, grpc_limits::kKeepaliveIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, grpc_limits::kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               grpc_limits::kServerMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               grpc_limits::kHandshakeTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, grpc_limits::kConnectionIdleMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, grpc_limits::kConcurrentStreamsMax);
    // Streams carry frames, and other calls are no larger than two frames.
    builder.SetMaxReceiveMessageSize(static_cast<int>(
        options_.accept ? 2 * limits::kFrameBytesMax : limits::kControlMessageBytesMax));
    builder.SetMaxSendMessageSize(static_cast<int>(limits::kControlMessageBytesMax));
    // An answer that the peer does not read holds a thread and its memory.
    builder.SetResourceQuota(
        grpc::ResourceQuota("starling").SetMaxThreads(grpc_limits::kServerThreadsMax));
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
    for (grpc::Service* service : options_.services) builder.RegisterService(service);
    if (options_.accept) {
      builder.RegisterAsyncGenericService(&generic_);
      queue_ = builder.AddCompletionQueue();
    }
    auto listener = ConnectionListener::Listen(options_.listen);
    if (!listener.ok()) return listener.status();
    listener_ = *std::move(listener);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("gRPC does not serve ", options_.listen));
    }
    listener_->Start([acceptor](int listener_fd, int fd) {
      Acceptor::NewConnectionParameters connection;
      connection.listener_fd = listener_fd;
      connection.fd = fd;
      acceptor->HandleNewConnection(&connection);
    });
    if (options_.shared_memory) {
      auto exchange = SegmentExchange::Open();
      if (exchange.ok()) {
        exchange_ = *std::move(exchange);
      } else {
        spdlog::warn("no shared memory with workers: {}", std::string(exchange.status().message()));
      }
    }
    host_ = options_.listen.substr(0, options_.listen.rfind(':'));
    if (queue_ != nullptr) {
      RequestNext();
      thread_ = std::thread([self = shared_from_this()] {
        ServeCompletions(self->queue_.get());
        self->drained_.Notify();
      });
    }
    return absl::OkStatus();
  }

  int port() const { return listener_->port(); }
  std::string address() const { return absl::StrCat(host_, ":", port()); }

  void SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

  void Shutdown(absl::Duration grace) {
    absl::MutexLock once(&shutdown_mutex_);
    if (server_ == nullptr || shut_down_) return;
    shut_down_ = true;
    SetServing(false);
    listener_->Stop();
    if (exchange_ != nullptr) exchange_->Stop();
    for (const std::shared_ptr<ServerStream>& stream : BeginClosing()) {
      stream->Close(absl::UnavailableError("the server is shutting down"));
    }
    server_->Shutdown(GrpcDeadline(grace));
    if (queue_ == nullptr) return;
    for (const std::shared_ptr<ServerStream>& stream : Streams()) stream->Cancel();
    if (!AwaitQuiet()) return Abandon();
    queue_->Shutdown();
    if (!drained_.WaitForNotificationWithTimeout(kDrainDeadline)) return Abandon();
    thread_.join();
  }

  // Accepts one more call, unless the server is closing.
  void RequestNext() {
    {
      absl::MutexLock lock(&mutex_);
      if (closing_) return;
      ++requests_;
      ++requesting_;
    }
    std::make_shared<ServerStream>(this, options_.queue)->Request();
    absl::MutexLock lock(&mutex_);
    --requesting_;
  }
  void RequestDone() {
    absl::MutexLock lock(&mutex_);
    --requests_;
  }
  const RpcServer::Options& options() const { return options_; }
  SegmentExchange* exchange() const { return exchange_.get(); }  // null: there is no shared memory
  grpc::AsyncGenericService* generic() { return &generic_; }
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }

  // False: the server is closing.
  bool Add(std::shared_ptr<ServerStream> stream) {
    absl::MutexLock lock(&mutex_);
    if (closing_) return false;
    streams_.insert(std::move(stream));
    return true;
  }
  void Remove(const std::shared_ptr<ServerStream>& stream) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(stream);
  }

 private:
  // gRPC fails the requests that it has when it shuts down. One that is made at that moment would
  // wait forever, so this waits until none is.
  std::set<std::shared_ptr<ServerStream>> BeginClosing() {
    const auto made = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return requesting_ == 0; };
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    mutex_.AwaitWithTimeout(absl::Condition(&made), kQuietDeadline);
    return streams_;
  }
  std::set<std::shared_ptr<ServerStream>> Streams() {
    absl::MutexLock lock(&mutex_);
    return streams_;
  }

  // No operation may start on a queue that is shut down, and every live stream and every request
  // for a call may start one. All calls are cancelled by now, so this is quick.
  bool AwaitQuiet() {
    const auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return requests_ == 0 && streams_.empty();
    };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&quiet), kQuietDeadline);
  }

  // Gives up waiting for what gRPC does not return: its queue and thread stay until the process
  // exits.
  void Abandon() {
    absl::MutexLock lock(&mutex_);
    spdlog::error(
        "the server at {} does not end: gRPC still has {} requests for calls and {} streams; goes "
        "on without it",
        address(), requests_, streams_.size());
    for (const std::shared_ptr<ServerStream>& stream : streams_)
      spdlog::error("{}", stream->Describe());
    thread_.detach();
  }

  const RpcServer::Options options_;
  std::string host_;
  grpc::AsyncGenericService generic_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionListener> listener_;  // ends before the server does
  std::unique_ptr<SegmentExchange> exchange_;
  std::thread thread_;
  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;

  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  int requests_ ABSL_GUARDED_BY(mutex_) = 0;    // pending, or being accepted
  int requesting_ ABSL_GUARDED_BY(mutex_) = 0;  // of these, not yet made
  std::set<std::shared_ptr<ServerStream>> streams_ ABSL_GUARDED_BY(mutex_);
  absl::Notification drained_;
};

class GrpcServer final : public RpcServer {
 public:
  explicit GrpcServer(Options options) : impl_(std::make_shared<ServerImpl>(std::move(options))) {}
  ~GrpcServer() override { Shutdown(absl::Seconds(2)); }

  absl::Status Start() { return impl_->Start(); }
  int port() const override { return impl_->port(); }
  std::string address() const override { return impl_->address(); }
  void SetServing(bool serving) override { impl_->SetServing(serving); }
  void Shutdown(absl::Duration grace) override { impl_->Shutdown(grace); }

 private:
  const std::shared_ptr<ServerImpl> impl_;
};

void ServerStream::Request() {
  server_->generic()->RequestCall(&context_, &call_, server_->queue(), server_->queue(),
                                  Tag(&ServerStream::OnCall));
}

void ServerStream::OnCall(bool ok) {
  if (ok) Accept();  // otherwise the server is shutting down
  server_->RequestDone();
}

void ServerStream::Accept() {
  server_->RequestNext();
  const auto self = std::static_pointer_cast<ServerStream>(shared_from_this());
  if (context_.method() != kExchangeMethod) {
    return Refuse(absl::UnimplementedError(absl::StrCat("no method ", context_.method())));
  }
  absl::StatusOr<PeerIdentity> peer = CheckCaller(context_);
  if (!peer.ok()) return Refuse(peer.status());
  SetPeer(*peer);
  if (!server_->Add(self)) return Refuse(absl::UnavailableError("the server is shutting down"));
  absl::StatusOr<std::shared_ptr<StreamHandler>> handler = server_->options().accept(self, *peer);
  if (!handler.ok()) return Refuse(handler.status());
  SetHandler(*std::move(handler));
  {
    absl::MutexLock lock(&end_mutex_);
    if (end_.has_value()) return;
    sending_metadata_ = true;
  }
  context_.AddInitialMetadata(kIdentityKey, IdentityToString(server_->options().self));
  context_.AddInitialMetadata(kVersionKey, std::string(ReleaseVersion()));
  context_.AddInitialMetadata(kProtocolKey, std::to_string(ProtocolVersion()));
  if (server_->exchange() != nullptr && peer->identity.role == PeerRole::kWorker) {
    const std::string token =
        server_->exchange()->NewToken(weak_from_this(), [this](SegmentExchange::Pair pair) {
          UseOwnSegment(std::move(pair.own));
          UsePeersSegment(std::move(pair.peers));
        });
    if (!token.empty()) context_.AddInitialMetadata(kSegmentsKey, token);
  }
  reads_done_ = false;
  call_.SendInitialMetadata(Tag(&ServerStream::OnMetadataSent));
}

void ServerStream::OnMetadataSent(bool) {
  bool ending = false;
  {
    absl::MutexLock lock(&end_mutex_);
    sending_metadata_ = false;
    ending = end_.has_value();
  }
  if (ending) FinishCall();
  Open();  // an ended stream reads once more: its last read
}

void ServerStream::FinishCall() {
  absl::Status why;
  {
    absl::MutexLock lock(&end_mutex_);
    if (writing() && local_) {
      awaits_write_ = true;
      write_alarm_.Set(server_->queue(), GrpcDeadline(kLastWriteTimeout),
                       Tag(&ServerStream::OnWriteTimeout));
      return;
    }
    settled_ = true;
    finishing_ = !writing();
    if (!finishing_) return context_.TryCancel();
    why = *end_;
  }
  call_.Finish(ToGrpc(why), Tag(&ServerStream::OnFinished));
}

void ServerStream::OnWritesDone() {
  bool finish = false;
  {
    absl::MutexLock lock(&end_mutex_);
    std::swap(finish, awaits_write_);
  }
  if (!finish) return OverIfDone();
  write_alarm_.Cancel();
  FinishCall();
}

void ServerStream::OverIfDone() {
  if (over_ || !reads_done_ || writing()) return;
  {
    absl::MutexLock lock(&end_mutex_);
    // The thread that ends the stream gets there, and the operations that it starts lead back here.
    if (!settled_) return;
    if (finishing_ && !finished_) return;
  }
  over_ = true;
  Finished(absl::UnavailableError("the peer ended the stream"));
  server_->Remove(std::static_pointer_cast<ServerStream>(shared_from_this()));
}

std::string ServerStream::Describe() const {
  absl::MutexLock lock(&end_mutex_);
  return absl::StrCat("stream of ", IdentityToString(peer().identity), ": ",
                      ended() ? "ended" : "not ended", ", ",
                      writing() ? "writes" : "writes nothing", ", ",
                      reads_done_ ? "has read all"
                      : paused()  ? "does not read"
                                  : "reads",
                      ", ",
                      sending_metadata_ ? "sends metadata"
                      : awaits_write_   ? "waits for its last write"
                      : finished_       ? "is finished"
                      : finishing_      ? "is being finished"
                      : settled_        ? "is cancelled"
                                        : "is not being finished");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> StartRpcServer(RpcServer::Options options) {
  KeepGrpcRunning();
  auto server = std::make_unique<GrpcServer>(std::move(options));
  if (absl::Status status = server->Start(); !status.ok()) return status;
  return std::unique_ptr<RpcServer>(std::move(server));
}

}  // namespace starling
