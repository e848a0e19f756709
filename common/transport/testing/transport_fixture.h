// Two ends of the transport over loopback, in one process, for its conformance tests.
#ifndef STARLING_COMMON_TRANSPORT_TESTING_TRANSPORT_FIXTURE_H_
#define STARLING_COMMON_TRANSPORT_TESTING_TRANSPORT_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/transport/grpc_util.h"
#include "common/transport/transport.h"
#include "common/version/version.h"

namespace starling {

inline constexpr absl::Duration kLong = absl::Seconds(30);  // reached only on failure

inline FrameHeader Bulk(uint64_t id, uint32_t elements) {
  FrameHeader header;
  header.type = FrameType::kPush;
  header.kind = PayloadKind::kDense;
  header.request_id = id;
  header.elements = elements;
  header.payload_bytes = 4 * elements;
  return header;
}

inline FrameHeader Control(uint64_t id) {
  FrameHeader header;
  header.type = FrameType::kPull;
  header.request_id = id;
  return header;
}

inline OutgoingPayload Floats(uint32_t n, float first = 0) {
  auto values = std::make_shared<std::vector<float>>(n);
  std::iota(values->begin(), values->end(), first);
  return {absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values->data()), 4 * n), values};
}

// Records what happened.
class Recorder : public StreamHandler {
 public:
  struct Frame {
    FrameHeader header;
    std::vector<float> floats;
  };

  void OnUp() override {
    absl::MutexLock lock(&mutex_);
    up_ = true;
  }
  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    Frame frame{header, std::vector<float>(payload.size() / 4)};
    payload.CopyTo(frame.floats.data());
    absl::MutexLock lock(&mutex_);
    frames_.push_back(std::move(frame));
    shared_ = payload.shared();
    if (keep_) kept_.push_back(std::move(payload));
  }
  void OnDown(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(down_.has_value());
    down_ = status;
  }

  void Keep() {
    absl::MutexLock lock(&mutex_);
    keep_ = true;
  }
  void LetGo() {
    std::vector<ReceivedPayload> kept;
    absl::MutexLock lock(&mutex_);
    keep_ = false;
    kept.swap(kept_);
  }

  // Releases only the oldest; new ones are still kept.
  void LetOneGo() {
    ReceivedPayload oldest;
    absl::MutexLock lock(&mutex_);
    oldest = std::move(kept_.front());
    kept_.erase(kept_.begin());
  }

  bool AwaitUp() {
    return Await([this] { return up_ || down_.has_value(); }) && up_;
  }
  std::vector<Frame> AwaitFrames(size_t n) {
    EXPECT_TRUE(Await([this, n] { return frames_.size() >= n; })) << "waited for " << n;
    absl::MutexLock lock(&mutex_);
    return frames_;
  }
  absl::Status AwaitDown() {
    EXPECT_TRUE(Await([this] { return down_.has_value(); }));
    absl::MutexLock lock(&mutex_);
    return down_.value_or(absl::OkStatus());
  }
  size_t frames() {
    absl::MutexLock lock(&mutex_);
    return frames_.size();
  }
  bool shared() {
    absl::MutexLock lock(&mutex_);
    return shared_;
  }
  std::vector<ReceivedPayload> kept() {
    absl::MutexLock lock(&mutex_);
    return kept_;
  }

 private:
  template <typename Condition>
  bool Await(Condition condition) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&condition), kLong);
  }

  absl::Mutex mutex_;
  bool up_ = false;
  bool keep_ = false;
  bool shared_ = false;  // of the last frame
  std::vector<Frame> frames_;
  std::vector<ReceivedPayload> kept_;
  std::optional<absl::Status> down_;
};

class Transport : public testing::Test {
 protected:
  void SetUp() override {
    RpcServer::Options options;
    options.listen = "127.0.0.1:0";
    options.self = {PeerRole::kShard, "ps-0"};
    options.shared_memory = shared_memory_;
    options.accept =
        [this](std::shared_ptr<FrameStream> stream,
               const PeerIdentity& peer) -> absl::StatusOr<std::shared_ptr<StreamHandler>> {
      if (peer.identity.name == "banned") return absl::PermissionDeniedError("go away");
      absl::MutexLock lock(&mutex_);
      accepted_.push_back(stream);
      handlers_.push_back(std::make_shared<Recorder>());
      if (keep_all_) handlers_.back()->Keep();
      return handlers_.back();
    };
    auto server = StartRpcServer(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = MakeStreamClient({PeerRole::kWorker, "worker-0"}, nullptr, shared_memory_);
  }

  void TearDown() override {
    client_.reset();
    server_.reset();
  }

  // An open stream and its server side.
  struct Pair {
    std::shared_ptr<Recorder> here = std::make_shared<Recorder>();
    std::shared_ptr<FrameStream> stream;
    std::shared_ptr<Recorder> there;
    std::shared_ptr<FrameStream> back;
  };
  Pair Connect() {
    Pair pair;
    pair.stream =
        client_->Connect({.address = server_->address(), .whom = "shard ps-0"}, pair.here);
    EXPECT_TRUE(pair.here->AwaitUp()) << pair.here->AwaitDown();
    absl::MutexLock lock(&mutex_);
    pair.there = handlers_.back();
    pair.back = accepted_.back();
    return pair;
  }

  bool shared_memory_ = false;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<StreamClient> client_;
  absl::Mutex mutex_;
  bool keep_all_ = false;  // received payloads keep their credit
  std::vector<std::shared_ptr<FrameStream>> accepted_;
  std::vector<std::shared_ptr<Recorder>> handlers_;
};

// A stream by hand, as other programs might open it.
struct RawStream {
  using Call = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  grpc::ClientContext context;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Call> call;

  // The value of the server's opening metadata; empty: it has none.
  std::string Metadata(const char* key) {
    call->WaitForInitialMetadata();
    const auto& metadata = context.GetServerInitialMetadata();
    const auto it = metadata.find(key);
    return it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
  }
  // How it ends.
  absl::Status End() {
    grpc::ByteBuffer reply;
    while (call->Read(&reply)) {
    }
    return FromGrpc(call->Finish());
  }
};

class RawCaller : public Transport {
 protected:
  // `identity` as in metadata; empty: none.
  std::unique_ptr<RawStream> OpenRaw(const std::string& identity, const std::string& protocol,
                                     const char* method = "/starling.ParameterServer/Exchange") {
    auto raw = std::make_unique<RawStream>();
    raw->context.set_deadline(GrpcDeadline(kLong));
    if (!identity.empty()) {
      raw->context.AddMetadata(kIdentityKey, identity);
      raw->context.AddMetadata(kVersionKey, "7.7.7");
      raw->context.AddMetadata(kProtocolKey, protocol);
    }
    raw->channel = MakeChannel(server_->address());
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::BIDI_STREAMING);
    raw->call.reset(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            raw->channel.get(), rpc, &raw->context));
    return raw;
  }
  // How a stream ends that sends the message.
  absl::Status Call(bool identity, const std::string& protocol, const std::string& message,
                    const char* method = "/starling.ParameterServer/Exchange", int times = 1) {
    const auto raw = OpenRaw(identity ? "worker:raw" : "", protocol, method);
    const grpc::Slice slice(message);
    for (int i = 0; i < times && !message.empty(); ++i) {
      if (!raw->call->Write(grpc::ByteBuffer(&slice, 1))) break;
    }
    return raw->End();
  }
  const std::string protocol_ = std::to_string(ProtocolVersion());
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_TESTING_TRANSPORT_FIXTURE_H_
