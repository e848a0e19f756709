#include "common/transport/segment_exchange.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/sync/mutex.h"

namespace starling {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);  // reached only on failure

// Happens once.
class Event {
 public:
  void Happen() {
    MutexLock lock(&mutex_);
    EXPECT_FALSE(happened_);
    happened_ = true;
    changed_.SignalAll();
  }
  bool happened() {
    MutexLock lock(&mutex_);
    return happened_;
  }
  bool Await() {
    const absl::Time deadline = MonotonicNow() + kLong;
    MutexLock lock(&mutex_);
    while (!happened_ && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
    return happened_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool happened_ ABSL_GUARDED_BY(mutex_) = false;
};

class Exchange : public testing::Test {
 protected:
  void SetUp() override {
    auto exchange = SegmentExchange::Open();
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    exchange_ = *std::move(exchange);
  }
  // For `stream_`, once.
  std::string NewToken() {
    return exchange_->NewToken(stream_, [this](SegmentExchange::Pair pair) {
      pair_ = std::move(pair);
      ready_.Happen();
    });
  }
  // The exchange has handled everything before: another handshake succeeds.
  void AwaitServed() {
    Event ready;
    const auto stream = std::make_shared<int>(0);
    const std::string other =
        exchange_->NewToken(stream, [&](SegmentExchange::Pair) { ready.Happen(); });
    const auto handshake = BeginHandshake(other);
    ASSERT_TRUE(handshake.ok()) << handshake.status();
    ASSERT_TRUE(ready.Await());
    ASSERT_TRUE(EndHandshake(*handshake).ok());
    pollfd end = {handshake->socket.get(), POLLIN, 0};  // the last that the exchange closes
    ASSERT_EQ(poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kLong))), 1);
  }
  // An answer that must not come.
  static absl::Status Answer(const SegmentHandshake& handshake) {
    return EndHandshake(handshake).status();
  }

  std::unique_ptr<SegmentExchange> exchange_;
  std::shared_ptr<int> stream_ = std::make_shared<int>(0);
  Event ready_;
  SegmentExchange::Pair pair_;
};

TEST_F(Exchange, BothEndsGetTheOthersSegment) {
  auto handshake = BeginHandshake(NewToken());
  ASSERT_TRUE(handshake.ok()) << handshake.status();
  ASSERT_TRUE(ready_.Await());
  const auto peers = EndHandshake(*handshake);
  ASSERT_TRUE(peers.ok()) << peers.status();
  OutgoingPayload payload;
  payload.head = "worker's";
  handshake->own->Write(1, payload);
  EXPECT_EQ(std::memcmp(pair_.peers->At(1), "worker's", 8), 0);
  payload.head = "shard's";
  pair_.own->Write(1, payload);
  EXPECT_EQ(std::memcmp((*peers)->At(1), "shard's", 7), 0);
}

TEST_F(Exchange, ANonceIsValidOnceAndWhileItsStreamIsThere) {
  const std::string token = NewToken();
  const auto once = BeginHandshake(token);
  ASSERT_TRUE(once.ok());
  ASSERT_TRUE(ready_.Await());
  auto again = BeginHandshake(token);
  ASSERT_TRUE(again.ok());
  const std::string late = NewToken();
  stream_.reset();
  const auto without_stream = BeginHandshake(late);  // ready_ does not happen again
  ASSERT_TRUE(without_stream.ok());
  AwaitServed();
  EXPECT_FALSE(Answer(*again).ok());
  EXPECT_TRUE(IsRefused(*again));
  EXPECT_FALSE(IsRefused(*once));
}

TEST_F(Exchange, AForeignNonceIsRefused) {
  std::string token = NewToken();
  token.back() = token.back() == '0' ? '1' : '0';
  auto handshake = BeginHandshake(token);
  ASSERT_TRUE(handshake.ok()) << handshake.status();
  AwaitServed();
  EXPECT_FALSE(Answer(*handshake).ok());
  EXPECT_FALSE(ready_.happened());
}

TEST_F(Exchange, ASocketThatIsNotThereIsNotReached) {
  std::string token = NewToken();
  token[0] = token[0] == '0' ? '1' : '0';
  EXPECT_EQ(BeginHandshake(token).status().code(), absl::StatusCode::kNotFound);
  const std::string too_late = NewToken();
  exchange_->Stop();
  EXPECT_EQ(BeginHandshake(too_late).status().code(), absl::StatusCode::kNotFound);
  for (const std::string& wrong : {std::string(), std::string("."), too_late + "0",
                                   too_late.substr(1), std::string(65, '0')}) {
    EXPECT_EQ(BeginHandshake(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

// A hostile connection to the exchange.
class Stranger {
 public:
  explicit Stranger(const std::string& token)
      : nonce_(token.substr(33)), fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const std::string name = "starling-" + token.substr(0, 32);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    connected_ =
        connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0;
  }
  bool connected() const { return connected_; }
  const std::string& nonce() const { return nonce_; }

  void Say(const std::string& text, std::vector<int> fds) {
    iovec part = {const_cast<char*>(text.data()), text.size()};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    ASSERT_EQ(sendmsg(fd_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Until the exchange hangs up; false: it answered.
  bool IsHungUp() {
    char byte = 0;
    const ssize_t received = recv(fd_.get(), &byte, 1, 0);
    return received <= 0;
  }

 private:
  const std::string nonce_;
  const OwnedFd fd_;
  bool connected_ = false;
};

int OpenDescriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

TEST_F(Exchange, StrangersAreHungUpOnAndLeaveNothing) {
  AwaitServed();
  const OwnedFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  OwnedFd small(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(small.get(), 4096), 0);
  ASSERT_EQ(fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 0x10), 0);
  OwnedFd good;
  ASSERT_TRUE(Segment::Create(&good).ok());
  const int before = OpenDescriptors();
  using Fds = std::vector<int>;
  for (const Fds& fds : {Fds{}, Fds{file.get()}, Fds{small.get()}, Fds{good.get(), file.get()}}) {
    Stranger stranger(NewToken());
    ASSERT_TRUE(stranger.connected());
    ASSERT_NO_FATAL_FAILURE(stranger.Say(stranger.nonce(), fds));
    EXPECT_TRUE(stranger.IsHungUp());
  }
  for (const std::string& text : {std::string("x"), std::string(32, 'x'), std::string(9999, 'x')}) {
    Stranger stranger(NewToken());
    ASSERT_NO_FATAL_FAILURE(stranger.Say(text, {good.get()}));
    EXPECT_TRUE(stranger.IsHungUp());
  }
  {
    Stranger silent(NewToken());
    Stranger gone(NewToken());
    EXPECT_TRUE(silent.IsHungUp());
  }
  EXPECT_FALSE(ready_.happened());
  AwaitServed();
  EXPECT_EQ(OpenDescriptors(), before);
}

// As root: runs `what` on a thread of another user. (The system call changes this thread alone.)
template <typename What>
void AsAnotherUser(const What& what) {
  std::thread([&] {
    constexpr uid_t kOther = 65534;
    ASSERT_EQ(syscall(SYS_setresuid, kOther, kOther, kOther), 0);
    what();
  }).join();
}

TEST_F(Exchange, AnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs another user";
  const std::string token = NewToken();
  AsAnotherUser([&] {
    Stranger stranger(token);
    ASSERT_TRUE(stranger.connected());
    EXPECT_TRUE(stranger.IsHungUp());  // before it says anything: its user is enough
  });
  EXPECT_FALSE(ready_.happened());
  const auto handshake = BeginHandshake(token);
  ASSERT_TRUE(handshake.ok());  // and the nonce is still valid
  EXPECT_TRUE(ready_.Await());
}

TEST_F(Exchange, AServerOfAnotherUserIsNotTrusted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs another user";
  const std::string token = NewToken();
  AsAnotherUser([&] {
    EXPECT_EQ(BeginHandshake(token).status().code(), absl::StatusCode::kPermissionDenied);
  });
}

TEST_F(Exchange, NoMoreStreamsThanTheLimitHaveSegments) {
  std::vector<SegmentHandshake> handshakes;
  std::vector<SegmentExchange::Pair> pairs;
  for (size_t i = 0; i < limits::kSharedStreamsMax; ++i) {
    Event ready;
    auto handshake = BeginHandshake(exchange_->NewToken(stream_, [&](SegmentExchange::Pair pair) {
      pairs.push_back(std::move(pair));
      ready.Happen();
    }));
    ASSERT_TRUE(handshake.ok()) << handshake.status();
    ASSERT_TRUE(ready.Await());
    handshakes.push_back(*std::move(handshake));
  }
  const std::string token = NewToken();
  Stranger one_too_many(token);
  OwnedFd fd;
  ASSERT_TRUE(Segment::Create(&fd).ok());
  ASSERT_NO_FATAL_FAILURE(one_too_many.Say(one_too_many.nonce(), {fd.get()}));
  EXPECT_TRUE(one_too_many.IsHungUp());
  pairs.pop_back();
  const auto again = BeginHandshake(token);  // a nonce that was refused is still valid
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(ready_.Await());
}

}  // namespace
}  // namespace starling
