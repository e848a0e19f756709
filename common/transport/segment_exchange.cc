#include "common/transport/segment_exchange.h"

#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/sync/mutex.h"

namespace starling {
namespace {

constexpr size_t kSecretBytes = 16;
constexpr size_t kSecretChars = 2 * kSecretBytes;
constexpr int kBacklog = 128;
constexpr int kHandshakeMillis = 1000;  // for what a connection has to say
constexpr int kRestMillis = 100;
constexpr absl::Duration kStopTimeout = absl::Seconds(1);
constexpr absl::Duration kToldPeriod = absl::Seconds(10);

absl::Status Unavailable(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<std::string> Secret() {
  std::string bytes(kSecretBytes, 0);
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return Unavailable("getrandom");
  return absl::BytesToHexString(bytes);
}

OwnedFd UnixSocket() {
  return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// In the abstract namespace: it has no file, and ends with its socket.
struct AbstractAddress {
  explicit AbstractAddress(absl::string_view name) {
    address.sun_family = AF_UNIX;
    const std::string path = absl::StrCat("starling-", name);
    std::memcpy(address.sun_path + 1, path.data(), path.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address = {};
  socklen_t size = 0;
};

absl::Status CheckUser(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return Unavailable("SO_PEERCRED");
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("process ", peer.pid, " is of user ", peer.uid, ", expected user ", geteuid()));
}

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr aligned;
};

absl::Status SendFd(int socket, absl::string_view text, int fd) {
  iovec part = {const_cast<char*>(text.data()), text.size()};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(fd));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(text.size())) return absl::OkStatus();
  return Unavailable("cannot pass a segment");
}

struct Passed {
  std::string text;
  OwnedFd fd;
};

absl::StatusOr<Passed> ReceiveFd(int socket) {
  Passed passed;
  passed.text.resize(kSecretChars + 1);
  iovec part = {passed.text.data(), passed.text.size()};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  // Room for one descriptor, without padding: the system closes further ones.
  message.msg_controllen = CMSG_LEN(sizeof(int));
  const ssize_t received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0) return Unavailable("no segment was passed");
  passed.text.resize(static_cast<size_t>(received));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    passed.fd.Reset(fd);
  }
  if (received == 0 && !passed.fd.open()) return absl::UnavailableError("the other end hung up");
  if (!passed.fd.open() && (message.msg_flags & MSG_CTRUNC) != 0) {
    return absl::UnavailableError(
        "the system did not pass the descriptor: this process has too many, or may not have it");
  }
  if (!passed.fd.open() || (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0)
    return absl::InvalidArgumentError("expected one short message with one descriptor");
  return passed;
}

}  // namespace

// What the thread uses, which may outlive the exchange.
struct SegmentExchange::Shared {
  struct Pending {
    std::weak_ptr<const void> stream;
    Ready ready;
  };

  void Run();
  absl::Status Serve(int connection);
  void Refused(const absl::Status& why);

  std::string name;
  OwnedFd listener;
  OwnedFd stop;
  // The thread's.
  std::vector<std::weak_ptr<const Segment>> given;
  uint64_t refusals = 0;
  absl::Time told = absl::InfinitePast();

  Mutex mutex;
  CondVar changed;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  bool stopped ABSL_GUARDED_BY(mutex) = false;                    // `ready` is not called any more
  bool calling ABSL_GUARDED_BY(mutex) = false;                    // it is being called
  std::map<std::string, Pending> waiting ABSL_GUARDED_BY(mutex);  // by nonce
};

absl::StatusOr<std::unique_ptr<SegmentExchange>> SegmentExchange::Open() {
  OwnedFd tried;
  STARLING_RETURN_IF_ERROR(Segment::Create(&tried).status());
  auto shared = std::make_shared<Shared>();
  STARLING_ASSIGN_OR_RETURN(shared->name, Secret());
  shared->listener = UnixSocket();
  const AbstractAddress address(shared->name);
  if (!shared->listener.open() || bind(shared->listener.get(), address.get(), address.size) != 0 ||
      listen(shared->listener.get(), kBacklog) != 0) {
    return Unavailable("no Unix socket");
  }
  shared->stop.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!shared->stop.open()) return Unavailable("eventfd");
  auto exchange = absl::WrapUnique(new SegmentExchange(shared));
  exchange->thread_ = std::thread([shared] { shared->Run(); });
  return exchange;
}

SegmentExchange::~SegmentExchange() { Stop(); }

void SegmentExchange::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(shared_->stop.get(), &one, sizeof(one));
  bool ended = false;
  {
    const absl::Time deadline = MonotonicNow() + kStopTimeout;
    MutexLock lock(&shared_->mutex);
    shared_->stopped = true;
    while (shared_->calling) shared_->changed.Wait(&shared_->mutex);
    while (!shared_->ended) {
      if (shared_->changed.WaitWithDeadline(&shared_->mutex, deadline)) break;
    }
    ended = shared_->ended;
    shared_->waiting.clear();
  }
  if (ended) return thread_.join();
  spdlog::error("what a process has passed to the socket for segments does not close; goes on");
  thread_.detach();
}

std::string SegmentExchange::NewToken(std::weak_ptr<const void> stream, Ready ready) {
  absl::StatusOr<std::string> nonce = Secret();
  if (!nonce.ok()) return "";
  MutexLock lock(&shared_->mutex);
  std::erase_if(shared_->waiting,
                [](const auto& pending) { return pending.second.stream.expired(); });
  shared_->waiting[*nonce] = {std::move(stream), std::move(ready)};
  return absl::StrCat(shared_->name, ".", *nonce);
}

void SegmentExchange::Shared::Run() {
  pthread_setname_np(pthread_self(), "segments");
  for (;;) {
    pollfd fds[] = {{stop.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
    poll(fds, 2, -1);
    if (fds[0].revents != 0) break;
    if (fds[1].revents == 0) continue;
    const OwnedFd connection(
        accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!connection.open()) {
      if (errno != EAGAIN) poll(fds, 1, kRestMillis);  // no descriptors: connections wait
      continue;
    }
    if (const absl::Status served = Serve(connection.get()); !served.ok()) Refused(served);
  }
  listener.Reset();
  MutexLock lock(&mutex);
  ended = true;
  changed.SignalAll();
}

// Strangers cannot fill the log.
void SegmentExchange::Shared::Refused(const absl::Status& why) {
  ++refusals;
  if (MonotonicNow() < told + kToldPeriod) return;
  told = MonotonicNow();
  spdlog::warn("shared memory is refused, {} times so far: {}", refusals,
               std::string(why.message()));
}

absl::Status SegmentExchange::Shared::Serve(int connection) {
  STARLING_RETURN_IF_ERROR(CheckUser(connection));
  pollfd fds[] = {{stop.get(), POLLIN, 0}, {connection, POLLIN, 0}};
  while (poll(fds, 2, kHandshakeMillis) < 0 && errno == EINTR) {
  }
  STARLING_ASSIGN_OR_RETURN(const Passed passed, ReceiveFd(connection));
  Pending pending;
  {
    MutexLock lock(&mutex);
    const auto it = waiting.find(passed.text);
    if (it == waiting.end()) return absl::PermissionDeniedError("no stream has this nonce");
    pending = it->second;
  }
  Pair pair;
  STARLING_ASSIGN_OR_RETURN(pair.peers, Segment::Open(passed.fd.get()));
  std::erase_if(given, [](const auto& segment) { return segment.expired(); });
  if (given.size() >= limits::kSharedStreamsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(given.size(), " streams have segments, which is the most"));
  }
  OwnedFd fd;
  STARLING_ASSIGN_OR_RETURN(pair.own, Segment::Create(&fd));
  STARLING_RETURN_IF_ERROR(SendFd(connection, passed.text, fd.get()));
  given.push_back(pair.own);
  const std::shared_ptr<const void> stream = pending.stream.lock();
  if (stream == nullptr) return absl::OkStatus();
  {
    MutexLock lock(&mutex);
    waiting.erase(passed.text);
    if (stopped) return absl::OkStatus();
    calling = true;
  }
  pending.ready(std::move(pair));
  MutexLock lock(&mutex);
  calling = false;
  changed.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<SegmentHandshake> BeginHandshake(absl::string_view token) {
  if (token.size() != 2 * kSecretChars + 1 || token[kSecretChars] != '.')
    return absl::InvalidArgumentError("not a token to exchange segments");
  const AbstractAddress address(token.substr(0, kSecretChars));
  SegmentHandshake handshake;
  handshake.socket = UnixSocket();
  if (!handshake.socket.open()) return Unavailable("no Unix socket");
  if (connect(handshake.socket.get(), address.get(), address.size) != 0) {
    if (errno == ECONNREFUSED) return absl::NotFoundError("it is not on this host");
    return Unavailable("its Unix socket is not reached");
  }
  STARLING_RETURN_IF_ERROR(CheckUser(handshake.socket.get()));
  OwnedFd fd;
  STARLING_ASSIGN_OR_RETURN(handshake.own, Segment::Create(&fd));
  STARLING_RETURN_IF_ERROR(
      SendFd(handshake.socket.get(), token.substr(kSecretChars + 1), fd.get()));
  return handshake;
}

bool IsRefused(const SegmentHandshake& handshake) {
  char byte = 0;
  const ssize_t received = recv(handshake.socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
}

absl::StatusOr<std::shared_ptr<const Segment>> EndHandshake(const SegmentHandshake& handshake) {
  STARLING_ASSIGN_OR_RETURN(const Passed passed, ReceiveFd(handshake.socket.get()));
  return Segment::Open(passed.fd.get());
}

}  // namespace starling
