#include "server/coordinator/service/curve_writer.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/tensorboard/curve_events.h"

namespace starling {

CurveWriter::CurveWriter(const std::string& root) : root_(root), loop_("curves") {}

CurveWriter::~CurveWriter() { Stop(); }

void CurveWriter::Stop() { loop_.Stop(); }

void CurveWriter::Check(const std::string& folder, std::function<void(absl::Status)> done) {
  loop_.Post([this, folder, done = std::move(done)] {
    absl::Status status = CheckBeneath(folder);
    if (status.ok()) status = tensorboard::CheckFolder(folder);
    done(std::move(status));
  });
}

// By where the folder really is, as far as it is there.
absl::Status CurveWriter::CheckBeneath(const std::string& folder) const {
  std::error_code error;
  const auto real = std::filesystem::weakly_canonical(folder, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot find the folder ", folder, ": ", error.message()));
  }
  const auto root = std::filesystem::weakly_canonical(root_, error);
  const auto relative = real.lexically_relative(root);
  if (!root_.empty() && !error && !relative.empty() && *relative.begin() != "..") {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(folder, " is ", real.string(), ", which does not lie beneath ",
                   "--tensorboard-root ", root_.empty() ? "(none)" : root_));
}

void CurveWriter::Write(const CurveNews& news) {
  // The end of a job is always told: it closes a file.
  if (waiting_ >= kWaitingMax && !news.over) {
    if (!behind_.exchange(true)) {
      spdlog::warn(
          "{} points wait to be written to {}: the disk is too slow, and more are left out",
          kWaitingMax, news.folder);
    }
    return;
  }
  ++waiting_;
  loop_.Post([this, news] {
    --waiting_;
    behind_ = false;
    Carry(news);
  });
}

void CurveWriter::Carry(const CurveNews& news) {
  Job& job = jobs_[news.job];
  const absl::Status status = Append(news, job);
  if (!status.ok() && !job.failing) {
    spdlog::warn(
        "{}; tries again with the next point, and does not write this one (starling metrics JOB "
        "--tensorboard DIR writes them all)",
        std::string(status.message()));
  }
  job.failing = !status.ok();
  if (news.over) jobs_.erase(news.job);
}

absl::Status CurveWriter::Append(const CurveNews& news, Job& job) const {
  if (!news.point && !news.result) return absl::OkStatus();
  if (job.file == nullptr) {
    STARLING_RETURN_IF_ERROR(CheckBeneath(news.folder));
    STARLING_ASSIGN_OR_RETURN(
        job.file, tensorboard::EventFile::Create(news.folder, news.session_step, absl::Now()));
    spdlog::info("writes event files: {}", job.file->path());
  }
  if (news.point) STARLING_RETURN_IF_ERROR(job.file->Append(tensorboard::PointEvent(*news.point)));
  if (!news.result) return absl::OkStatus();
  const std::optional<tensorboard::Event> event = tensorboard::EpochEvent(*news.result);
  return event ? job.file->Append(*event) : absl::OkStatus();
}

}  // namespace starling
