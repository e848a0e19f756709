// A file descriptor that closes itself.
#ifndef STARLING_COMMON_BASE_OWNED_FD_H_
#define STARLING_COMMON_BASE_OWNED_FD_H_

#include <unistd.h>

#include <utility>

namespace starling {

// Not thread-safe. -1: none.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.Release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~OwnedFd() { Reset(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  // Transfers ownership to the caller.
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace starling

#endif  // STARLING_COMMON_BASE_OWNED_FD_H_
