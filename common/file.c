/* SPDX-License-Identifier: Apache-2.0 */
#include "common/file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_STEP 65536u /* bytes per read(2) */

static enum q_code fail_errno(struct q_err *e, const char *path, const char *what)
{
    int code = errno;
    return q_fail(e, code == ENOENT || code == ENOTDIR ? Q_NOT_FOUND : Q_IO, "%s: cannot %s: %s",
                  path, what, strerror(code));
}

/* A descriptor that the process was started with: standard input, a shell's <(command). */
static bool is_given(const char *path)
{
    static const char *const names[] = {"/dev/stdin", "/dev/stdout", "/dev/stderr"};
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(path, names[i]))
            return true;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const size_t n = strlen(folders[i]);
        if (!strncmp(path, folders[i], n) && path[n] &&
            path[n + strspn(path + n, "0123456789")] == '\0')
            return true;
    }
    return false;
}

/* Opening a pipe by its name would wait for its writer, so only given ones are read; what is mapped
 * is a regular file. */
static enum q_code open_file(int *fd, struct stat *st, const char *path, bool map, struct q_err *e)
{
    const bool waits = !map && is_given(path);
    *fd = open(path, O_RDONLY | O_CLOEXEC | (waits ? 0 : O_NONBLOCK));
    if (*fd < 0)
        return fail_errno(e, path, "open");
    if (fstat(*fd, st) != 0)
        return fail_errno(e, path, "stat");
    if (S_ISDIR(st->st_mode))
        return q_fail(e, Q_IO, "%s: is a directory, expected a file", path);
    if (!S_ISREG(st->st_mode) && (map || !(waits || S_ISCHR(st->st_mode))))
        return q_fail(e, Q_IO, "%s: is a pipe or a device, expected a file", path);
    return Q_OK;
}

static struct file_stamp stamp_of(const struct stat *st)
{
    return (struct file_stamp){
        .size = (uint64_t)st->st_size,
        .inode = (uint64_t)st->st_ino,
        .mtime_ns = st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec,
        .ctime_ns = st->st_ctim.tv_sec * INT64_C(1000000000) + st->st_ctim.tv_nsec,
    };
}

bool file_stamp(struct file_stamp *out, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return false;
    *out = stamp_of(&st);
    return true;
}

enum q_code mapping_open(struct mapping *m, const char *path, struct q_err *e)
{
    struct file_stamp ignored;
    return mapping_open_stamped(m, &ignored, path, e);
}

enum q_code mapping_open_stamped(struct mapping *m, struct file_stamp *stamp, const char *path,
                                 struct q_err *e)
{
    int fd;
    struct stat st;
    enum q_code rc = open_file(&fd, &st, path, true, e);
    if (rc)
        goto out;
    *m = (struct mapping)MAPPING_INIT;
    *stamp = stamp_of(&st);
    if (st.st_size == 0)
        goto out;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        rc = fail_errno(e, path, "map");
        goto out;
    }
    m->data = p;
    m->size = (size_t)st.st_size;
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

void mapping_release(struct mapping *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct mapping)MAPPING_INIT;
}

void mapping_move(struct mapping *dst, struct mapping *src)
{
    mapping_release(dst);
    *dst = *src;
    *src = (struct mapping)MAPPING_INIT;
}

enum q_code file_open_regular(int *fd, uint64_t *size, const char *path, struct q_err *e)
{
    struct stat st;
    enum q_code rc = open_file(fd, &st, path, true, e);
    *size = rc ? 0 : (uint64_t)st.st_size;
    if (rc && *fd >= 0)
        close(*fd);
    return rc;
}

enum q_code file_read(struct buf *out, const char *path, size_t size_max, struct q_err *e)
{
    int fd;
    struct stat st;
    enum q_code rc = open_file(&fd, &st, path, false, e);
    size_t start = out->len;
    while (!rc) {
        char step[READ_STEP];
        ssize_t n = read(fd, step, sizeof step);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = fail_errno(e, path, "read");
        if (n <= 0)
            break;
        if (out->len - start + (size_t)n > size_max)
            rc = q_fail(e, Q_TOO_LARGE, "%s: exceeds the limit of %zu bytes", path, size_max);
        else
            buf_add(out, step, (size_t)n);
    }
    if (fd >= 0)
        close(fd);
    return rc ? rc : buf_check(out, path, e);
}

/* rename(2) would put a file in the place of /dev/null or of a pipe. */
static enum q_code check_replaced(const char *path, struct q_err *e)
{
    struct stat st;
    if (is_given(path) || (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return q_fail(e, Q_IO, "%s: is a pipe or a device, which is not replaced, expected a file",
                      path);
    return Q_OK;
}

enum q_code file_write(const char *path, const void *data, size_t n, unsigned mode, struct q_err *e)
{
    char beside[PATH_MAX];
    if (check_replaced(path, e))
        return e->code;
    if (snprintf(beside, sizeof beside, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof beside)
        return q_fail(e, Q_TOO_LARGE, "path longer than %d bytes: %s", PATH_MAX, path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return fail_errno(e, beside, "create");
    enum q_code rc = Q_OK;
    const char *p = data;
    while (n && !rc) {
        ssize_t step = write(fd, p, n);
        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0) {
            rc = fail_errno(e, beside, "write");
            break;
        }
        p += step;
        n -= (size_t)step;
    }
    if (!rc && fsync(fd) != 0)
        rc = fail_errno(e, beside, "sync");
    if (close(fd) != 0 && !rc)
        rc = fail_errno(e, beside, "close");
    if (!rc && rename(beside, path) != 0)
        rc = fail_errno(e, path, "replace");
    if (rc)
        unlink(beside);
    return rc;
}

enum q_code file_write_at(const struct file_open *f, const void *data, size_t n, uint64_t at,
                          struct q_err *e)
{
    const char *p = data;
    while (n) {
        const ssize_t step = pwrite(f->fd, p, n, (off_t)at);
        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0)
            return q_fail(e, Q_IO, "%s: cannot write at byte %llu: %s", f->path,
                          (unsigned long long)at, strerror(errno));
        p += step;
        at += (uint64_t)step;
        n -= (size_t)step;
    }
    return Q_OK;
}

enum q_code file_read_at(const struct file_open *f, void *data, size_t n, uint64_t at,
                         struct q_err *e)
{
    char *p = data;
    while (n) {
        const ssize_t step = pread(f->fd, p, n, (off_t)at);
        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0)
            return q_fail(e, Q_IO, "%s: cannot read at byte %llu: %s", f->path,
                          (unsigned long long)at, strerror(errno));
        if (step == 0)
            return q_fail(e, Q_CORRUPT, "%s: the file ends at byte %llu", f->path,
                          (unsigned long long)at);
        p += step;
        at += (uint64_t)step;
        n -= (size_t)step;
    }
    return Q_OK;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

bool dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum q_code dirs_make(const char *path, struct q_err *e)
{
    char part[PATH_MAX];
    const size_t n = strlen(path);
    if (n >= sizeof part)
        return q_fail(e, Q_TOO_LARGE, "path longer than %d bytes", PATH_MAX);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        const int code = mkdir(part, 0777) ? errno : 0;
        if (code && code != EEXIST && !dir_exists(part)) /* above a folder of ours: EACCES, EROFS */
            return q_fail(e, Q_IO, "%s: cannot create the folder: %s", part, strerror(code));
    }
    return Q_OK;
}

bool user_cache_dir(char *out, const char *below)
{
    static const struct {
        const char *variable, *between;
    } places[] = {{"XDG_CACHE_HOME", ""}, {"HOME", ".cache/"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value == '/')
            return snprintf(out, PATH_MAX, "%s/%s%s", value, places[i].between, below) < PATH_MAX;
    }
    return false;
}

enum q_code path_join(char *out, size_t size, const char *dir, const char *name, struct q_err *e)
{
    size_t n = strlen(dir);
    const char *slash = n && dir[n - 1] == '/' ? "" : "/";
    if (snprintf(out, size, "%s%s%s", dir, slash, name) >= (int)size)
        return q_fail(e, Q_TOO_LARGE, "path longer than %zu bytes: %s/%s", size, dir, name);
    return Q_OK;
}
