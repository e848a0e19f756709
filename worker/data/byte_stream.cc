#include "worker/data/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr size_t kInputBytes = 256 << 10;
constexpr uint64_t kDeflateRatioMax = 1032;  // 258 bytes of output for 2 bits of input

absl::Status SystemError(absl::string_view what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

}  // namespace

ByteStream::ByteStream(std::string path, int fd, uint64_t file_bytes)
    : path_(std::move(path)), fd_(fd), file_bytes_(file_bytes) {}

ByteStream::~ByteStream() {
  if (inflate_ != nullptr) inflateEnd(inflate_.get());
  close(fd_);
}

absl::StatusOr<std::unique_ptr<ByteStream>> ByteStream::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
  if (fd < 0) return SystemError("open", path);
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  std::unique_ptr<ByteStream> stream(new ByteStream(path, fd, static_cast<uint64_t>(info.st_size)));
  STARLING_RETURN_IF_ERROR(stream->Start());
  return stream;
}

absl::Status ByteStream::Start() {
  uint8_t magic[2] = {};
  const ssize_t n = pread(fd_, magic, sizeof(magic), 0);
  if (n < 0) return SystemError("read", path_);
  if (n < 2 || magic[0] != 0x1F || magic[1] != 0x8B) return absl::OkStatus();
  input_.resize(kInputBytes);
  auto stream = std::make_unique<z_stream>();
  std::memset(stream.get(), 0, sizeof(z_stream));
  if (inflateInit2(stream.get(), 16 + MAX_WBITS) != Z_OK) {
    return absl::ResourceExhaustedError(absl::StrCat(path_, ": no memory to inflate it"));
  }
  inflate_ = std::move(stream);
  return absl::OkStatus();
}

uint64_t ByteStream::bytes_max() const {
  uint64_t most = file_bytes_;
  if (gzip() && __builtin_mul_overflow(file_bytes_, kDeflateRatioMax, &most)) {
    return std::numeric_limits<uint64_t>::max();
  }
  return most;
}

absl::StatusOr<size_t> ByteStream::ReadFile(uint8_t* out, size_t size) {
  size_t got = 0;
  while (got < size) {
    const ssize_t n = read(fd_, out + got, size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError("read", path_);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  return got;
}

absl::StatusOr<size_t> ByteStream::Read(absl::Span<uint8_t> out) {
  return gzip() ? Inflate(out) : ReadFile(out.data(), out.size());
}

absl::Status ByteStream::Refill() {
  STARLING_ASSIGN_OR_RETURN(const size_t n, ReadFile(input_.data(), input_.size()));
  inflate_->next_in = input_.data();
  inflate_->avail_in = static_cast<uInt>(n);
  file_ended_ = n == 0;
  return absl::OkStatus();
}

absl::StatusOr<size_t> ByteStream::Inflate(absl::Span<uint8_t> out) {
  size_t got = 0;
  while (got < out.size()) {
    if (inflate_->avail_in == 0 && !file_ended_) STARLING_RETURN_IF_ERROR(Refill());
    if (file_ended_ && member_ended_) break;
    if (file_ended_)
      return absl::InvalidArgumentError(absl::StrCat(path_, ": the gzip stream is truncated"));
    if (member_ended_) {  // another member follows; anything else fails as a bad header below
      inflateReset(inflate_.get());
      member_ended_ = false;
    }
    const uInt room = static_cast<uInt>(std::min<size_t>(out.size() - got, 1u << 30));
    inflate_->next_out = out.data() + got;
    inflate_->avail_out = room;
    const int result = inflate(inflate_.get(), Z_NO_FLUSH);
    got += room - inflate_->avail_out;
    if (result == Z_STREAM_END) {
      member_ended_ = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": the gzip stream is corrupt: ",
                       inflate_->msg != nullptr ? inflate_->msg : "unknown error"));
    }
  }
  return got;
}

}  // namespace starling
