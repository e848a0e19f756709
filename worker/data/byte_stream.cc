#include "worker/data/byte_stream.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr size_t kInputBytes = 256 << 10;
constexpr uint64_t kDeflateRatioMax = 1032;  // 258 bytes of output for 2 bits of input

}  // namespace

ByteStream::ByteStream(std::string path, RegularFile file)
    : path_(std::move(path)), file_(std::move(file)) {}

ByteStream::~ByteStream() {
  if (inflate_ != nullptr) inflateEnd(inflate_.get());
}

absl::StatusOr<std::unique_ptr<ByteStream>> ByteStream::Open(const std::string& path) {
  STARLING_ASSIGN_OR_RETURN(RegularFile file, OpenRegularFile(path));
  std::unique_ptr<ByteStream> stream(new ByteStream(path, std::move(file)));
  STARLING_RETURN_IF_ERROR(stream->Start());
  return stream;
}

absl::Status ByteStream::Start() {
  uint8_t magic[2] = {};
  STARLING_ASSIGN_OR_RETURN(const size_t n,
                            ReadFileAt(file_.fd.get(), 0, absl::MakeSpan(magic), path_));
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
  uint64_t most = file_.bytes;
  if (gzip() && __builtin_mul_overflow(file_.bytes, kDeflateRatioMax, &most)) {
    return std::numeric_limits<uint64_t>::max();
  }
  return most;
}

absl::StatusOr<size_t> ByteStream::ReadFile(absl::Span<uint8_t> out) {
  STARLING_ASSIGN_OR_RETURN(const size_t got, ReadFileAt(file_.fd.get(), position_, out, path_));
  position_ += got;
  return got;
}

absl::StatusOr<size_t> ByteStream::Read(absl::Span<uint8_t> out) {
  return gzip() ? Inflate(out) : ReadFile(out);
}

absl::Status ByteStream::Refill() {
  STARLING_ASSIGN_OR_RETURN(const size_t n, ReadFile(absl::MakeSpan(input_)));
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
