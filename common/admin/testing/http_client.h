// For tests: a client that can also behave badly.
#ifndef STARLING_COMMON_ADMIN_TESTING_HTTP_CLIENT_H_
#define STARLING_COMMON_ADMIN_TESTING_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace starling::admin {

// A connection to a port on this machine. The destructor closes it.
class TestSocket {
 public:
  explicit TestSocket(int port, int receive_buffer_bytes = 0)
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  TestSocket(TestSocket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  ~TestSocket() {
    if (fd_ >= 0) close(fd_);
  }

  bool connected() const { return connected_; }
  void Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the peer is gone
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // Reads until the peer ends the connection or is silent for 30 s.
  std::string ReadAll() {
    std::string all;
    char bytes[4096];
    for (;;) {
      pollfd wait = {fd_, POLLIN, 0};
      if (poll(&wait, 1, 30'000) <= 0) return absl::StrCat(all, "(silence)");
      const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
      if (got <= 0) return all;
      all.append(bytes, static_cast<size_t>(got));
    }
  }

 private:
  int fd_;
  bool connected_ = false;
};

inline std::string Get(int port, absl::string_view target) {
  TestSocket socket(port);
  socket.Send(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: test\r\n\r\n"));
  return socket.ReadAll();
}

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_TESTING_HTTP_CLIENT_H_
