// The little of HTTP/1.1 that the admin port understands: GET, without a body, one request a
// connection.
#ifndef STARLING_COMMON_ADMIN_HTTP_REQUEST_H_
#define STARLING_COMMON_ADMIN_HTTP_REQUEST_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace starling::admin {

// Of a request, from its first byte to the empty line.
inline constexpr size_t kRequestBytesMax = 8192;
inline constexpr size_t kTargetBytesMax = 1024;

struct HttpRequest {
  std::string path;   // "/metrics"; not decoded
  std::string query;  // behind the '?', without it; not decoded
};

struct HttpParse {
  // 0: not all of it is there yet; 200: `request` is good; else the status of the refusal, and why.
  int status = 0;
  std::string why;
  HttpRequest request;
};

// What the bytes that came so far are. Refuses as soon as no continuation could be good: 400
// malformed or with a body, 405 not GET, 414 a long target, 431 too long, 505 another version.
HttpParse ParseHttpRequest(absl::string_view bytes);

// The value of `name` in a query, with %XX and '+' decoded; empty where there is none, or it is
// malformed.
std::string QueryValue(absl::string_view query, absl::string_view name);

// "404 Not Found"
absl::string_view StatusLine(int status);

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_HTTP_REQUEST_H_
