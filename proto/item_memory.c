/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/item_memory.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"

#define PREFIX    "/quire-items-"
#define FOLDER    "/dev/shm"
#define HEX_LEN   16u
#define BYTES_MAX ((uint64_t)512 << 20)

FALLIBLE item_memory_write(int fd, const void *data, size_t n, uint64_t offset, struct q_err *e)
{
    const char *at = data;
    /* else a write kills where memory ends */
    int full = posix_fallocate(fd, (off_t)offset, (off_t)n);
    if (full)
        return q_fail(e, full == ENOSPC ? Q_NO_SPACE : Q_IO,
                      "cannot allocate %zu bytes of shared memory: %s", n, strerror(full));
    for (size_t done = 0; done < n;) {
        ssize_t one = pwrite(fd, at + done, n - done, (off_t)(offset + done));
        if (one <= 0 && errno != EINTR)
            return q_fail(e, Q_IO, "cannot write shared memory: %s", strerror(errno));
        done += one > 0 ? (size_t)one : 0;
    }
    return Q_OK;
}

FALLIBLE item_memory_new(char name[ITEM_MEMORY_MAX], int *fd, struct q_err *e)
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return q_fail(e, Q_IO, "cannot get random numbers: %s", strerror(errno));
    snprintf(name, ITEM_MEMORY_MAX, PREFIX "%d-%016llx", (int)getpid(), (unsigned long long)random);
    *fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0)
        return Q_OK;
    name[0] = '\0';
    return q_fail(e, Q_IO, "cannot make shared memory: %s", strerror(errno));
}

FALLIBLE item_memory_make(char name[ITEM_MEMORY_MAX], const void *data, size_t n, struct q_err *e)
{
    int fd = -1;
    enum q_code rc = item_memory_new(name, &fd, e);
    if (rc)
        return rc;
    rc = item_memory_write(fd, data, n, 0, e);
    close(fd);
    if (rc)
        item_memory_drop(name);
    return rc;
}

void item_memory_drop(const char *name)
{
    if (*name && shm_unlink(name) != 0 && errno != ENOENT) {
        /* it stays until item_memory_sweep */
    }
}

/* "/quire-items-123-0123456789abcdef"; *pid: of its maker. */
static bool is_name(const char *name, size_t n, long *pid)
{
    char text[ITEM_MEMORY_MAX], *end;
    const size_t n_prefix = sizeof PREFIX - 1;
    if (n <= n_prefix || n >= sizeof text || memcmp(name, PREFIX, n_prefix) != 0)
        return false;
    memcpy(text, name, n);
    text[n] = '\0';
    if (strlen(text) != n || text[n_prefix] < '1' || text[n_prefix] > '9')
        return false;
    *pid = strtol(text + n_prefix, &end, 10);
    return *end == '-' && strlen(end + 1) == HEX_LEN &&
           strspn(end + 1, "0123456789abcdef") == HEX_LEN;
}

FALLIBLE item_memory_read(void *out, int fd, uint64_t n_byte, struct q_err *e)
{
    for (uint64_t done = 0; done < n_byte;) {
        ssize_t one = pread(fd, (char *)out + done, n_byte - done, (off_t)done);
        if (one < 0 && errno == EINTR)
            continue;
        if (one <= 0)
            return q_fail(e, Q_CORRUPT, "shared memory of items: cut short at %llu of %llu bytes",
                          (unsigned long long)done, (unsigned long long)n_byte);
        done += (uint64_t)one;
    }
    return Q_OK;
}

FALLIBLE item_memory_open(int *fd, const char *name, size_t n_name, uint64_t n_byte,
                          struct q_err *e)
{
    char text[ITEM_MEMORY_MAX];
    struct stat st;
    long pid;
    if (!is_name(name, n_name, &pid) || !n_byte || n_byte > BYTES_MAX)
        return q_fail(e, Q_CORRUPT, "shared memory of items: invalid name or size");
    memcpy(text, name, n_name);
    text[n_name] = '\0';
    *fd = shm_open(text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (*fd < 0)
        return q_fail(e, errno == ENOENT ? Q_NOT_FOUND : Q_IO,
                      "shared memory of items %s: %s; frontend and engine must share " FOLDER, text,
                      strerror(errno));
    shm_unlink(text);
    if (!fstat(*fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        (uint64_t)st.st_size == n_byte)
        return Q_OK;
    close(*fd);
    *fd = -1;
    return q_fail(e, Q_CORRUPT, "shared memory of items: expected %llu bytes of this user",
                  (unsigned long long)n_byte);
}

FALLIBLE item_memory_take(void **out, const char *name, size_t n_name, uint64_t n_byte,
                          struct q_err *e)
{
    int fd = -1;
    enum q_code rc = item_memory_open(&fd, name, n_name, n_byte, e);
    void *to = rc ? NULL : q_alloc(n_byte);
    if (!rc && !to)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for %llu bytes of items",
                    (unsigned long long)n_byte);
    if (!rc && !(rc = item_memory_read(to, fd, n_byte, e)))
        *out = to;
    if (rc)
        q_free(to);
    if (fd >= 0)
        close(fd);
    return rc;
}

void item_memory_sweep(void)
{
    DIR *d = opendir(FOLDER);
    if (!d)
        return;
    for (const struct dirent *entry; (entry = readdir(d));) {
        char name[ITEM_MEMORY_MAX + 1];
        struct stat st;
        long pid;
        if (snprintf(name, sizeof name, "/%s", entry->d_name) >= (int)sizeof name ||
            !is_name(name, strlen(name), &pid) || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
            continue;
        if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            st.st_uid == geteuid())
            item_memory_drop(name);
    }
    closedir(d);
}
