/* Preloaded: makes the n-th call that changes a disk fail, or be the last one of the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long count, fail_at;
static int failure; /* an errno, or 0 to be killed */

void faults_arm(long at, int code) { count = 0; failure = code; fail_at = at; }
long faults_count(void) { return count; }

static int fails(void) {
    if (!fail_at || ++count != fail_at) return 0;
    if (!failure) { kill(getpid(), SIGKILL); pause(); }
    errno = failure;
    return 1;
}
static int is_file(int fd) {
    struct stat about;
    return fail_at && fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}
#define CHANGES(type, name, declared, passed) \
    type name declared { \
        static type (*original) declared; \
        if (!original) original = dlsym(RTLD_NEXT, #name); \
        return fails() ? -1 : original passed; \
    }
#define WRITES(name, declared, passed) \
    ssize_t name declared { \
        static ssize_t (*original) declared; \
        if (!original) original = dlsym(RTLD_NEXT, #name); \
        return is_file(fd) && fails() ? -1 : original passed; \
    }
#define OPENS(name, declared, passed) \
    int name declared { \
        static int (*original) declared; \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list more; \
            va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); \
        } \
        if (!original) original = dlsym(RTLD_NEXT, #name); \
        return (flags & (O_CREAT | O_TRUNC)) && fails() ? -1 : original passed; \
    }
OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPENS(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))
WRITES(write, (int fd, const void *bytes, size_t n), (fd, bytes, n))
WRITES(pwrite, (int fd, const void *bytes, size_t n, off_t where), (fd, bytes, n, where))
WRITES(pwrite64, (int fd, const void *bytes, size_t n, off64_t where), (fd, bytes, n, where))
WRITES(writev, (int fd, const struct iovec *parts, int n), (fd, parts, n))
CHANGES(int, rename, (const char *a, const char *b), (a, b))
CHANGES(int, renameat, (int f, const char *a, int g, const char *b), (f, a, g, b))
CHANGES(int, renameat2, (int f, const char *a, int g, const char *b, unsigned how), (f, a, g, b, how))
CHANGES(int, unlink, (const char *a), (a))
CHANGES(int, unlinkat, (int f, const char *a, int how), (f, a, how))
CHANGES(int, rmdir, (const char *a), (a))
CHANGES(int, mkdir, (const char *a, mode_t mode), (a, mode))
CHANGES(int, mkdirat, (int f, const char *a, mode_t mode), (f, a, mode))
CHANGES(int, chmod, (const char *a, mode_t mode), (a, mode))
CHANGES(int, fchmodat, (int f, const char *a, mode_t mode, int how), (f, a, mode, how))
CHANGES(int, fchmod, (int fd, mode_t mode), (fd, mode))
CHANGES(int, link, (const char *a, const char *b), (a, b))
CHANGES(int, linkat, (int f, const char *a, int g, const char *b, int how), (f, a, g, b, how))
CHANGES(int, symlink, (const char *a, const char *b), (a, b))
CHANGES(int, symlinkat, (const char *a, int g, const char *b), (a, g, b))
CHANGES(int, fsync, (int fd), (fd))
CHANGES(int, fdatasync, (int fd), (fd))
CHANGES(int, utimensat, (int f, const char *a, const struct timespec t[2], int how), (f, a, t, how))
CHANGES(int, fallocate, (int fd, int how, off_t at, off_t n), (fd, how, at, n))
CHANGES(ssize_t, sendfile, (int out, int in, off_t *at, size_t n), (out, in, at, n))
CHANGES(ssize_t, copy_file_range, (int in, off64_t *i, int out, off64_t *o, size_t n, unsigned how), (in, i, out, o, n, how))
CHANGES(int, truncate, (const char *a, off_t n), (a, n))
CHANGES(int, ftruncate, (int fd, off_t n), (fd, n))
CHANGES(int, ftruncate64, (int fd, off64_t n), (fd, n))
