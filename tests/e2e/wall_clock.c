// Preloaded into a daemon by clock.py: a wall clock that the test can set while the process runs.
// CLOCK_REALTIME is ahead by the seconds in the file WALL_CLOCK_FILE (an int64_t, shared); all
// other clocks are unchanged. Waits until a CLOCK_REALTIME deadline react to a changed clock as the
// kernel's do: they poll it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long kLookNanos = 20 * 1000 * 1000;
static const volatile int64_t* ahead;
static long (*real_syscall)(long, ...);
static int (*real_timedwait)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);

__attribute__((constructor)) static void Init(void) {
  static const int64_t none = 0;
  ahead = &none;
  real_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  real_timedwait = (int (*)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*))dlsym(
      RTLD_NEXT, "pthread_cond_timedwait");
  const char* path = getenv("WALL_CLOCK_FILE");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* shared = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (shared != MAP_FAILED) ahead = shared;
  close(fd);
}

static int Read(clockid_t clock, struct timespec* time) {
  if (real_syscall == NULL) Init();
  return (int)real_syscall(SYS_clock_gettime, clock, time);
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = Read(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    time->tv_sec += *ahead;
  }
  return result;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to != NULL) *to = now.tv_sec;
  return now.tv_sec;
}

static int Past(const struct timespec* deadline) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec > deadline->tv_sec ||
         (now.tv_sec == deadline->tv_sec && now.tv_nsec >= deadline->tv_nsec);
}

static struct timespec Soon(clockid_t clock) {
  struct timespec at;
  Read(clock, &at);
  at.tv_nsec += kLookNanos;
  if (at.tv_nsec >= 1000000000) {
    at.tv_nsec -= 1000000000;
    ++at.tv_sec;
  }
  return at;
}

// Abseil waits through futex.
long syscall(long number, ...) {
  if (real_syscall == NULL) Init();
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  const int command = (int)a[1] & FUTEX_CMD_MASK;
  if (number != SYS_futex || command != FUTEX_WAIT_BITSET || !(a[1] & FUTEX_CLOCK_REALTIME) ||
      a[3] == 0) {
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  while (!Past((const struct timespec*)a[3])) {
    const struct timespec until = Soon(CLOCK_MONOTONIC);
    const long result = real_syscall(SYS_futex, a[0], a[1] & ~FUTEX_CLOCK_REALTIME, a[2], &until,
                                     a[4], a[5]);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
  errno = ETIMEDOUT;
  return -1;
}

// Spurious wake-ups are allowed.
int pthread_cond_timedwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict deadline) {
  if (real_timedwait == NULL) Init();
  if (deadline->tv_sec < 1000000000) return real_timedwait(condition, mutex, deadline);
  if (Past(deadline)) return ETIMEDOUT;
  const struct timespec until = Soon(CLOCK_REALTIME);
  const int result = real_timedwait(condition, mutex, &until);
  return result == ETIMEDOUT && !Past(deadline) ? 0 : result;
}
