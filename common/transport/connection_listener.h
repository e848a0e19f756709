// Listens, and hands over the connections that come. gRPC's own listener ends for good with the
// first accept that fails, as it does when the process has run out of file descriptors; this one
// waits.
#ifndef STARLING_COMMON_TRANSPORT_CONNECTION_LISTENER_H_
#define STARLING_COMMON_TRANSPORT_CONNECTION_LISTENER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/owned_fd.h"

namespace starling {

// While file descriptors (WhyNoDescriptors) or the system's memory are short nothing is accepted:
// peers wait in the system's queue, and the log says so once. Looks again every 100 ms.
class ConnectionListener {
 public:
  // Takes a non-blocking socket, to be closed by it; on the listener's thread.
  using Take = std::function<void(int listener_fd, int fd)>;

  // "host:port" or "[v6]:port"; all addresses of the host, 0.0.0.0 with IPv6, too. Port 0: a free
  // one. kUnavailable: cannot listen, with the system's reason. Peers may connect from now on, and
  // are accepted from Start on.
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Listen(const std::string& address);
  ~ConnectionListener();  // Stop()

  void Start(Take take);
  // Nothing is taken any more when this returns, and nobody listens. Idempotent.
  void Stop();

  int port() const { return port_; }

 private:
  ConnectionListener() = default;
  void Run(const Take& take);
  // 0, or the system's reason why it has no room for a connection, as errno.
  static int AcceptSome(int listener, const Take& take);

  std::vector<OwnedFd> listeners_;
  int port_ = 0;
  OwnedFd stop_;
  std::thread thread_;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_CONNECTION_LISTENER_H_
