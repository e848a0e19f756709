#include "common/admin/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace starling::admin {
namespace {

constexpr int kBacklog = 512;

// Splits "host:port" and "[v6]:port".
bool Split(absl::string_view address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return false;
  absl::string_view name = address.substr(0, colon);
  const bool brackets = name.size() >= 2 && name.front() == '[' && name.back() == ']';
  if (brackets) name = name.substr(1, name.size() - 2);
  if (name.empty() || (!brackets && name.find(':') != absl::string_view::npos)) return false;
  int number = 0;
  *host = std::string(name);
  *port = std::string(address.substr(colon + 1));
  return absl::SimpleAtoi(*port, &number) && number >= 0 && number <= 65535;
}

absl::Status Unavailable(const std::string& address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
}

absl::Status BindAndListen(int fd, const addrinfo& where, const std::string& address) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, where.ai_addr, where.ai_addrlen) != 0 || listen(fd, kBacklog) != 0) {
    return Unavailable(address, std::strerror(errno));
  }
  return absl::OkStatus();
}

Listener Describe(OwnedFd fd, const std::string& host) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  Listener listener;
  listener.fd = std::move(fd);
  listener.port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  const bool brackets = host.find(':') != std::string::npos;
  listener.address = brackets ? absl::StrCat("[", host, "]:", listener.port)
                              : absl::StrCat(host, ":", listener.port);
  return listener;
}

}  // namespace

absl::StatusOr<Listener> Listen(const std::string& address) {
  std::string host, port;
  if (!Split(address, &host, &port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected host:port to listen on, like 127.0.0.1:0 or 0.0.0.0:9464, not \"",
                     address, "\""));
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Unavailable(address, gai_strerror(error));
  }
  OwnedFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const absl::Status status = fd.open() ? BindAndListen(fd.get(), *found, address)
                                        : Unavailable(address, std::strerror(errno));
  freeaddrinfo(found);
  if (!status.ok()) return status;
  return Describe(std::move(fd), host);
}

}  // namespace starling::admin
