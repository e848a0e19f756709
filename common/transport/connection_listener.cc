#include "common/transport/connection_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/descriptors.h"
#include "common/transport/grpc_util.h"

namespace starling {
namespace {

constexpr int kBacklog = 4096;  // the system may allow fewer
constexpr int kAcceptsAtOnce = 32;
constexpr int kRestMillis = 100;

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return Addresses(found);
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void SetPort(int port, sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(static_cast<uint16_t>(port));
  }
}

void Set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

// Accepted sockets inherit these options.
OwnedFd ListenAt(const addrinfo& where) {
  OwnedFd fd(socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.open()) return fd;
  Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  Set(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, grpc_limits::kKeepaliveTimeoutMs);
  if (where.ai_family == AF_INET6) Set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd.get(), where.ai_addr, where.ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionListener>> ConnectionListener::Listen(
    const std::string& address) {
  const auto unavailable = [&](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return unavailable("expected host:port");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host[0] == '[') host = host.substr(1, host.size() - 2);
  const std::string port = address.substr(colon + 1);
  auto listener = absl::WrapUnique(new ConnectionListener);
  listener->stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int error = 0;
  // The IPv6 wildcard accepts both kinds, if the machine has IPv6.
  for (const std::string& name :
       host == "0.0.0.0" ? std::vector<std::string>{"::", host} : std::vector<std::string>{host}) {
    const absl::StatusOr<Addresses> found = Resolve(name, port);
    if (!found.ok() && !listener->listeners_.empty()) break;
    if (!found.ok() && name != "::") return unavailable(found.status().message());
    for (addrinfo* at = found.ok() ? found->get() : nullptr; at != nullptr; at = at->ai_next) {
      if (listener->port_ != 0) SetPort(listener->port_, at->ai_addr);
      OwnedFd fd = ListenAt(*at);
      if (!fd.open()) {
        error = errno;
        continue;
      }
      sockaddr_storage bound = {};
      socklen_t size = sizeof(bound);
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
      listener->port_ = PortOf(bound);
      listener->listeners_.push_back(std::move(fd));
    }
    if (!listener->listeners_.empty()) break;
  }
  if (listener->listeners_.empty()) return unavailable(std::strerror(error));
  return listener;
}

ConnectionListener::~ConnectionListener() { Stop(); }

void ConnectionListener::Start(Take take) {
  thread_ = std::thread([this, take = std::move(take)] { Run(take); });
}

void ConnectionListener::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  listeners_.clear();
}

void ConnectionListener::Run(const Take& take) {
  pthread_setname_np(pthread_self(), "accept");
  bool resting = false;
  int refused = 0;
  for (;;) {
    std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}};
    if (!resting) {
      for (const OwnedFd& listener : listeners_) fds.push_back({listener.get(), POLLIN, 0});
    }
    poll(fds.data(), fds.size(), resting ? kRestMillis : -1);
    if (fds[0].revents != 0) return;
    const std::string why = WhyNoDescriptors();
    if (!why.empty() && !resting) spdlog::error("{}", why);
    if (why.empty() && resting) spdlog::info("has file descriptors again: accepts connections");
    resting = !why.empty();
    for (size_t i = 1; i < fds.size() && !resting; ++i) {
      if (fds[i].revents == 0) continue;
      const int error = AcceptSome(listeners_[i - 1].get(), take);
      if (error != 0 && refused == 0)
        spdlog::error("cannot accept connections: {}", std::strerror(error));
      if (error == 0 && refused != 0) spdlog::info("accepts connections again");
      refused = error;
      if (error != 0) poll(fds.data(), 1, kRestMillis);
    }
  }
}

int ConnectionListener::AcceptSome(int listener, const Take& take) {
  for (int i = 0; i < kAcceptsAtOnce && WhyNoDescriptors().empty(); ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      take(listener, fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return errno;
    } else if (errno == EAGAIN) {
      return 0;
    }  // otherwise the peer is gone already
  }
  return 0;
}

}  // namespace starling
