/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's thread waits in write(2) most of the time and has the lowest priority. It allocates
 * nothing, so that it may run in a worker whose allocations are frozen. A file is locked (flock)
 * while it is written; a file without a lock was left by a writer that died, and is removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/load/packed_cache_internal.h"

struct packed_cache_writer {
    pthread_t thread;
    atomic_bool stop;
    char dir[PATH_MAX], path[PATH_MAX], beside[PATH_MAX + 64];
    struct packed_cache_id id;
    struct packed_cache_head head;
    const unsigned char *data;  /* borrowed: the region */
    const struct tensor_set *s; /* borrowed */
    uint64_t *sums;             /* [head.n_chunk] */
};

static bool write_all(int fd, const void *data, uint64_t n, uint64_t at)
{
    const char *p = data;
    while (n) {
        ssize_t step = pwrite(fd, p, n, (off_t)at);
        if (step < 0 && errno == EINTR)
            continue;
        if (step <= 0)
            return false;
        p += step;
        at += (uint64_t)step;
        n -= (uint64_t)step;
    }
    return true;
}

static bool write_data(struct packed_cache_writer *w, int fd)
{
    const struct packed_cache_head *h = &w->head;
    for (uint64_t i = 0; i < h->n_chunk; i++) {
        const uint64_t at = i * PACKED_CACHE_CHUNK, left = h->data_bytes - at;
        const uint64_t n = left < PACKED_CACHE_CHUNK ? left : PACKED_CACHE_CHUNK;
        if (atomic_load(&w->stop)) {
            errno = ECANCELED;
            return false;
        }
        w->sums[i] = XXH3_64bits(w->data + at, (size_t)n);
        if (!write_all(fd, w->data + at, n, h->data_at + at))
            return false;
    }
    return true;
}

/* The header last, though nobody reads the file before it has its name. */
static bool write_file(struct packed_cache_writer *w, int fd)
{
    struct packed_cache_head *h = &w->head;
    /* a full disk is noticed before gigabytes are written to it; not every file system can say */
    if (fallocate(fd, 0, 0, (off_t)h->file_bytes) != 0 && errno == ENOSPC)
        return false;
    if (!write_data(w, fd))
        return false;
    h->sums_sum = XXH3_64bits(w->sums, h->n_chunk * sizeof *w->sums);
    h->head_sum = XXH3_64bits(h, offsetof(struct packed_cache_head, head_sum));
    return write_all(fd, w->sums, h->n_chunk * sizeof *w->sums, h->sums_at) &&
           write_all(fd, h, sizeof *h, 0) && fsync(fd) == 0;
}

static void remove_left_over(const char *dir)
{
    DIR *d = opendir(dir);
    for (const struct dirent *x; d && (x = readdir(d));) {
        const char *dot = strstr(x->d_name, PACKED_CACHE_SUFFIX ".");
        const size_t n = strlen(x->d_name), n_end = sizeof PACKED_CACHE_BESIDE - 1;
        if (!dot || n < n_end || strcmp(x->d_name + n - n_end, PACKED_CACHE_BESIDE) != 0)
            continue;
        int fd = openat(dirfd(d), x->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            (void)unlinkat(dirfd(d), x->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

/* So that the name outlives a crash of the machine. */
static void flush_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

static void *write_main(void *arg)
{
    struct packed_cache_writer *w = arg;
    int64_t start_ms = clock_ms();
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
    remove_left_over(w->dir);
    int fd = open(w->beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        log_warning("packed cache: cannot create %s: %s; the model runs without it", w->beside,
                    strerror(errno));
        return NULL;
    }
    bool ok = flock(fd, LOCK_EX) == 0 && write_file(w, fd);
    if (ok && !tensor_set_unchanged(w->s)) {
        ok = false;
        errno = ESTALE;
    }
    ok = ok && rename(w->beside, w->path) == 0;
    int code = errno;
    close(fd);
    if (ok) {
        flush_dir(w->dir);
        log_info("packed cache: wrote %s, %.1f MiB in %lld ms", w->path,
                 (double)w->head.file_bytes / (1 << 20), (long long)(clock_ms() - start_ms));
        return NULL;
    }
    unlink(w->beside);
    if (code == ECANCELED)
        log_info("packed cache: %s: stopped before it was whole", w->path);
    else if (code == ESTALE)
        log_warning("packed cache: not written: the model's files changed while they were read");
    else
        log_warning("packed cache: cannot write %s, %.1f MiB: %s; the model runs without it",
                    w->path, (double)w->head.file_bytes / (1 << 20), strerror(code));
    return NULL;
}

static void writer_free(struct packed_cache_writer *w)
{
    if (w)
        q_free(w->sums);
    q_free(w);
}

struct packed_cache_writer *packed_cache_write(const char *dir, const struct packed_cache_id *id,
                                               const struct region *r, const struct tensor_set *s)
{
    static atomic_uint count; /* of writers in this process: their names differ */
    struct packed_cache_writer *w = q_calloc(1, sizeof *w);
    if (!w)
        return NULL;
    packed_cache_head_fill(&w->head, id);
    w->id = *id;
    w->data = r->data;
    w->s = s;
    w->sums = q_calloc(w->head.n_chunk + 1, sizeof *w->sums);
    int n = snprintf(w->dir, sizeof w->dir, "%s", dir);
    bool too_long = n >= (int)sizeof w->dir || packed_cache_path(w->path, dir, id);
    n = snprintf(w->beside, sizeof w->beside, "%s.%ld-%u" PACKED_CACHE_BESIDE, w->path,
                 (long)getpid(), atomic_fetch_add(&count, 1));
    if (too_long || n >= (int)sizeof w->beside || !w->sums) {
        log_warning("packed cache: %s", w->sums ? "the path is too long" : "out of memory");
        writer_free(w);
        return NULL;
    }
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        log_warning("packed cache: cannot make the folder %s: %s; the model runs without it", dir,
                    strerror(errno));
        writer_free(w);
        return NULL;
    }
    int rc = pthread_create(&w->thread, NULL, write_main, w);
    if (rc != 0) {
        log_warning("packed cache: cannot start a thread: %s", strerror(rc));
        writer_free(w);
        return NULL;
    }
    pthread_setname_np(w->thread, "quire-cache");
    return w;
}

void packed_cache_writer_end(struct packed_cache_writer *w, bool stop)
{
    if (!w)
        return;
    if (stop)
        atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
    writer_free(w);
}
