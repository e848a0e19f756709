// A small HTTP server for people, scrapers and probes: GET only, one request a connection,
// everything bounded. It shares nothing with the data plane but the process: whatever it is sent,
// it takes one thread, a fixed number of sockets and a few kilobytes for each.
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
  // What a browser may do with it: nothing, unless it is a page.
  std::string content_security_policy = "default-src 'none'; frame-ancestors 'none'";
};

// Thread-safe.
class HttpServer {
 public:
  struct Options {
    std::string listen;  // "127.0.0.1:0", "0.0.0.0:9464", "[::1]:0"
    // Open at one time. When one more comes, the one that has been there longest is closed: who
    // sits idle never keeps anybody out.
    size_t connections_max = 128;
    absl::Duration request_deadline = absl::Seconds(5);    // from accept to the whole request
    absl::Duration response_deadline = absl::Seconds(10);  // for the peer to take the response
  };

  // Called on the server's thread: must be quick, and must not wait for another thread for long.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // What came so far.
  struct Counts {
    uint64_t accepted = 0;
    uint64_t answered = 0;   // requests that the handler got
    uint64_t refused = 0;    // malformed, oversized, not GET
    uint64_t timed_out = 0;  // did not send a request, or take the response, in time
    uint64_t evicted = 0;    // closed to make room
    uint64_t open = 0;       // now
  };

  // kInvalidArgument: not an address; kUnavailable: cannot listen there, with the system's reason.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Handler handler);
  virtual ~HttpServer() = default;  // closes all connections, and waits for the handler

  virtual int port() const = 0;
  virtual std::string address() const = 0;  // "127.0.0.1:40123"
  virtual Counts counts() const = 0;
};

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_HTTP_SERVER_H_
