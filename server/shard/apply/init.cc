#include "server/shard/apply/init.h"

#include <Random123/philox.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"
#include "common/base/xxh3.h"

namespace starling {
namespace {

using Philox = r123::Philox4x64;

// 53 bits, uniform on [0, 1).
double UnitInterval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

double StandardNormal(const Philox::ctr_type& random) {
  const double radius = std::sqrt(-2 * std::log(1 - UnitInterval(random[0])));  // 1 - u > 0
  return radius * std::cos(2 * std::numbers::pi * UnitInterval(random[1]));
}

// Rounding to float must not reach the open end of [-value, value).
float UniformElement(double value, const Philox::ctr_type& random) {
  const float element = static_cast<float>(value * (2 * UnitInterval(random[0]) - 1));
  const float end = static_cast<float>(value);
  return element < end || end <= 0 ? element : std::nextafter(end, 0.0f);
}

absl::Status Unreadable(const Graph& graph, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("model.init: ", graph.init_file(),
                                                    " cannot be read on this shard: ", why,
                                                    "; every shard must see it under this path"));
}

absl::Status ReadAll(const Graph& graph, int file, uint64_t offset, uint64_t bytes, char* out) {
  static_assert(std::endian::native == std::endian::little);  // as in the file
  while (bytes > 0) {
    const ssize_t got = pread(file, out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Unreadable(graph, got < 0 ? std::strerror(errno) : "it is too short");
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
    out += got;
  }
  return absl::OkStatus();
}

}  // namespace

void InitParameter(uint64_t seed, absl::string_view name, const Initializer& init, uint64_t begin,
                   uint64_t length, float* out) {
  if (init.kind() != Initializer::UNIFORM && init.kind() != Initializer::NORMAL) {
    std::fill_n(out, length,
                init.kind() == Initializer::CONSTANT ? static_cast<float>(init.value()) : 0.0f);
    return;
  }
  const Philox philox;
  const Philox::key_type key = {{seed, XXH3_64bits(name.data(), name.size())}};
  for (uint64_t i = 0; i < length; ++i) {
    const Philox::ctr_type random = philox(Philox::ctr_type{{begin + i, 0, 0, 0}}, key);
    out[i] = init.kind() == Initializer::UNIFORM
                 ? UniformElement(init.value(), random)
                 : static_cast<float>(init.value() * StandardNormal(random));
  }
}

// A regular file, open for reading.
struct FirstValues::OpenFile {
  OwnedFd fd;
  FileId id;
};

absl::Status FirstValues::Make(const Slice& slice, float* out) {
  std::optional<OpenFile> file;
  for (const Segment& segment : slice.segments) {
    const Parameter& parameter = graph_.parameters(static_cast<int>(segment.param));
    float* const to = out + segment.slice_begin;
    if (parameter.init().kind() != Initializer::FILE) {
      InitParameter(seed_, parameter.name(), parameter.init(), segment.param_begin, segment.length,
                    to);
      continue;
    }
    if (!file.has_value()) {
      STARLING_ASSIGN_OR_RETURN(OpenFile opened, Open());
      file.emplace(std::move(opened));
    }
    STARLING_RETURN_IF_ERROR(Read(*file, segment, to));
  }
  return absl::OkStatus();
}

absl::StatusOr<FirstValues::OpenFile> FirstValues::Open() const {
  // O_NONBLOCK: opening a pipe must not block.
  OpenFile file;
  file.fd.Reset(open(graph_.init_file().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd.open()) return Unreadable(graph_, std::strerror(errno));
  struct stat info;
  if (fstat(file.fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return Unreadable(graph_, "expected a regular file");
  file.id = {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size),
             int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
  return file;
}

absl::Status FirstValues::VerifyOnce(const OpenFile& file, uint32_t param) {
  MutexLock lock(&mutex_);
  if (file.id != verified_file_) verified_.clear();
  verified_file_ = file.id;
  if (verified_.count(param) > 0) return absl::OkStatus();
  constexpr uint64_t kChunkBytes = 1 << 20;
  std::vector<char> chunk(kChunkBytes);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> digest(XXH3_createState(),
                                                                        &XXH3_freeState);
  XXH3_64bits_reset(digest.get());
  const Parameter& parameter = graph_.parameters(static_cast<int>(param));
  uint64_t bytes = sizeof(float);
  for (const int64_t dim : parameter.shape()) bytes *= static_cast<uint64_t>(dim);
  for (uint64_t at = 0; at < bytes; at += kChunkBytes) {
    const uint64_t length = std::min(kChunkBytes, bytes - at);
    STARLING_RETURN_IF_ERROR(
        ReadAll(graph_, file.fd.get(), parameter.init().file_offset() + at, length, chunk.data()));
    XXH3_64bits_update(digest.get(), chunk.data(), length);
  }
  if (XXH3_64bits_digest(digest.get()) != parameter.init().file_digest()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model.init: ", graph_.init_file(), " is not the file that the job was submitted with: \"",
        parameter.name(), "\" has other bytes; every shard must see the same file"));
  }
  verified_.insert(param);
  return absl::OkStatus();
}

absl::Status FirstValues::Read(const OpenFile& file, const Segment& segment, float* out) {
  STARLING_RETURN_IF_ERROR(VerifyOnce(file, segment.param));
  const Parameter& parameter = graph_.parameters(static_cast<int>(segment.param));
  return ReadAll(graph_, file.fd.get(),
                 parameter.init().file_offset() + segment.param_begin * sizeof(float),
                 segment.length * sizeof(float), reinterpret_cast<char*>(out));
}

}  // namespace starling
