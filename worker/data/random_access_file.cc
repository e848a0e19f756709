#include "worker/data/random_access_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
absl::StatusOr<std::unique_ptr<RandomAccessFile>> RandomAccessFile::Open(const std::string& path) {
  STARLING_ASSIGN_OR_RETURN(RegularFile file, OpenRegularFile(path));
  return std::unique_ptr<RandomAccessFile>(new RandomAccessFile(path, std::move(file)));
}

absl::Status RandomAccessFile::Keep() {
  if (is_kept_) return absl::OkStatus();
  std::vector<uint8_t> all(bytes());
  STARLING_RETURN_IF_ERROR(ReadAt(0, absl::MakeSpan(all)));
  kept_ = std::move(all);
  is_kept_ = true;
  file_.fd.Reset();
  return absl::OkStatus();
}

std::optional<absl::Span<const uint8_t>> RandomAccessFile::Kept(uint64_t offset,
                                                                uint64_t bytes) const {
  if (!is_kept_ || offset > kept_.size() || bytes > kept_.size() - offset) return std::nullopt;
  return absl::MakeConstSpan(kept_).subspan(offset, bytes);
}

absl::Status RandomAccessFile::Truncated(uint64_t offset, size_t expected, size_t got) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": truncated: expected ", expected,
                                                 " bytes from byte ", offset, " on, got ", got));
}

absl::Status RandomAccessFile::ReadAt(uint64_t offset, absl::Span<uint8_t> out) const {
  if (is_kept_) {
    const auto kept = Kept(offset, out.size());
    if (!kept) {
      return Truncated(offset, out.size(), kept_.size() - std::min<uint64_t>(offset, kept_.size()));
    }
    std::copy(kept->begin(), kept->end(), out.begin());
    return absl::OkStatus();
  }
  STARLING_ASSIGN_OR_RETURN(const size_t got, ReadFileAt(file_.fd.get(), offset, out, path_));
  return got == out.size() ? absl::OkStatus() : Truncated(offset, out.size(), got);
}

}  // namespace starling
