/* LD_PRELOAD: one chosen write of a process and its children fails, kills, or is told of.

   Python, HDF5 and Arrow all write by these functions of the C library. A path counts if it ends
   with $CHAOS_PATH; of these calls the $CHAOS_NTH meets the fault $CHAOS_FAULT:
     ENOSPC, EIO   the call fails so; with $CHAOS_ROOT all later ones below that folder do as well
     KILL          the process is killed
     WAIT          $CHAOS_STATE says so, and the call goes on after a third of a second
   $CHAOS_STATE is a file of 16 bytes that all processes share: calls seen, and whether it was hit.
   $CHAOS_TRACE is a file to which the path of every call is added. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct state { volatile uint64_t seen, hit; } *state;

static struct state *shared(const char *file) {
  if (!state) {
    int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR);
    if (fd < 0) return NULL;
    void *map = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (map != MAP_FAILED) state = map;
  }
  return state;
}

static void trace(const char *file, const char *path) {
  char line[PATH_MAX + 2];
  int n = snprintf(line, sizeof line, "%s\n", path);
  int fd = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT, 0666);
  if (fd < 0) return;
  syscall(SYS_write, fd, line, n);
  syscall(SYS_close, fd);
}

static int ends_with(const char *path, const char *end) {
  size_t a = strlen(path), b = strlen(end);
  return a >= b && !strcmp(path + a - b, end);
}

/* The error that a call on this path is to meet, or 0. */
static int fault(const char *path) {
  const char *traced = getenv("CHAOS_TRACE"), *kind = getenv("CHAOS_FAULT");
  if (traced && strstr(path, "results/")) trace(traced, path);
  if (!kind || !*kind) return 0;
  struct state *now = shared(getenv("CHAOS_STATE"));
  if (!now) return 0;
  int error = !strcmp(kind, "ENOSPC") ? ENOSPC : EIO;
  if (now->hit) {
    const char *root = getenv("CHAOS_ROOT");
    int below = root && *root && strstr(path, root) && !strstr(path, "/logs/") &&
                !strstr(path, "/benchmarks/");
    return below ? error : 0;
  }
  if (!ends_with(path, getenv("CHAOS_PATH"))) return 0;
  if (__sync_add_and_fetch(&now->seen, 1) != strtoull(getenv("CHAOS_NTH"), NULL, 10)) return 0;
  now->hit = 1;
  if (!strcmp(kind, "KILL")) kill(getpid(), SIGKILL);
  if (!strcmp(kind, "WAIT")) {
    usleep(333333);
    return 0;
  }
  return error;
}

static int fault_of_fd(int fd) {
  const char *traced = getenv("CHAOS_TRACE"), *kind = getenv("CHAOS_FAULT");
  if (!traced && (!kind || !*kind)) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  int before = errno;
  ssize_t n = readlink(link, path, sizeof path - 1);
  errno = before;
  if (n < 0 || path[0] != '/') return 0;
  path[n] = 0;
  return fault(path);
}

#define NEXT(name) \
  static __typeof__(name) *next; \
  if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define FAIL(error) do { int e = (error); if (e) { errno = e; return -1; } } while (0)

#define ON_FD(type, name, parameters, arguments) \
  type name parameters { NEXT(name); FAIL(fault_of_fd(fd)); return next arguments; }

ON_FD(ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n))
ON_FD(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
ON_FD(ssize_t, pwrite64, (int fd, const void *data, size_t n, off64_t at), (fd, data, n, at))
ON_FD(ssize_t, writev, (int fd, const struct iovec *data, int n), (fd, data, n))
ON_FD(ssize_t, pwritev, (int fd, const struct iovec *data, int n, off_t at), (fd, data, n, at))
ON_FD(ssize_t, pwritev64, (int fd, const struct iovec *data, int n, off64_t at), (fd, data, n, at))
ON_FD(int, fsync, (int fd), (fd))
ON_FD(int, ftruncate, (int fd, off_t n), (fd, n))
ON_FD(int, ftruncate64, (int fd, off64_t n), (fd, n))

int mkdir(const char *path, mode_t mode) {
  NEXT(mkdir);
  FAIL(fault(path));
  return next(path, mode);
}

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
  } \
  if ((flags) & O_CREAT) FAIL(fault(path))

int open(const char *path, int flags, ...) { NEXT(open); MODE(flags); return next(path, flags, mode); }
int open64(const char *path, int flags, ...) { NEXT(open64); MODE(flags); return next(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) {
  NEXT(openat); MODE(flags); return next(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
  NEXT(openat64); MODE(flags); return next(at, path, flags, mode);
}
