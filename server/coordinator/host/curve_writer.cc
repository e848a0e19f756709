#include "server/coordinator/host/curve_writer.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/beneath.h"
#include "common/base/status_macros.h"
#include "common/tensorboard/curve_events.h"

namespace starling::coordinator {

CurveWriter::CurveWriter(const std::string& root, const MakeEventLoop& make_loop)
    : root_(root), loop_(make_loop("curves")) {}

CurveWriter::~CurveWriter() { Stop(); }

void CurveWriter::Stop() { loop_->Stop(); }

void CurveWriter::Check(const std::string& folder, std::function<void(absl::Status)> done) {
  loop_->Post([this, folder, done = std::move(done)] {
    const absl::StatusOr<OwnedFd> opened = OpenFolder(folder);
    done(opened.ok() ? tensorboard::CheckFolder(opened->get(), folder) : opened.status());
  });
}

// Creates the folder if it is missing.
absl::StatusOr<OwnedFd> CurveWriter::OpenFolder(const std::string& folder) const {
  const std::filesystem::path relative =
      std::filesystem::path(folder).lexically_normal().lexically_relative(
          std::filesystem::path(root_).lexically_normal());
  if (root_.empty() || relative.empty() || *relative.begin() == "..") {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " does not lie beneath --tensorboard-root ", root_.empty() ? "(none)" : root_));
  }
  STARLING_ASSIGN_OR_RETURN(const BeneathRoot root, BeneathRoot::Open(root_));
  return root.OpenFolder(relative.string(), true);
}

void CurveWriter::Write(const CurveNews& news) {
  // The end of a job is never dropped: it closes a file.
  if (waiting_ >= kWaitingMax && !news.over) {
    if (!behind_.exchange(true)) {
      spdlog::warn(
          "{} points wait to be written to {}: the disk is too slow, and further points are "
          "dropped",
          kWaitingMax, news.folder);
    }
    return;
  }
  ++waiting_;
  loop_->Post([this, news] {
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
  if (job.session_step != news.session_step || job.era != news.era) job.file.reset();
  if (job.file == nullptr) {
    STARLING_ASSIGN_OR_RETURN(const OwnedFd folder, OpenFolder(news.folder));
    STARLING_ASSIGN_OR_RETURN(
        job.file, tensorboard::EventFile::CreateIn(folder.get(), news.folder, news.session_step,
                                                   absl::Now()));
    job.session_step = news.session_step;
    job.era = news.era;
    spdlog::info("writes event files: {}", job.file->path());
  }
  if (news.point) STARLING_RETURN_IF_ERROR(job.file->Append(tensorboard::PointEvent(*news.point)));
  if (!news.result) return absl::OkStatus();
  const std::optional<tensorboard::Event> event = tensorboard::EpochEvent(*news.result);
  return event ? job.file->Append(*event) : absl::OkStatus();
}

}  // namespace starling::coordinator
