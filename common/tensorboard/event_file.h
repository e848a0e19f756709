// TensorBoard's event files: events (event.proto) in TFRecord frames, each with two masked
// checksums.
#ifndef STARLING_COMMON_TENSORBOARD_EVENT_FILE_H_
#define STARLING_COMMON_TENSORBOARD_EVENT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"
#include "common/tensorboard/event.pb.h"

namespace starling::tensorboard {

// length (u64), masked CRC32C of it (u32), data, masked CRC32C of that (u32); little-endian.
std::string RecordFrame(absl::string_view data);

// Writes and removes a file in the open folder `fd`, which errors call `folder`. May block as long
// as the file system does.
absl::Status CheckFolder(int fd, const std::string& folder);

// One new file in a folder. It can be read while it is written; a process that dies leaves at most
// one record that is cut short, which readers leave out. Not thread-safe. Blocks as the file system
// does.
class EventFile {
 public:
  // events.out.tfevents.SECONDS.HOST.PID.N, with the format's first record, then "the session
  // starts at `step`": readers forget what older files of the folder say of that step and later
  // ones. Makes the folder where it is not there.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(const std::string& folder, uint64_t step,
                                                           absl::Time now);
  // The same in the open folder `fd`, which paths and errors call `folder`.
  static absl::StatusOr<std::unique_ptr<EventFile>> CreateIn(int fd, const std::string& folder,
                                                             uint64_t step, absl::Time now);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // After an error the file ends behind its last whole record, and may be appended to again.
  absl::Status Append(const Event& event);

  const std::string& path() const { return path_; }

 private:
  EventFile(OwnedFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  const OwnedFd fd_;
  const std::string path_;
  int64_t bytes_ = 0;  // of whole records
};

}  // namespace starling::tensorboard

#endif  // STARLING_COMMON_TENSORBOARD_EVENT_FILE_H_
