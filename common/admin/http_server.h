// A small HTTP server for people, scrapers and probes: GET only, one request per connection,
// everything bounded. It shares only the process with the data plane: whatever it receives, it uses
// one thread, a fixed number of sockets and a few kilobytes for each.
#ifndef STARLING_COMMON_ADMIN_HTTP_SERVER_H_
#define STARLING_COMMON_ADMIN_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/admin/http_request.h"

namespace starling::admin {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  // What a browser may do with the response: nothing, unless it is a page.
  std::string content_security_policy = "default-src 'none'; frame-ancestors 'none'";
};

// Thread-safe.
class HttpServer {
 public:
  struct Options {
    std::string listen;  // "127.0.0.1:0", "0.0.0.0:9464", "[::1]:0"
    // Open at one time. A further connection evicts the oldest one, so idle peers cannot lock
    // others out.
    size_t connections_max = 128;
    absl::Duration request_deadline = absl::Seconds(5);    // from accept to the whole request
    absl::Duration response_deadline = absl::Seconds(10);  // for the peer to read the response
  };

  // Called on the server's thread: must be quick, and must not wait long for another thread.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // Counters since the start, except for `open`.
  struct Counts {
    uint64_t accepted = 0;
    uint64_t answered = 0;   // requests passed to the handler
    uint64_t refused = 0;    // malformed, oversized, not GET
    uint64_t timed_out = 0;  // request not sent, or response not read, in time
    uint64_t evicted = 0;    // closed for a newer connection
    uint64_t open = 0;       // now
  };

  // kInvalidArgument: not an address; kUnavailable: cannot listen on it, with the system's reason.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Handler handler);
  virtual ~HttpServer() = default;  // closes all connections, waits for the handler

  virtual int port() const = 0;
  virtual std::string address() const = 0;  // "127.0.0.1:40123"
  virtual Counts counts() const = 0;
};

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_HTTP_SERVER_H_
