#include "server/coordinator/host/shard_asker.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/daemon/daemon_service.h"
#include "common/transport/grpc_util.h"
#include "common/transport/transport.h"

namespace starling::coordinator {
namespace {

// A daemon over loopback, as far as it says who it is.
class Listener {
 public:
  explicit Listener(const Identity& self)
      : daemon_(MakeDaemonService({.self = self, .instruction_set = ""}, nullptr)) {
    RpcServer::Options options;
    options.listen = "127.0.0.1:0";
    options.self = self;
    options.services = {daemon_.get()};
    auto server = StartRpcServer(std::move(options));
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string address() const { return server_->address(); }
  void Stop() { server_->Shutdown(absl::ZeroDuration()); }

 private:
  const std::shared_ptr<grpc::Service> daemon_;
  std::unique_ptr<RpcServer> server_;
};

const Identity kSelf{PeerRole::kCoordinator, "coordinator"};

// A call may be given up, where the machine is busy.
void AskUntilAnswered(ShardAsker& asker, const std::string& address, const std::string& name,
                      std::atomic<int>& answers, int most) {
  const absl::Time until = absl::Now() + absl::Seconds(60);
  while (answers < most && absl::Now() < until) {
    asker.Ask(address, name, [&] { ++answers; });
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_GE(answers, most) << "no answer from " << name << " at " << address;
}

TEST(ShardAskerTest, AShardOfThatNameAnswers) {
  const Listener shard({PeerRole::kShard, "ps-0"});
  std::atomic<int> answers = 0;
  const auto asker = MakeShardAsker(kSelf, nullptr);
  AskUntilAnswered(*asker, shard.address(), "ps-0", answers, 1);
}

// The port may belong to another process by now.
TEST(ShardAskerTest, OthersDoNotAnswerForIt) {
  const Listener other({PeerRole::kShard, "ps-1"}), worker({PeerRole::kWorker, "ps-0"});
  Listener gone({PeerRole::kShard, "ps-0"});
  gone.Stop();
  std::atomic<int> answers = 0, later = 0;
  const auto asker = MakeShardAsker(kSelf, nullptr);
  for (const std::string& address : {other.address(), worker.address(), gone.address()})
    asker->Ask(address, "ps-0", [&] { ++answers; });
  // By then the others have been answered, or will not be.
  AskUntilAnswered(*asker, other.address(), "ps-1", later, 5);
  EXPECT_EQ(answers, 0);
}

// Connections are taken by the kernel, and nobody ever answers.
TEST(ShardAskerTest, ItsEndWaitsForNoAnswer) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  bool answered = false;
  {
    const auto asker = MakeShardAsker(kSelf, nullptr);
    const std::string address = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
    for (int i = 0; i < 3; ++i) asker->Ask(address, "ps-0", [&] { answered = true; });
  }
  EXPECT_FALSE(answered);
  ::close(listener);
}

}  // namespace
}  // namespace starling::coordinator
