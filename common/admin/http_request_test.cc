#include "common/admin/http_request.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace starling::admin {
namespace {

TEST(HttpRequest, TakesWhatScrapersSend) {
  const HttpParse parse = ParseHttpRequest(
      "GET /curves.json?job=a%20b&x=1 HTTP/1.1\r\nHost: h:1\r\nUser-Agent: Prometheus/2.42.0\r\n"
      "Accept: application/openmetrics-text;version=1.0.0;q=0.75,*/*;q=0.1\r\n"
      "Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\nContent-Length: "
      "0\r\n\r\n");
  EXPECT_EQ(parse.status, 200) << parse.why;
  EXPECT_EQ(parse.request.path, "/curves.json");
  EXPECT_EQ(parse.request.query, "job=a%20b&x=1");
  EXPECT_EQ(ParseHttpRequest("GET / HTTP/1.0\r\n\r\n").status, 200);
}

TEST(HttpRequest, WaitsForTheRest) {
  const std::string whole = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(ParseHttpRequest(absl::string_view(whole).substr(0, n)).status, 0) << n;
  }
  EXPECT_EQ(ParseHttpRequest(whole).status, 200);
}

TEST(HttpRequest, RefusesWhatIsWrong) {
  const auto status = [](absl::string_view bytes) {
    const HttpParse parse = ParseHttpRequest(bytes);
    EXPECT_EQ(parse.why.empty(), parse.status == 200 || parse.status == 0) << bytes;
    return parse.status;
  };
  EXPECT_EQ(status("POST / HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(status("HEAD / HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(status("GET / HTTP/2\r\n\r\n"), 505);
  EXPECT_EQ(status("GET / FTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /\r\n\r\n"), 400);
  EXPECT_EQ(status("GET  / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status("GET http://x/ HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /\xC3\xA4 HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nno colon\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n: x\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(status(absl::StrCat("GET /", std::string(kTargetBytesMax, 'a'), " HTTP/1.1\r\n\r\n")),
            414);
}

// A prefix that cannot become a valid request is refused without waiting for more.
TEST(HttpRequest, RefusesEarly) {
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00", 7);  // a TLS handshake
  EXPECT_EQ(ParseHttpRequest(hello).status, 400);
  EXPECT_EQ(ParseHttpRequest(" ").status, 400);
  EXPECT_EQ(ParseHttpRequest("\r\n").status, 400);
  EXPECT_EQ(ParseHttpRequest(std::string(17, 'A')).status, 400);
  EXPECT_EQ(ParseHttpRequest(absl::string_view("GET /\0", 6)).status, 400);
  const std::string endless =
      absl::StrCat("GET / HTTP/1.1\r\nX: ", std::string(kRequestBytesMax, 'x'));
  EXPECT_EQ(ParseHttpRequest(endless).status, 431);
  EXPECT_EQ(ParseHttpRequest(absl::StrCat(endless, "\r\n\r\n")).status, 431);
}

TEST(HttpRequest, RandomBytesNeverCrash) {
  std::mt19937 random(7);
  const std::string good = "GET /metrics?a=%41 HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n";
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (uint32_t i = random() % 4; i > 0; --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % 8 == 0 ? random() % bytes.size() : bytes.size());
    const HttpParse parse = ParseHttpRequest(bytes);
    if (parse.status != 200) continue;
    ++accepted;
    EXPECT_EQ(parse.request.path.front(), '/');
    QueryValue(parse.request.query, "a");
  }
  EXPECT_GT(accepted, 1000);
}

TEST(HttpRequest, DecodesAQuery) {
  EXPECT_EQ(QueryValue("job=a%20b%2Fc&x=1", "job"), "a b/c");
  EXPECT_EQ(QueryValue("x=1&job=a+b", "job"), "a b");
  EXPECT_EQ(QueryValue("jobs=a", "job"), "");
  EXPECT_EQ(QueryValue("job=%4", "job"), "");
  EXPECT_EQ(QueryValue("job=%zz", "job"), "");
  EXPECT_EQ(QueryValue("job=%41", "job"), "A");
  EXPECT_EQ(QueryValue("", "job"), "");
}

}  // namespace
}  // namespace starling::admin
