#include "server/shard/host/shard_runtime.h"

#include <chrono>
#include <future>
#include <utility>

#include "common/base/memory.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/disk.h"
#include "common/daemon/daemon.h"
#include "common/daemon/daemon_service.h"
#include "common/event_loop/threaded_loop.h"
#include "common/transport/transport.h"
#include "server/shard/apply/instruction_set.h"
#include "server/shard/host/shard_host.h"

namespace starling {
namespace {

class GrpcShard final : public ShardRuntime {
 public:
  GrpcShard(const ShardOptions& options, std::shared_ptr<CheckpointDisk> checkpoint_disk,
            std::function<void(const absl::Status&)> on_failed)
      : options_(options),
        self_{PeerRole::kShard, options.name},
        daemon_(MakeDaemonService({.self = self_,
                                   .instruction_set = InstructionSetName(BestInstructionSet()),
                                   .admin_address = options.admin_address,
                                   .clock_offset = options.clock_offset,
                                   .addresses = addresses_,
                                   .security = options.security},
                                  &spans_)),
        host_({.self = self_,
               .coordinator = options.coordinator,
               .security = options.security,
               .owner_threads = options.owner_threads,
               .register_deadline = options.register_deadline,
               .inject = options.inject},
              {.make_loop =
                   [](const std::string& name) { return std::make_unique<ThreadedLoop>(name); },
               .available_memory = AvailableMemoryBytes,
               .return_memory = ReturnFreedMemory,
               .checkpoint_disk = std::move(checkpoint_disk),
               .spans = &spans_,
               .on_failed = std::move(on_failed)},
              MakeStreamClient(self_, options.security)) {}

  ~GrpcShard() override { Stop(); }

  absl::Status Start() {
    RpcServer::Options server;
    server.listen = options_.listen;
    server.security = options_.security;
    server.self = self_;
    server.services = {daemon_.get()};
    server.shared_memory = options_.shared_memory;
    server.accept = [this](std::shared_ptr<FrameStream> stream, const PeerIdentity& peer) {
      return host_.Accept(std::move(stream), peer);
    };
    STARLING_ASSIGN_OR_RETURN(server_, StartRpcServer(std::move(server)));
    STARLING_ASSIGN_OR_RETURN(address_,
                              AdvertisedAddress(options_.advertise_address, server_->address()));
    addresses_->Set({server_->address(), address_, options_.coordinator});
    const auto client = [this] {
      return MakeCoordinatorClient(options_.coordinator, self_, options_.security);
    };
    host_.Start(address_, client(), client());
    return absl::OkStatus();
  }

  int port() const override { return server_->port(); }
  std::string address() const override { return address_; }
  void ShowOn(admin::Admin* admin) override { host_.ShowOn(admin); }

  void Drain(std::function<void(const DrainOrders&)> on_drain) override {
    host_.Drain(std::move(on_drain));
  }
  void Leave() override {
    const auto told = std::make_shared<std::promise<void>>();
    std::future<void> answered = told->get_future();
    host_.Leave([told] { told->set_value(); });
    answered.wait_for(std::chrono::seconds(2));
  }

  void Stop() override {
    host_.StopControl();
    if (server_ != nullptr) server_->Shutdown(absl::Seconds(1));
    host_.Stop();
  }

 private:
  const ShardOptions options_;
  const Identity self_;
  SpanRing spans_;
  const std::shared_ptr<DaemonAddresses> addresses_ = std::make_shared<DaemonAddresses>();
  const std::shared_ptr<grpc::Service> daemon_;
  ShardHost host_;
  std::unique_ptr<RpcServer> server_;
  std::string address_;  // constant after Start
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardRuntime>> StartShard(
    const ShardOptions& options, std::function<void(const absl::Status&)> on_failed) {
  std::shared_ptr<CheckpointDisk> checkpoint_disk;
  if (!options.checkpoint_root.empty()) {
    auto opened = OpenCheckpointDisk(options.checkpoint_root);
    if (!opened.ok()) return Prefixed("--checkpoint-root", opened.status());
    checkpoint_disk = *std::move(opened);
  }
  auto shard =
      std::make_unique<GrpcShard>(options, std::move(checkpoint_disk), std::move(on_failed));
  if (absl::Status status = shard->Start(); !status.ok()) return status;
  return std::unique_ptr<ShardRuntime>(std::move(shard));
}

}  // namespace starling
