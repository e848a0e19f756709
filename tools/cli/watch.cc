#include "tools/cli/watch.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/loss_text.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(250);
constexpr absl::Duration kLineInterval = absl::Seconds(2);

// Writes lines and, on a terminal, one line below them that is updated in place.
class ProgressWriter {
 public:
  explicit ProgressWriter(Context& context) : context_(context) {}

  void Line(const std::string& line) {
    Clear();
    context_.err << line << "\n" << std::flush;
  }

  // On a terminal, shows the line at once; otherwise only if it is new and the interval is over.
  void Progress(std::string line) {
    if (context_.terminal) {
      if (context_.columns > 1) line = line.substr(0, context_.columns - 1);
      context_.err << "\r\x1b[K" << line << std::flush;
      live_ = true;
      return;
    }
    const absl::Time now = context_.now();
    if (line == last_ || now < next_) return;
    next_ = now + kLineInterval;
    last_ = line;
    context_.err << line << "\n" << std::flush;
  }

  void Clear() {
    if (live_) context_.err << "\r\x1b[K" << std::flush;
    live_ = false;
  }

 private:
  Context& context_;
  bool live_ = false;
  std::string last_;
  absl::Time next_ = absl::InfinitePast();
};

int End(const JobStatus& status, ProgressWriter& progress, Context& context) {
  progress.Line(absl::StrCat(status.name(), "  ", JobState_Name(status.state()), " after ",
                             DurationText(status.running_seconds()),
                             status.reason().empty() ? "" : ": ", PrintableText(status.reason())));
  const EpochResult* evaluation = LastEvaluation(status);
  if (status.state() == SUCCEEDED && evaluation != nullptr) {
    context.out << (evaluation->has_test_accuracy()
                        ? absl::StrFormat("test_accuracy=%.4f\n", evaluation->test_accuracy())
                        : absl::StrCat("test_loss=", LossText(evaluation->test_loss()), "\n"))
                << std::flush;
  }
  if (status.state() != SUCCEEDED || status.output().state() != OutputStatus::FAILED) {
    return ExitCodeFor(status.state());
  }
  progress.Line(absl::StrCat("starling: ", status.name(), " succeeded, but its values were not ",
                             "written to ", status.output().path(), ": ", status.output().error()));
  return kExitError;
}

// Whether the file that the job asked for is still to come.
bool AwaitsOutput(const JobStatus& status) {
  const OutputStatus::State state = status.output().state();
  return status.state() == SUCCEEDED &&
         (state == OutputStatus::WAITING || state == OutputStatus::WRITING);
}

}  // namespace

absl::StatusOr<int> WatchJob(const std::string& name, absl::Time deadline, Client& client,
                             Context& context) {
  ProgressWriter progress(context);
  absl::Time reached = context.now();
  std::set<uint32_t> shown;  // epochs
  std::optional<uint32_t> restarts;
  for (;;) {
    const auto reply = client.GetJob(name);
    const absl::Time now = context.now();
    if (reply.ok()) {
      reached = now;
      const JobStatus& status = reply->status();
      // What was shown beyond the checkpoint is done again.
      if (status.restarts() > restarts.value_or(status.restarts())) {
        progress.Line(absl::StrCat(name, "  went back: ", status.last_restart()));
        shown.erase(shown.lower_bound(status.epoch()), shown.end());
      }
      restarts = status.restarts();
      const bool evaluates = reply->spec().evaluate().every_epochs() > 0;
      for (const EpochResult& result : status.epochs_done()) {
        // An epoch's losses arrive before its evaluation.
        if (evaluates && !result.evaluated()) continue;
        if (shown.insert(result.epoch()).second) {
          progress.Line(absl::StrCat(name, "  ", EpochLine(result, status)));
        }
      }
      const bool writes = AwaitsOutput(status);
      if (IsEnd(status.state()) && !writes) return End(status, progress, context);
      std::string line = ProgressLine(status, reply->spec());
      if (context.terminal && line.size() >= static_cast<size_t>(context.columns)) {
        line = ShortProgressLine(status, reply->spec());
      }
      if (writes) line = absl::StrCat(name, "  writes its values to ", status.output().path());
      progress.Progress(line);
    } else if (absl::IsUnavailable(reply.status()) && now - reached < kUnreachableMax) {
      progress.Progress("the coordinator does not answer; trying again for 30 s");
    } else {
      progress.Clear();
      return reply.status();
    }
    if (now >= deadline) {
      progress.Line(absl::StrCat("starling: ", name,
                                 " has not ended in the time given; it goes on. ",
                                 "Come back with: starling wait ", name));
      return kExitTimeout;
    }
    if (!context.sleep(std::min(kPollInterval, deadline - now))) {
      progress.Line(absl::StrCat("detached: ", name, " goes on. Come back with: starling wait ",
                                 name, "; stop it with: starling cancel ", name));
      return kExitOk;
    }
  }
}

}  // namespace starling::cli
