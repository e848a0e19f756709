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

// length (u64), its masked CRC32C (u32), data, its masked CRC32C (u32); little-endian.
std::string RecordFrame(absl::string_view data);

// Writes and removes a file in the open folder `fd`; errors call it `folder`. Blocks as the file
// system does.
absl::Status CheckFolder(int fd, const std::string& folder);

// One new file in a folder. It can be read while it is written; if the process dies, at most the
// last record is cut short, and readers skip it. Not thread-safe. Blocks as the file system does.
class EventFile {
 public:
  // Creates events.out.tfevents.SECONDS.HOST.PID.N with the format's first record, then a record
  // "the session starts at `step`": readers then ignore what older files in the folder have for
  // that step and later ones. Creates the folder if it is missing.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(const std::string& folder, uint64_t step,
                                                           absl::Time now);
  // As Create, in the open folder `fd`; paths and errors call it `folder`.
  static absl::StatusOr<std::unique_ptr<EventFile>> CreateIn(int fd, const std::string& folder,
                                                             uint64_t step, absl::Time now);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // After an error the file ends with its last whole record; Append may be called again.
  absl::Status Append(const Event& event);

  const std::string& path() const { return path_; }

 private:
  EventFile(OwnedFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  const OwnedFd fd_;
  const std::string path_;
  int64_t bytes_ = 0;  // in whole records
};

}  // namespace starling::tensorboard

#endif  // STARLING_COMMON_TENSORBOARD_EVENT_FILE_H_
