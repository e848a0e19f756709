// Preloaded into a shard by seen.py: a disk that the test can slow down while the process runs. A
// write to a file beneath the folder SLOW_DISK_ROOT takes as many milliseconds longer as the file
// SLOW_DISK_FILE says (an int64_t, shared); one that is under way ends at once when that is 0.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static const int64_t kNapMillis = 20;
static const volatile int64_t* slow;
static const char* root;
static ssize_t (*real_write)(int, const void*, size_t);

__attribute__((constructor)) static void Init(void) {
  static const int64_t none = 0;
  slow = &none;
  real_write = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  root = getenv("SLOW_DISK_ROOT");
  const char* path = getenv("SLOW_DISK_FILE");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* shared = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (shared != MAP_FAILED) slow = shared;
  close(fd);
}

static int IsBeneathRoot(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path));
  const size_t prefix = root == NULL ? 0 : strlen(root);
  return prefix > 0 && length > (ssize_t)prefix && memcmp(path, root, prefix) == 0;
}

ssize_t write(int fd, const void* bytes, size_t count) {
  if (real_write == NULL) Init();
  if (*slow > 0 && IsBeneathRoot(fd)) {
    const struct timespec nap = {0, kNapMillis * 1000 * 1000};
    for (int64_t slept = 0; slept < *slow; slept += kNapMillis) nanosleep(&nap, NULL);
  }
  return real_write(fd, bytes, count);
}
