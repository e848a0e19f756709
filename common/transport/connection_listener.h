// Listens and hands over incoming connections. gRPC's own listener stops for good at the first
// failed accept, such as when the process is out of file descriptors; this one waits.
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

// While file descriptors (WhyNoDescriptors) or the system's memory are short, accepts nothing:
// peers wait in the system's backlog, and the log says so once. Retries every 100 ms.
class ConnectionListener {
 public:
  // Takes ownership of a non-blocking socket. Called on the listener's thread.
  using Take = std::function<void(int listener_fd, int fd)>;

  // "host:port" or "[v6]:port"; listens on all addresses of the host, and for 0.0.0.0 on IPv6, too.
  // Port 0: a free port. kUnavailable: cannot listen, with the system's reason. Peers may connect
  // as soon as this returns, and are accepted after Start.
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Listen(const std::string& address);
  ~ConnectionListener();  // calls Stop()

  void Start(Take take);
  // When this returns, the port is closed and `take` is not called again. Idempotent.
  void Stop();

  int port() const { return port_; }

 private:
  ConnectionListener() = default;
  void Run(const Take& take);
  // Returns 0, or an errno that says why the system has no room for a connection.
  static int AcceptSome(int listener, const Take& take);

  std::vector<OwnedFd> listeners_;
  int port_ = 0;
  OwnedFd stop_;
  std::thread thread_;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_CONNECTION_LISTENER_H_
