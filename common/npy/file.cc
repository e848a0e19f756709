// Files: the frame around the header, the data, and their sizes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/special_file.h"
#include "common/base/status_macros.h"
#include "common/npy/npy.h"

namespace starling::npy {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = 6;
constexpr size_t kFrameBytesMax = kMagicBytes + 2 + 4;  // magic, version, the longest length

absl::Status Invalid(absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("npy: ", message));
}

absl::Status SystemError(const std::string& path, const char* what) {
  const std::string text = absl::StrCat(path, ": cannot ", what, ": ", std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

absl::Status In(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Where the header lies, from the file's first bytes.
struct Frame {
  size_t begin = 0;
  size_t bytes = 0;
};

absl::StatusOr<Frame> ReadFrame(absl::Span<const uint8_t> file) {
  if (file.size() < kMagicBytes || std::memcmp(file.data(), kMagic, kMagicBytes) != 0) {
    return Invalid("expected a file that begins with \\x93NUMPY (see numpy.save), got another one");
  }
  if (file.size() < kMagicBytes + 2) return Invalid("the file ends within the version");
  const int major = file[kMagicBytes], minor = file[kMagicBytes + 1];
  if ((major != 1 && major != 2) || minor != 0) {
    return Invalid(absl::StrCat("expected version 1.0 or 2.0, got ", major, ".", minor));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  Frame frame{.begin = kMagicBytes + 2 + length_bytes};
  if (file.size() < frame.begin) return Invalid("the file ends within the header's length");
  for (size_t i = 0; i < length_bytes; ++i) {
    frame.bytes |= size_t{file[kMagicBytes + 2 + i]} << (8 * i);
  }
  if (frame.bytes > kHeaderBytesMax) {
    return Invalid(absl::StrCat("expected a header of at most ", kHeaderBytesMax, " bytes, got ",
                                frame.bytes));
  }
  return frame;
}

absl::StatusOr<uint64_t> DataBytes(const Header& header) {
  uint64_t bytes = DTypeBytes(header.dtype);
  for (int64_t dim : header.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return Invalid(absl::StrCat("the shape (", absl::StrJoin(header.shape, ", "),
                                  ") has more than 2^64 bytes"));
    }
  }
  return bytes;
}

// Parses the header and checks that `file_bytes` is exactly the size that it implies.
absl::StatusOr<Header> CheckedHeader(absl::string_view text, uint64_t begin, uint64_t file_bytes) {
  STARLING_ASSIGN_OR_RETURN(Header header, ParseHeader(text));
  STARLING_ASSIGN_OR_RETURN(const uint64_t wanted, DataBytes(header));
  const uint64_t given = file_bytes - begin - text.size();
  if (wanted != given) {
    return Invalid(absl::StrCat("expected ", wanted, " bytes of data for ",
                                DTypeWords(header.dtype), " of shape (",
                                absl::StrJoin(header.shape, ", "), "), got ", given));
  }
  return header;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Reads all of `out` at `offset`. The file's size is known, so an early end is a system error.
absl::Status ReadAt(int fd, uint64_t offset, absl::Span<uint8_t> out, const std::string& path) {
  while (!out.empty()) {
    const ssize_t got = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, "read");
    if (got == 0) return absl::UnavailableError(absl::StrCat(path, ": became shorter while read"));
    offset += static_cast<uint64_t>(got);
    out.remove_prefix(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, const void* data, size_t bytes, const std::string& path) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = write(fd, from, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(path, "write");
    from += put;
    bytes -= static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Array> Parse(absl::Span<const uint8_t> file) {
  STARLING_ASSIGN_OR_RETURN(const Frame frame, ReadFrame(file));
  if (file.size() - frame.begin < frame.bytes) return Invalid("the file ends within the header");
  const absl::string_view text(reinterpret_cast<const char*>(file.data()) + frame.begin,
                               frame.bytes);
  STARLING_ASSIGN_OR_RETURN(const Header header, CheckedHeader(text, frame.begin, file.size()));
  const auto data = file.subspan(frame.begin + frame.bytes);
  return Array{header.dtype, header.shape, {data.begin(), data.end()}};
}

absl::StatusOr<Array> ReadFile(const std::string& path, uint64_t data_bytes_max) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return SystemError(path, "open");
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return SystemError(path, "look at");
  if (!S_ISREG(info.st_mode)) return In(path, Invalid("expected a regular file"));
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);

  std::vector<uint8_t> head(std::min<uint64_t>(file_bytes, kFrameBytesMax));
  STARLING_RETURN_IF_ERROR(ReadAt(file.get(), 0, absl::MakeSpan(head), path));
  const auto frame = ReadFrame(head);
  if (!frame.ok()) return In(path, frame.status());
  if (file_bytes - frame->begin < frame->bytes) {
    return In(path, Invalid("the file ends within the header"));
  }
  std::vector<uint8_t> text(frame->bytes);
  STARLING_RETURN_IF_ERROR(ReadAt(file.get(), frame->begin, absl::MakeSpan(text), path));
  const auto header = CheckedHeader({reinterpret_cast<const char*>(text.data()), text.size()},
                                    frame->begin, file_bytes);
  if (!header.ok()) return In(path, header.status());

  Array array{header->dtype, header->shape, {}};
  const uint64_t data_begin = frame->begin + frame->bytes;
  if (file_bytes - data_begin > data_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": npy: expected at most ",
                                                     data_bytes_max, " bytes of data, got ",
                                                     file_bytes - data_begin, ": split the array"));
  }
  array.bytes.resize(file_bytes - data_begin);
  STARLING_RETURN_IF_ERROR(ReadAt(file.get(), data_begin, absl::MakeSpan(array.bytes), path));
  return array;
}

absl::Status WriteFile(const std::string& path, const Array& array) {
  const Header header{array.dtype, array.shape};
  const auto wanted = DataBytes(header);
  STARLING_CHECK(wanted.ok() && *wanted == array.bytes.size(), "bytes of another shape");
  const bool in_place = IsSpecialFile(path);
  std::string temporary = path + ".XXXXXX";
  const Descriptor file(in_place ? open(path.c_str(), O_WRONLY | O_CLOEXEC)
                                 : mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) return SystemError(path, "create");
  const std::string head = EncodeHeader(header);
  absl::Status status;
  if (!in_place && fchmod(file.get(), 0644) != 0) status = SystemError(path, "chmod");
  if (status.ok()) status = WriteAll(file.get(), head.data(), head.size(), path);
  if (status.ok()) status = WriteAll(file.get(), array.bytes.data(), array.bytes.size(), path);
  if (in_place) return status;
  if (status.ok() && fsync(file.get()) != 0) status = SystemError(path, "write");
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = SystemError(path, "write");
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace starling::npy
