#include "tools/bundle/contender.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "tools/local/process.h"

namespace starling::bundle {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kStopPatience = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Contender>> Contender::Start(const Site& site,
                                                            const std::string& name,
                                                            const std::vector<std::string>& argv) {
  const std::string input = absl::StrCat(site.folder, "/", name, ".input");
  if (mkfifo(input.c_str(), 0600) != 0) return SystemError("make", input);
  std::unique_ptr<Contender> contender(new Contender(site, name));
  contender->input_ = open(input.c_str(), O_RDWR | O_CLOEXEC);
  if (contender->input_ < 0) return SystemError("open", input);
  STARLING_ASSIGN_OR_RETURN(contender->pid_, StartProgram(site, name, argv, input));
  STARLING_ASSIGN_OR_RETURN(contender->about_, contender->Answer());
  return contender;
}

Contender::~Contender() {
  if (input_ >= 0) close(input_);
  if (pid_ > 0) static_cast<void>(WaitFor(pid_, absl::Now() + kStopPatience));
}

absl::StatusOr<double> Contender::Rate(const std::string& request) {
  const std::string line = request + "\n";
  if (write(input_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return SystemError("write to", name_);
  }
  STARLING_ASSIGN_OR_RETURN(const Json answer, Answer());
  const double units = answer.value("units", 0.0), seconds = answer.value("seconds", 0.0);
  if (units > 0 && seconds > 0) return units / seconds;
  return absl::InternalError(
      absl::StrCat(name_, " answers '", request, "' by ", answer.dump(), ": expected units"));
}

// Answers contain their own times, so it does not matter when they are read.
absl::StatusOr<Json> Contender::Answer() {
  for (;;) {
    int status = 0;
    const bool ended = waitpid(pid_, &status, WNOHANG) == pid_;
    std::istringstream lines(ReadFile(LogPath(site_, name_)));
    size_t seen = 0;
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      if (!absl::StartsWith(line, "{")) continue;
      Json answer = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (answer.is_discarded() || seen++ < answers_) continue;
      ++answers_;
      if (ended) pid_ = -1;
      return answer;
    }
    if (ended) {
      pid_ = -1;
      return WithLastWords(site_, name_, absl::StrCat(name_, " ", local::ExitText(status)));
    }
    if (absl::Now() >= site_.deadline) {
      static_cast<void>(WaitFor(pid_, site_.deadline));  // kills it
      pid_ = -1;
      return absl::DeadlineExceededError(absl::StrCat(name_, " did not answer in time"));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace starling::bundle
