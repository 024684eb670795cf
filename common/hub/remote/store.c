/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/store.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/size_text.h"

#define FILE_MODE 0666 /* less the umask, as huggingface_hub's */

static enum q_code make_dirs(const char *path, struct q_err *e)
{
    struct q_err cause = Q_ERR_INIT;
    const enum q_code rc = dirs_make(path, &cause);
    return rc ? q_fail(e, rc, "%s; --download-dir or HF_HUB_CACHE sets another cache",
                       cause.message)
              : Q_OK;
}

/* The folder of a file. */
static enum q_code make_dirs_of(const char *path, struct q_err *e)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return make_dirs(dir, e);
}

enum q_code store_init(struct store *s, const char *id, struct q_err *e)
{
    char cache[PATH_MAX];
    enum q_code rc;
    if ((rc = cache_dir(cache, e)) || (rc = cache_repo_dir(s->repo, id, e)))
        return rc;
    return cache_join(s->locks, cache, ".locks", strrchr(s->repo, '/') + 1, e);
}

enum q_code store_make(const struct store *s, struct q_err *e)
{
    char blobs[PATH_MAX];
    enum q_code rc;
    if ((rc = path_join(blobs, sizeof blobs, s->repo, "blobs", e)) || (rc = make_dirs(blobs, e)))
        return rc;
    return make_dirs(s->locks, e);
}

enum q_code store_pointer(char *out, const struct store *s, const char *commit, const char *file,
                          struct q_err *e)
{
    char dir[PATH_MAX];
    enum q_code rc = cache_join(dir, s->repo, "snapshots", commit, e);
    return rc ? rc : path_join(out, PATH_MAX, dir, file, e);
}

bool store_has(const struct store *s, const char *commit, const char *file)
{
    char path[PATH_MAX];
    return !store_pointer(path, s, commit, file, NULL) && file_exists(path);
}

bool store_has_blob(const struct store *s, const char *etag)
{
    char path[PATH_MAX];
    return !cache_join(path, s->repo, "blobs", etag, NULL) && file_exists(path);
}

enum q_code store_link(const struct store *s, const char *commit, const char *file,
                       const char *etag, struct q_err *e)
{
    char path[PATH_MAX], blob[PATH_MAX];
    struct buf target = BUF_INIT;
    enum q_code rc;
    if ((rc = store_pointer(path, s, commit, file, e)) ||
        (rc = cache_join(blob, s->repo, "blobs", etag, e)) || (rc = make_dirs_of(path, e)))
        return rc;
    buf_add_str(&target, "../../"); /* from snapshots/COMMIT */
    for (const char *p = file; *p; p++)
        if (*p == '/')
            buf_add_str(&target, "../");
    buf_printf(&target, "blobs/%s", etag);
    if ((rc = buf_check(&target, "a link", e)))
        goto out;
    if (unlink(path) != 0 && errno != ENOENT)
        rc = q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    else if (symlink(buf_str(&target), path) != 0 && errno != EEXIST &&
             (errno != EPERM || rename(blob, path) != 0)) /* EPERM: no links here */
        rc = q_fail(e, Q_IO, "%s: cannot link to the blob: %s", path, strerror(errno));
out:
    buf_release(&target);
    return rc;
}

enum q_code store_write_ref(const struct store *s, const char *revision, const char *commit,
                            struct q_err *e)
{
    char path[PATH_MAX], now[CACHE_HASH_MAX + 1];
    enum q_code rc;
    if (!strcmp(revision, commit))
        return Q_OK;
    if (cache_read_ref(now, s->repo, revision, NULL) == Q_OK && !strcmp(now, commit))
        return Q_OK;
    if ((rc = cache_join(path, s->repo, "refs", revision, e)) || (rc = make_dirs_of(path, e)))
        return rc;
    return file_write(path, commit, strlen(commit), FILE_MODE & ~0022u, e);
}

void store_note_absent(const struct store *s, const char *commit, const char *file)
{
    char dir[PATH_MAX], path[PATH_MAX];
    if (cache_join(dir, s->repo, ".no_exist", commit, NULL) ||
        path_join(path, sizeof path, dir, file, NULL) || make_dirs_of(path, NULL))
        return;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, FILE_MODE);
    if (fd >= 0)
        close(fd);
}

enum q_code store_check_space(const struct store *s, uint64_t bytes, struct q_err *e)
{
    struct statvfs fs;
    char needed[SIZE_TEXT_MAX], left[SIZE_TEXT_MAX];
    if (statvfs(s->repo, &fs) != 0)
        return Q_OK; /* the write will tell */
    const uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes <= free_bytes)
        return Q_OK;
    return q_fail(e, Q_NO_SPACE,
                  "%s: the download needs %s and the disk has %s free; free some, or set another "
                  "cache with --download-dir or HF_HUB_CACHE",
                  s->repo, size_text(needed, (double)bytes), size_text(left, (double)free_bytes));
}

/* The file may have been removed between open and flock: then the lock is of no name, and another
 * process may hold the one of the new file. */
enum q_code store_try_lock(int *fd, const struct store *s, const char *etag, struct q_err *e)
{
    char name[CACHE_HASH_MAX + sizeof ".lock"], path[PATH_MAX];
    struct stat held, named;
    snprintf(name, sizeof name, "%s.lock", etag);
    *fd = -1;
    enum q_code rc = path_join(path, sizeof path, s->locks, name, e);
    if (rc)
        return rc;
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    if (lock < 0)
        return q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        const int why = errno;
        close(lock);
        return why == EWOULDBLOCK || why == EINTR
                   ? Q_OK
                   : q_fail(e, Q_IO, "%s: cannot be locked: %s", path, strerror(why));
    }
    if (fstat(lock, &held) != 0 || stat(path, &named) != 0 || held.st_ino != named.st_ino) {
        close(lock);
        return Q_OK; /* the caller tries again */
    }
    *fd = lock;
    return Q_OK;
}
