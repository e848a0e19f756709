#include "common/transport/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace starling {
namespace {

using limits::kSegmentBytes;

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

// These rule out holes, too: what is allocated stays.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

int Memory() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create("starling-segment", kFlags | MFD_NOEXEC_SEAL);
  return fd >= 0 || errno != EINVAL ? fd : memfd_create("starling-segment", kFlags);
}

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<uint8_t*> Map(int fd, int protection) {
  void* const data = mmap(nullptr, kSegmentBytes, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Failed("cannot map a segment");
  madvise(data, kSegmentBytes, MADV_DONTDUMP);
  madvise(data, kSegmentBytes, MADV_DONTFORK);
  return static_cast<uint8_t*>(data);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Segment>> Segment::Create(OwnedFd* fd) {
  fd->Reset(Memory());
  if (!fd->open()) return Failed("memfd_create");
  if (ftruncate(fd->get(), kSegmentBytes) != 0) return Failed("cannot size a segment");
  // Now, as a page that has no memory when it is touched would raise a signal.
  if (fallocate(fd->get(), 0, 0, kSegmentBytes) != 0) return Failed("no memory for a segment");
  absl::StatusOr<uint8_t*> data = Map(fd->get(), PROT_READ | PROT_WRITE);
  if (!data.ok()) return data.status();
  auto segment = absl::WrapUnique(new Segment(*data));
  if (fcntl(fd->get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0)
    return Failed("cannot seal a segment");
  return std::shared_ptr<Segment>(std::move(segment));
}

absl::StatusOr<std::shared_ptr<const Segment>> Segment::Open(int fd) {
  struct stat status = {};
  struct statfs system = {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || fstat(fd, &status) != 0 || fstatfs(fd, &system) != 0)
    return absl::InvalidArgumentError("segment: expected a memfd");
  // A hole on huge pages may have no memory when it is read.
  if (static_cast<uint64_t>(system.f_type) != TMPFS_MAGIC)
    return absl::InvalidArgumentError("segment: expected a memfd on plain pages");
  if ((seals & kSeals) != kSeals)
    return absl::InvalidArgumentError("segment: expected one that only its maker can change");
  if (status.st_size != static_cast<off_t>(kSegmentBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment: expected ", kSegmentBytes, " bytes, not ", status.st_size));
  }
  constexpr uint64_t kStatBytes = 512;
  if (static_cast<uint64_t>(status.st_blocks) * kStatBytes < kSegmentBytes)
    return absl::InvalidArgumentError("segment: expected one without holes");
  absl::StatusOr<uint8_t*> data = Map(fd, PROT_READ);
  if (!data.ok()) return data.status();
  return std::shared_ptr<const Segment>(new Segment(*data));
}

Segment::~Segment() { munmap(data_, kSegmentBytes); }

const uint8_t* Segment::At(uint64_t blocks) const {
  return data_ + static_cast<size_t>(std::countr_zero(blocks)) * limits::kSegmentBlockBytes;
}

void Segment::Write(uint64_t blocks, const OutgoingPayload& payload) {
  uint8_t* const to = const_cast<uint8_t*>(At(blocks));
  std::memcpy(to, payload.head.data(), payload.head.size());
  if (payload.bytes.empty()) return;
  std::memcpy(to + payload.head.size(), payload.bytes.data(), payload.bytes.size());
}

}  // namespace starling
