#include "common/admin/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "common/admin/testing/http_client.h"

namespace starling::admin {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpServer::Options options = {}) {
    options.listen = "127.0.0.1:0";
    auto server = HttpServer::Start(options, [this](const HttpRequest& request) {
      HttpResponse response;
      response.body =
          request.path == "/big" ? std::string(big_, 'x') : "you asked for " + request.path;
      return response;
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // Waits for the condition; the test's own deadline is the bound.
  template <typename Condition>
  HttpServer::Counts Await(Condition condition) {
    HttpServer::Counts counts = server_->counts();
    while (!condition(counts)) {
      absl::SleepFor(absl::Milliseconds(5));
      counts = server_->counts();
    }
    return counts;
  }

  std::atomic<size_t> big_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersAndCloses) {
  Start();
  const std::string reply = Get(server_->port(), "/metrics?x=1");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 22\r\n"));
  EXPECT_THAT(reply, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Security-Policy: default-src 'none';"));
  EXPECT_THAT(reply, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\nyou asked for /metrics"));
  EXPECT_EQ(server_->counts().answered, 1u);
  EXPECT_EQ(server_->address(), absl::StrCat("127.0.0.1:", server_->port()));
}

TEST_F(HttpServerTest, ARequestMayComeByteByByte) {
  Start();
  TestSocket socket(server_->port());
  for (const char c : std::string("GET /slow HTTP/1.1\r\n\r\n"))
    socket.Send(absl::string_view(&c, 1));
  EXPECT_THAT(socket.ReadAll(), EndsWith("you asked for /slow"));
}

TEST_F(HttpServerTest, RefusalsAreReadable) {
  Start();
  TestSocket post(server_->port());
  post.Send("POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + std::string(20'000, 'x'));
  const std::string reply = post.ReadAll();
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(reply, HasSubstr("Allow: GET\r\n"));
  TestSocket large(server_->port());
  large.Send("GET / HTTP/1.1\r\nX: " + std::string(20'000, 'x'));
  EXPECT_THAT(large.ReadAll(), StartsWith("HTTP/1.1 431 "));
  TestSocket junk(server_->port());
  junk.Send(std::string("\x16\x03\x01\x02", 4));
  EXPECT_THAT(junk.ReadAll(), StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(server_->counts().refused, 3u);
  EXPECT_EQ(server_->counts().answered, 0u);
}

TEST_F(HttpServerTest, WhoIsSlowIsCutOff) {
  HttpServer::Options options;
  options.request_deadline = absl::Milliseconds(50);
  Start(options);
  TestSocket silent(server_->port());
  EXPECT_EQ(silent.ReadAll(), "");
  TestSocket half(server_->port());
  half.Send("GET / HTTP/1.1\r\n");
  EXPECT_THAT(half.ReadAll(), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(server_->counts().timed_out, 2u);
}

// The response exceeds the socket buffers, and the peer does not read.
TEST_F(HttpServerTest, WhoDoesNotReadIsCutOff) {
  big_ = 64 << 20;
  HttpServer::Options options;
  options.response_deadline = absl::Milliseconds(50);
  Start(options);
  TestSocket lazy(server_->port(), 4096);
  lazy.Send("GET /big HTTP/1.1\r\n\r\n");
  Await([](const HttpServer::Counts& counts) { return counts.timed_out == 1 && counts.open == 0; });
  EXPECT_THAT(Get(server_->port(), "/next"), EndsWith("/next"));
}

TEST_F(HttpServerTest, ALargeResponseArrivesWhole) {
  big_ = 5 << 20;
  Start();
  const std::string reply = Get(server_->port(), "/big");
  EXPECT_EQ(reply.size() - reply.find("\r\n\r\n") - 4, big_);
}

TEST_F(HttpServerTest, AThousandIdleConnectionsKeepNobodyOut) {
  constexpr size_t kIdle = 1000;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < kIdle + 400)
    GTEST_SKIP() << "only " << files.rlim_max << " files may be open";
  files.rlim_cur = std::max<rlim_t>(files.rlim_cur, kIdle + 400);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);

  HttpServer::Options options;
  options.request_deadline = absl::Hours(1);
  Start(options);
  std::deque<TestSocket> idle;
  for (size_t i = 0; i < kIdle; ++i) {
    idle.emplace_back(server_->port());
    ASSERT_TRUE(idle.back().connected()) << i;
  }
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Get(server_->port(), "/in"), EndsWith("/in"));
  const HttpServer::Counts counts =
      Await([](const HttpServer::Counts& now) { return now.accepted == kIdle + 10; });
  EXPECT_LE(counts.open, options.connections_max);
  EXPECT_GE(counts.evicted, kIdle + 10 - 10 - options.connections_max);
  idle.clear();
  EXPECT_THAT(Get(server_->port(), "/after"), EndsWith("/after"));
}

TEST_F(HttpServerTest, ManyAtOnceAreAllServed) {
  Start();
  std::vector<std::thread> clients;
  std::atomic<int> served = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int j = 0; j < 20; ++j) served += Get(server_->port(), "/x").find("200 OK") == 9 ? 1 : 0;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(served, 160);
}

TEST_F(HttpServerTest, EndsWithConnectionsOpen) {
  Start();
  TestSocket idle(server_->port());
  Await([](const HttpServer::Counts& counts) { return counts.open == 1; });
  server_.reset();
  EXPECT_EQ(idle.ReadAll(), "");
}

TEST(HttpServerStart, SaysWhyNot) {
  const auto handler = [](const HttpRequest&) { return HttpResponse(); };
  for (const char* address :
       {"", "9464", ":9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "::1:80"}) {
    const auto server = HttpServer::Start({.listen = address}, handler);
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  const auto first = HttpServer::Start({.listen = "127.0.0.1:0"}, handler);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = HttpServer::Start({.listen = (*first)->address()}, handler);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("Address already in use"));
}

TEST(HttpServerStart, SpeaksIpv6WhereThereIsSome) {
  const int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  const bool there =
      probe >= 0 && bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  if (probe >= 0) close(probe);
  if (!there) GTEST_SKIP() << "this machine has no address ::1";
  const auto server =
      HttpServer::Start({.listen = "[::1]:0"}, [](const HttpRequest&) { return HttpResponse(); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->address(), absl::StrCat("[::1]:", (*server)->port()));
}

}  // namespace
}  // namespace starling::admin
