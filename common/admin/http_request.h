// The subset of HTTP/1.1 that the admin port understands: GET without a body, one request per
// connection.
#ifndef STARLING_COMMON_ADMIN_HTTP_REQUEST_H_
#define STARLING_COMMON_ADMIN_HTTP_REQUEST_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace starling::admin {

// From a request's first byte to the empty line.
inline constexpr size_t kRequestBytesMax = 8192;
inline constexpr size_t kTargetBytesMax = 1024;

struct HttpRequest {
  std::string path;   // "/metrics"; not decoded
  std::string query;  // after the '?'; not decoded
};

struct HttpParse {
  // 0: incomplete; 200: `request` is valid; else the status of the refusal, with `why`.
  int status = 0;
  std::string why;
  HttpRequest request;
};

// Parses the bytes received so far. Refuses as soon as no continuation can be valid: 400 malformed
// or with a body, 405 not GET, 414 target too long, 431 request too long, 505 another version.
HttpParse ParseHttpRequest(absl::string_view bytes);

// The value of `name` in a query, with %XX and '+' decoded; empty if it is absent or malformed.
std::string QueryValue(absl::string_view query, absl::string_view name);

// "404 Not Found"
absl::string_view StatusLine(int status);

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_HTTP_REQUEST_H_
