// A listening TCP socket.
#ifndef STARLING_COMMON_ADMIN_LISTENER_H_
#define STARLING_COMMON_ADMIN_LISTENER_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/base/owned_fd.h"

namespace starling::admin {

struct Listener {
  OwnedFd fd;  // non-blocking
  int port = 0;
  std::string address;  // "127.0.0.1:40123", "[::1]:40123"
};

// kInvalidArgument: not "host:port"; kUnavailable: no such host, or the system's reason.
absl::StatusOr<Listener> Listen(const std::string& address);

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_LISTENER_H_
