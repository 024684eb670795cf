/* SPDX-License-Identifier: Apache-2.0 */
/* failing_calls - a library for LD_PRELOAD that makes the n-th call of a C library function fail,
 * once, in one of several processes (test_fault_calls.py):
 *
 *     QUIRE_FAIL_PROGRAM  name of the executable, such as quire-engine
 *     QUIRE_FAIL_CALL     a function below: open, read, mmap, fork, send; malloc: any allocation
 *     QUIRE_FAIL_AT       calls before the one that fails
 *     QUIRE_FAIL_ERRNO    its errno
 *     QUIRE_FAIL_TOLD     a file that is created when it fails, with the call's stack, for
 *                         addr2line; while it exists nothing fails
 *
 * Calls inside the C library itself (malloc's mmap, fopen's open) are not seen. Of allocations,
 * epoll_ctl and threads only those of the executable are: libraries that end the process when they
 * fail (libzmq, h2o, libuv) are not what is tested.
 * Threads: any. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define STACK 24

static const char *wanted; /* NULL: nothing fails in this process */
static const char *told;
static long fail_at;
static int fail_errno;
static atomic_long n_call;
static uintptr_t text_start, text_end; /* of the executable */

/* The executable is the first object. */
static int find_text(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size, (void)data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
            continue;
        text_start = info->dlpi_addr + p->p_vaddr;
        text_end = text_start + p->p_memsz;
    }
    return 1;
}

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
    dl_iterate_phdr(find_text, NULL);
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
    void *stack[STACK];
    backtrace_symbols_fd(stack, backtrace(stack, STACK), fd);
    syscall(SYS_close, fd);
    errno = fail_errno;
    return true;
}

/* Not an eventfd, another anonymous descriptor or a pipe, by which libraries wake themselves: they
 * end the process if that fails, and it does not. */
static bool is_file(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) && !S_ISFIFO(st.st_mode);
}

#define REAL(name) ((__typeof__(&(name)))(void *)dlsym(RTLD_NEXT, #name))
#define WRAP(type, failed, name, params, ...)                     \
    __attribute__((visibility("default"))) type name params       \
    {                                                             \
        return fails(#name) ? (failed) : REAL(name)(__VA_ARGS__); \
    }
#define WRAP_FD(name, params, ...)                                                   \
    __attribute__((visibility("default"))) ssize_t name params                       \
    {                                                                                \
        return wanted && is_file(fd) && fails(#name) ? -1 : REAL(name)(__VA_ARGS__); \
    }
/* 64-bit names of the same functions count as them. */
#define WRAP64(type, failed, name, name64, params, ...)             \
    __attribute__((visibility("default"))) type name64 params       \
    {                                                               \
        return fails(#name) ? (failed) : REAL(name64)(__VA_ARGS__); \
    }

WRAP_FD(read, (int fd, void *to, size_t n), fd, to, n)
WRAP(ssize_t, -1, pread, (int fd, void *to, size_t n, off_t at), fd, to, n, at)
WRAP64(ssize_t, -1, pread, pread64, (int fd, void *to, size_t n, off_t at), fd, to, n, at)
WRAP_FD(write, (int fd, const void *from, size_t n), fd, from, n)
WRAP_FD(writev, (int fd, const struct iovec *v, int n), fd, v, n)
WRAP(ssize_t, -1, send, (int fd, const void *from, size_t n, int flags), fd, from, n, flags)
WRAP(ssize_t, -1, recv, (int fd, void *to, size_t n, int flags), fd, to, n, flags)
WRAP(ssize_t, -1, sendmsg, (int fd, const struct msghdr *m, int flags), fd, m, flags)
WRAP(ssize_t, -1, recvmsg, (int fd, struct msghdr *m, int flags), fd, m, flags)
WRAP(int, -1, socket, (int family, int type, int protocol), family, type, protocol)
WRAP(int, -1, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), fd, a, n, flags)
WRAP(int, -1, epoll_create1, (int flags), flags)
WRAP(int, -1, eventfd, (unsigned start, int flags), start, flags)
WRAP(int, -1, memfd_create, (const char *name, unsigned flags), name, flags)
WRAP(int, -1, ftruncate, (int fd, off_t n), fd, n)
WRAP64(int, -1, ftruncate, ftruncate64, (int fd, off_t n), fd, n)
WRAP(void *, MAP_FAILED, mmap, (void *a, size_t n, int prot, int flags, int fd, off_t at), a, n,
     prot, flags, fd, at)
WRAP64(void *, MAP_FAILED, mmap, mmap64, (void *a, size_t n, int prot, int flags, int fd, off_t at),
       a, n, prot, flags, fd, at)
WRAP(pid_t, -1, fork, (void), )
/* it returns the error */
WRAP(int, fail_errno, posix_spawn,
     (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
      const posix_spawnattr_t *attr, char *const *argv, char *const *env),
     pid, path, actions, attr, argv, env)

/* dlsym allocates: these are called by the names that glibc has for it. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static bool is_ours(const void *caller)
{
    return wanted && (uintptr_t)caller >= text_start && (uintptr_t)caller < text_end;
}

/* libuv ends the process when one of its own calls of these two fails. */
__attribute__((visibility("default"))) int epoll_ctl(int fd, int op, int of, struct epoll_event *e)
{
    const bool failed = is_ours(__builtin_return_address(0)) && fails("epoll_ctl");
    return failed ? -1 : REAL(epoll_ctl)(fd, op, of, e);
}

__attribute__((visibility("default"))) int
pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg)
{
    const bool failed = is_ours(__builtin_return_address(0)) && fails("pthread_create");
    return failed ? fail_errno : REAL(pthread_create)(thread, attr, main, arg);
}

#define WRAP_ALLOC(name, params, ...)                                  \
    __attribute__((visibility("default"))) void *name params           \
    {                                                                  \
        return is_ours(__builtin_return_address(0)) && fails("malloc") \
                   ? NULL                                              \
                   : __libc_##name(__VA_ARGS__);                       \
    }
WRAP_ALLOC(malloc, (size_t n), n)
WRAP_ALLOC(calloc, (size_t n, size_t size), n, size)
WRAP_ALLOC(realloc, (void *p, size_t n), p, n)

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
