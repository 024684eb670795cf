/* SPDX-License-Identifier: Apache-2.0 */
/* failing_calls - a library for LD_PRELOAD that makes the n-th call of a C library function fail,
 * once, in one of several processes (test_fault_calls.py):
 *
 *     QUIRE_FAIL_PROGRAM  name of the executable, such as quire-engine
 *     QUIRE_FAIL_CALL     one of the functions below: open, read, mmap, fork, send …
 *     QUIRE_FAIL_AT       calls before the one that fails
 *     QUIRE_FAIL_ERRNO    its errno
 *     QUIRE_FAIL_TOLD     a file that is created when it fails; while it exists nothing fails
 *
 * Calls inside the C library itself (malloc's mmap, fopen's open) are not seen.
 * Threads: any. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *wanted; /* NULL: nothing fails in this process */
static const char *told;
static long fail_at;
static int fail_errno;
static atomic_long n_call;

__attribute__((constructor)) static void setup(void)
{
    char exe[4096];
    const char *program = getenv("QUIRE_FAIL_PROGRAM"), *at = getenv("QUIRE_FAIL_AT"),
               *code = getenv("QUIRE_FAIL_ERRNO");
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0 || !program || !at || !code)
        return;
    exe[n] = '\0';
    const char *slash = strrchr(exe, '/');
    if (strcmp(slash ? slash + 1 : exe, program) != 0)
        return;
    told = getenv("QUIRE_FAIL_TOLD");
    fail_at = atol(at);
    fail_errno = atoi(code);
    wanted = told ? getenv("QUIRE_FAIL_CALL") : NULL;
}

/* Does this call fail? errno is set then. */
static bool fails(const char *call)
{
    if (!wanted || strcmp(call, wanted) != 0 || atomic_fetch_add(&n_call, 1) != fail_at)
        return false;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, told, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd < 0)
        return false;
    syscall(SYS_close, fd);
    errno = fail_errno;
    return true;
}

#define REAL(name) ((__typeof__(&(name)))(void *)dlsym(RTLD_NEXT, #name))
#define WRAP(type, failed, name, params, ...)                     \
    __attribute__((visibility("default"))) type name params       \
    {                                                             \
        return fails(#name) ? (failed) : REAL(name)(__VA_ARGS__); \
    }
/* 64-bit names of the same functions count as them. */
#define WRAP64(type, failed, name, name64, params, ...)             \
    __attribute__((visibility("default"))) type name64 params       \
    {                                                               \
        return fails(#name) ? (failed) : REAL(name64)(__VA_ARGS__); \
    }

WRAP(ssize_t, -1, read, (int fd, void *to, size_t n), fd, to, n)
WRAP(ssize_t, -1, pread, (int fd, void *to, size_t n, off_t at), fd, to, n, at)
WRAP64(ssize_t, -1, pread, pread64, (int fd, void *to, size_t n, off_t at), fd, to, n, at)
WRAP(ssize_t, -1, write, (int fd, const void *from, size_t n), fd, from, n)
WRAP(ssize_t, -1, writev, (int fd, const struct iovec *v, int n), fd, v, n)
WRAP(ssize_t, -1, send, (int fd, const void *from, size_t n, int flags), fd, from, n, flags)
WRAP(ssize_t, -1, recv, (int fd, void *to, size_t n, int flags), fd, to, n, flags)
WRAP(ssize_t, -1, sendmsg, (int fd, const struct msghdr *m, int flags), fd, m, flags)
WRAP(ssize_t, -1, recvmsg, (int fd, struct msghdr *m, int flags), fd, m, flags)
WRAP(int, -1, socket, (int family, int type, int protocol), family, type, protocol)
WRAP(int, -1, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), fd, a, n, flags)
WRAP(int, -1, epoll_create1, (int flags), flags)
WRAP(int, -1, epoll_ctl, (int fd, int op, int of, struct epoll_event *e), fd, op, of, e)
WRAP(int, -1, eventfd, (unsigned start, int flags), start, flags)
WRAP(int, -1, memfd_create, (const char *name, unsigned flags), name, flags)
WRAP(int, -1, ftruncate, (int fd, off_t n), fd, n)
WRAP64(int, -1, ftruncate, ftruncate64, (int fd, off_t n), fd, n)
WRAP(void *, MAP_FAILED, mmap, (void *a, size_t n, int prot, int flags, int fd, off_t at), a, n,
     prot, flags, fd, at)
WRAP64(void *, MAP_FAILED, mmap, mmap64, (void *a, size_t n, int prot, int flags, int fd, off_t at),
       a, n, prot, flags, fd, at)
WRAP(pid_t, -1, fork, (void), )
/* these two return the error */
WRAP(int, fail_errno, posix_spawn,
     (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
      const posix_spawnattr_t *attr, char *const *argv, char *const *env),
     pid, path, actions, attr, argv, env)
WRAP(int, fail_errno, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg), thread,
     attr, main, arg)

static int any_open(const char *name, const char *path, int flags, mode_t mode)
{
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
    return fails("open") ? -1 : real(path, flags, mode);
}

static mode_t mode_of(int flags, va_list ap)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(ap, mode_t) : 0;
}

#define WRAP_OPEN(name)                                                               \
    __attribute__((visibility("default"))) int name(const char *path, int flags, ...) \
    {                                                                                 \
        va_list ap;                                                                   \
        va_start(ap, flags);                                                          \
        const mode_t mode = mode_of(flags, ap);                                       \
        va_end(ap);                                                                   \
        return any_open(#name, path, flags, mode);                                    \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)
