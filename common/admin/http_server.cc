#include "common/admin/http_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/admin/listener.h"
#include "common/base/clock.h"
#include "common/sync/mutex.h"

namespace starling::admin {
namespace {

// How long the listener pauses when the process is out of file descriptors.
constexpr absl::Duration kRest = absl::Milliseconds(100);
// Connections accepted before the open ones are served again.
constexpr int kAcceptsAtOnce = 32;
// After the response, further input is read and dropped, so that the peer can read the response
// before the connection closes.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr size_t kLingerBytesMax = 64 << 10;

std::string Render(const HttpResponse& response) {
  return absl::StrCat(
      "HTTP/1.1 ", StatusLine(response.status), "\r\nContent-Type: ", response.content_type,
      "\r\nContent-Length: ", response.body.size(),
      "\r\nConnection: close\r\nCache-Control: no-store\r\n",
      response.status == 405 ? "Allow: GET\r\n" : "",
      "Content-Security-Policy: ", response.content_security_policy,
      "\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
      "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\r\n",
      response.body);
}

HttpResponse TextResponse(int status, absl::string_view why) {
  HttpResponse response;
  response.status = status;
  response.body = absl::StrCat(StatusLine(status), ": ", why, "\n");
  return response;
}

struct Connection {
  enum State { kReading, kWriting, kLingering };
  OwnedFd fd;
  State state = kReading;
  absl::Time deadline;
  std::string in;
  std::string out;
  size_t sent = 0;
  size_t dropped = 0;  // bytes read while lingering
};

class PollServer final : public HttpServer {
 public:
  PollServer(const Options& options, Handler handler, Listener listener)
      : options_(options),
        handler_(std::move(handler)),
        listener_(std::move(listener)),
        stop_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread_([this] { Run(); }) {}

  ~PollServer() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_fd_.get(), &one, sizeof(one));
    thread_.join();
  }

  int port() const override { return listener_.port; }
  std::string address() const override { return listener_.address; }
  Counts counts() const override {
    MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "admin");
    for (;;) {
      std::vector<pollfd> fds = {
          {stop_fd_.get(), POLLIN, 0},
          {MonotonicNow() < rest_until_ ? -1 : listener_.fd.get(), POLLIN, 0}};
      for (const Connection& connection : connections_) {
        const bool writing = connection.state == Connection::kWriting;
        fds.push_back({connection.fd.get(), static_cast<short>(writing ? POLLOUT : POLLIN), 0});
      }
      poll(fds.data(), fds.size(), WaitMillis());
      if (fds[0].revents != 0) return;
      Serve(fds);
      if (fds[1].revents != 0) Accept();
      CountOpen();
    }
  }

  int WaitMillis() const {
    absl::Time next = MonotonicNow() < rest_until_ ? rest_until_ : absl::InfiniteFuture();
    for (const Connection& connection : connections_) next = std::min(next, connection.deadline);
    if (next == absl::InfiniteFuture()) return -1;
    return static_cast<int>(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(next - MonotonicNow()) + 1, 0, 60'000));
  }

  // `fds`: two others, then one per entry of connections_, in the same order.
  void Serve(const std::vector<pollfd>& fds) {
    const absl::Time now = MonotonicNow();
    size_t i = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++i) {
      bool keep = fds[i].revents == 0 || Advance(*it);
      if (keep && now >= it->deadline) {
        if (it->state != Connection::kLingering) Count(&Counts::timed_out);
        // A peer that sent half a request gets a 408; one that does not read the response gets
        // nothing.
        const bool tell = it->state == Connection::kReading && !it->in.empty();
        if (tell) Answer(*it, TextResponse(408, "the request did not come in time"));
        keep = tell && Advance(*it);
      }
      it = keep ? std::next(it) : connections_.erase(it);
    }
  }

  // False: the connection is over.
  bool Advance(Connection& connection) {
    if (connection.state == Connection::kReading && !Read(connection)) return false;
    if (connection.state == Connection::kWriting && !Write(connection)) return false;
    return connection.state != Connection::kLingering || Drop(connection);
  }

  bool Read(Connection& connection) {
    char bytes[kRequestBytesMax + 1];
    const size_t room = kRequestBytesMax + 1 - connection.in.size();
    const ssize_t got = recv(connection.fd.get(), bytes, room, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.in.append(bytes, static_cast<size_t>(got));
    const HttpParse parse = ParseHttpRequest(connection.in);
    if (parse.status == 0) return true;
    Count(parse.status == 200 ? &Counts::answered : &Counts::refused);
    Answer(connection,
           parse.status == 200 ? handler_(parse.request) : TextResponse(parse.status, parse.why));
    return true;
  }

  void Answer(Connection& connection, const HttpResponse& response) {
    connection.out = Render(response);
    connection.in.clear();
    connection.state = Connection::kWriting;
    connection.deadline = MonotonicNow() + options_.response_deadline;
  }

  bool Write(Connection& connection) {
    while (connection.sent < connection.out.size()) {
      const ssize_t sent = send(connection.fd.get(), connection.out.data() + connection.sent,
                                connection.out.size() - connection.sent, MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      connection.sent += static_cast<size_t>(sent);
    }
    connection.out = std::string();
    connection.state = Connection::kLingering;
    connection.deadline = MonotonicNow() + kLinger;
    return shutdown(connection.fd.get(), SHUT_WR) == 0;
  }

  bool Drop(Connection& connection) {
    char bytes[4096];
    const ssize_t got = recv(connection.fd.get(), bytes, sizeof(bytes), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    connection.dropped += static_cast<size_t>(got);
    return got > 0 && connection.dropped < kLingerBytesMax;
  }

  void Accept() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      const int fd = accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
        rest_until_ = MonotonicNow() + kRest;
        if (!connections_.empty()) Evict();
        return;
      }
      if (fd < 0) return;  // none is pending, or it was reset before accept
      Count(&Counts::accepted);
      if (connections_.size() >= options_.connections_max) Evict();
      connections_.emplace_back();
      connections_.back().fd.Reset(fd);
      connections_.back().deadline = MonotonicNow() + options_.request_deadline;
    }
  }

  // The oldest connection: the list is in order of arrival.
  void Evict() {
    Count(&Counts::evicted);
    connections_.pop_front();
  }

  void Count(uint64_t Counts::*what) {
    MutexLock lock(&mutex_);
    ++(counts_.*what);
  }
  void CountOpen() {
    MutexLock lock(&mutex_);
    counts_.open = connections_.size();
  }

  const Options options_;
  const Handler handler_;
  const Listener listener_;
  const OwnedFd stop_fd_;
  mutable Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);

  // Owned by the server's thread.
  std::list<Connection> connections_;  // in order of arrival
  absl::Time rest_until_ = absl::InfinitePast();

  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options,
                                                              Handler handler) {
  absl::StatusOr<Listener> listener = Listen(options.listen);
  if (!listener.ok()) return listener.status();
  return std::make_unique<PollServer>(options, std::move(handler), *std::move(listener));
}

}  // namespace starling::admin
