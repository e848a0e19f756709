#include "tools/local/detach.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"

namespace starling::local {
namespace {

// One line per announcement: a letter for the kind, then the text.
class PipeAnnouncer : public Announcer {
 public:
  explicit PipeAnnouncer(OwnedFd fd) : fd_(std::move(fd)) {}

  void Out(const std::string& line) override { Write('o', line); }
  void Err(const std::string& line) override {
    // Standard error is the log here.
    const std::string entry = absl::StrCat(absl::FormatTime(absl::Now()), "  ", line, "\n");
    fputs(entry.c_str(), stderr);
    Write('e', line);
  }
  void Done(int exit_code) override {
    Write('x', absl::StrCat(exit_code));
    fd_.Reset();
  }

 private:
  void Write(char which, std::string line) {
    if (!fd_.open()) return;
    for (char& c : line) {
      if (c == '\n') c = '\r';  // keeps a multi-line text one announcement
    }
    line = absl::StrCat(std::string(1, which), line, "\n");
    // The reader may be gone; SIGPIPE is ignored.
    [[maybe_unused]] const auto written = write(fd_.get(), line.data(), line.size());
  }
  OwnedFd fd_;
};

[[noreturn]] void RunGrandchild(const std::string& log_path, OwnedFd fd,
                                const std::function<void(Announcer&)>& body) {
  const int null = open("/dev/null", O_RDWR);
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  dup2(null, STDIN_FILENO);
  dup2(log < 0 ? null : log, STDOUT_FILENO);
  dup2(log < 0 ? null : log, STDERR_FILENO);
  if (chdir("/") != 0) _exit(1);
  PipeAnnouncer announcer(std::move(fd));
  body(announcer);
  fflush(stderr);
  _exit(0);
}

absl::StatusOr<int> CopyAnnouncements(OwnedFd fd, std::ostream& out, std::ostream& err) {
  FILE* in = fdopen(fd.Release(), "r");
  char* line = nullptr;
  size_t capacity = 0;
  absl::StatusOr<int> code = absl::UnavailableError("the supervisor ended without a word");
  for (ssize_t length; (length = getline(&line, &capacity, in)) > 1;) {
    std::string text(line + 1, length - 2);
    for (char& c : text) {
      if (c == '\r') c = '\n';
    }
    int number = 0;
    if (line[0] == 'o') out << text << "\n" << std::flush;
    if (line[0] == 'e') err << text << "\n" << std::flush;
    if (line[0] == 'x' && absl::SimpleAtoi(text, &number)) {
      code = number;
      break;
    }
  }
  free(line);
  fclose(in);
  return code;
}

}  // namespace

absl::StatusOr<int> RunDetached(const std::string& log_path, std::ostream& out, std::ostream& err,
                                const std::function<void(Announcer&)>& body) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::UnavailableError(std::strerror(errno));
  OwnedFd in(fds[0]), said(fds[1]);
  out.flush();
  err.flush();
  const pid_t child = fork();
  if (child == 0) {
    in.Reset();
    setsid();
    const pid_t grandchild = fork();
    if (grandchild == 0) RunGrandchild(log_path, std::move(said), body);
    _exit(grandchild < 0 ? 1 : 0);
  }
  if (child < 0) return absl::UnavailableError(absl::StrCat("cannot fork: ", std::strerror(errno)));
  said.Reset();
  waitpid(child, nullptr, 0);
  return CopyAnnouncements(std::move(in), out, err);
}

}  // namespace starling::local
