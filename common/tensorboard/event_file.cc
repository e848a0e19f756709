#include "common/tensorboard/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/byte_io.h"
#include "common/base/crc32c.h"
#include "common/base/status_macros.h"

namespace starling::tensorboard {
namespace {

constexpr int kNamesTried = 1000;  // files per process and second

uint32_t MaskedCrc(absl::string_view data) {
  const uint32_t crc = Crc32cOf(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot make the folder ", folder, ": ", error.message()));
}

std::string HostName() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

absl::Status CannotWriteIn(const std::string& folder) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write in ", folder, ": ", std::strerror(errno)));
}

// Creates a file with an unused name in the open folder `fd`, for appending.
absl::StatusOr<OwnedFd> OpenNew(int fd, const std::string& folder, absl::Time now,
                                std::string* name) {
  const std::string stem = absl::StrFormat("events.out.tfevents.%010d.%s.%d.",
                                           absl::ToUnixSeconds(now), HostName(), getpid());
  for (int i = 0; i < kNamesTried; ++i) {
    *name = absl::StrCat(stem, i);
    OwnedFd file(openat(fd, name->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (file.open()) return file;
    if (errno != EEXIST) return CannotWriteIn(folder);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(folder, " has ", kNamesTried, " event files of this second"));
}

}  // namespace

std::string RecordFrame(absl::string_view data) {
  std::string frame;
  ByteWriter writer(&frame);
  writer(uint64_t{data.size()});
  writer(MaskedCrc(frame));
  frame.append(data.data(), data.size());
  writer(MaskedCrc(data));
  return frame;
}

absl::Status CheckFolder(int fd, const std::string& folder) {
  // Never opens an existing file.
  for (int i = 0; i < kNamesTried; ++i) {
    const std::string name = absl::StrCat(".starling-", getpid(), "-", i);
    const OwnedFd file(openat(fd, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.open()) {
      unlinkat(fd, name.c_str(), 0);
      return absl::OkStatus();
    }
    if (errno != EEXIST) break;
  }
  return CannotWriteIn(folder);
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(const std::string& folder,
                                                             uint64_t step, absl::Time now) {
  STARLING_RETURN_IF_ERROR(MakeFolder(folder));
  const OwnedFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.open()) return CannotWriteIn(folder);
  return CreateIn(fd.get(), folder, step, now);
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::CreateIn(int fd, const std::string& folder,
                                                               uint64_t step, absl::Time now) {
  std::string name;
  STARLING_ASSIGN_OR_RETURN(OwnedFd opened, OpenNew(fd, folder, now, &name));
  std::unique_ptr<EventFile> file(
      new EventFile(std::move(opened), absl::StrCat(folder, "/", name)));
  Event event;
  event.set_wall_time(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  event.set_file_version("brain.Event:2");
  STARLING_RETURN_IF_ERROR(file->Append(event));
  event.set_step(static_cast<int64_t>(step));
  event.mutable_session_log()->set_status(SessionLog::START);
  STARLING_RETURN_IF_ERROR(file->Append(event));
  return file;
}

absl::Status EventFile::Append(const Event& event) {
  const std::string frame = RecordFrame(event.SerializeAsString());
  size_t written = 0;
  while (written < frame.size()) {
    const ssize_t count = pwrite(fd_.get(), frame.data() + written, frame.size() - written,
                                 bytes_ + static_cast<int64_t>(written));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : EIO;
      [[maybe_unused]] const int cut = ftruncate(fd_.get(), bytes_);
      return absl::UnavailableError(
          absl::StrCat("cannot write ", path_, ": ", std::strerror(error)));
    }
    written += static_cast<size_t>(count);
  }
  bytes_ += static_cast<int64_t>(frame.size());
  return absl::OkStatus();
}

}  // namespace starling::tensorboard
