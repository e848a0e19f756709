#include "server/coordinator/host/output_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/beneath.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/safetensors/safetensors.h"
#include "common/values/model_file.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kReadDeadline = absl::Hours(1);  // all attempts
// A shard whose streams broke returns within this time. Otherwise it is gone: the coordinator knows
// it by then, and orders the output again where another copy has taken over.
constexpr int kAttempts = 10;
constexpr absl::Duration kBetweenAttempts = absl::Seconds(1);

absl::StatusOr<OwnedFd> OpenFolderOf(const std::string& root, absl::string_view output) {
  STARLING_ASSIGN_OR_RETURN(const BeneathRoot beneath, BeneathRoot::Open(root));
  const size_t slash = output.rfind('/');
  return beneath.OpenFolder(slash == output.npos ? "." : output.substr(0, slash), /*make=*/true);
}

}  // namespace

OutputWriter::OutputWriter(std::string root, ReadValues read, const MakeEventLoop& make_loop)
    : root_(std::move(root)), read_(std::move(read)), loop_(make_loop("outputs")) {}

OutputWriter::~OutputWriter() { Stop(); }

void OutputWriter::Stop() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    stops_.SignalAll();
  }
  loop_->Stop();
}

void OutputWriter::Write(const JobReply& job, Done done) {
  loop_->Post([this, job, done = std::move(done)] {
    absl::StatusOr<uint64_t> bytes = AttemptUntilShardsAreThere(job);
    if (!stop_) done(std::move(bytes));
  });
}

absl::StatusOr<uint64_t> OutputWriter::AttemptUntilShardsAreThere(const JobReply& job) {
  const absl::Time deadline = MonotonicNow() + kReadDeadline;
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<uint64_t> bytes = stop_ ? absl::CancelledError("") : Attempt(job, deadline);
    if (!absl::IsUnavailable(bytes.status()) || attempt == kAttempts) return bytes;
    const absl::Time next = MonotonicNow() + kBetweenAttempts;
    MutexLock lock(&mutex_);
    while (!stop_ && !stops_.WaitWithDeadline(&mutex_, next)) {
    }
  }
}

absl::StatusOr<uint64_t> OutputWriter::Attempt(const JobReply& job, absl::Time deadline) const {
  if (root_.empty() || read_ == nullptr) {
    return absl::FailedPreconditionError(
        "this coordinator writes no files: it was started without --output-root");
  }
  STARLING_ASSIGN_OR_RETURN(const ReadPoint point, ValuesAtTheEnd(job));
  STARLING_ASSIGN_OR_RETURN(const Layout layout, MakeLayout(job.spec()));
  const std::string& output = job.spec().output();
  STARLING_ASSIGN_OR_RETURN(OwnedFd folder, OpenFolderOf(root_, output));
  auto writer = safetensors::Writer::CreateIn(
      std::move(folder), output.substr(output.rfind('/') + 1), absl::StrCat(root_, "/", output),
      ModelTensors(job.spec().model(), layout), ModelMetadata(job, point));
  const auto of_file = [](const absl::Status& status) {  // not a shard's error: no retry
    return status.ok() ? status : absl::InternalError(status.message());
  };
  if (!writer.ok()) return of_file(writer.status());
  STARLING_RETURN_IF_ERROR(read_(
      job, layout, point, deadline,
      [&](const Slice&, absl::Span<const float> values) {
        return of_file(writer->AppendFloats(values));
      },
      stop_));
  STARLING_RETURN_IF_ERROR(of_file(writer->Finish()));
  return writer->file_bytes();
}

}  // namespace starling::coordinator
