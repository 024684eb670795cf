/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/shared_blobs.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/hub/cache.h"

#define MARKER   ".huggingface-shared-blobs"
#define LAYOUT   "1\n"
#define REFS_MAX ((size_t)16 << 20) /* bytes of a list */

static bool is_hash(const char *text)
{
    return strspn(text, "0123456789abcdef") == SHARED_HASH_DIGITS && !text[SHARED_HASH_DIGITS];
}

bool shared_blobs_target(char *hash, const char *blob)
{
    char target[PATH_MAX];
    const ssize_t n = readlink(blob, target, sizeof target - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    char *slash = strrchr(target, '/');
    if (!slash || !is_hash(slash + 1))
        return false;
    memcpy(hash, slash + 1, SHARED_HASH_DIGITS + 1);
    *slash = '\0';
    const char *folder = strrchr(target, '/');
    return folder && strlen(folder) == 3 && !memcmp(folder + 1, hash, 2);
}

static bool is_regular(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool is_store(const char *store)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    const bool is = !path_join(path, sizeof path, store, MARKER, &e) && is_regular(path) &&
                    !file_read(&text, path, 64, &e) && !strcmp(buf_str(&text), LAYOUT);
    buf_release(&text);
    return is;
}

/* Does a blob of the list link to the file? A list that cannot be read may have one. */
static bool is_used(const char *cache, const char *hash, const char *refs)
{
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    bool used = !is_regular(refs) || file_read(&text, refs, REFS_MAX, &e);
    for (char *line = text.data; line && *line && !used;) {
        char path[PATH_MAX], found[SHARED_HASH_DIGITS + 1];
        const size_t n = strcspn(line, "\n");
        char *next = line + n + (line[n] == '\n');
        line[n] = '\0';
        used = cache_is_file(line) && !path_join(path, sizeof path, cache, line, NULL) &&
               shared_blobs_target(found, path) && !strcmp(found, hash);
        line = next;
    }
    buf_release(&text);
    return used;
}

void shared_blobs_sweep(const char *cache, const char *hash)
{
    char store[PATH_MAX], file[PATH_MAX], refs[PATH_MAX], lock[PATH_MAX];
    char name[3 + SHARED_HASH_DIGITS + 1];
    snprintf(name, sizeof name, "%.2s/%s", hash, hash);
    if (path_join(store, sizeof store, cache, "blobs", NULL) || !is_store(store) ||
        path_join(file, sizeof file, store, name, NULL) || !is_regular(file) ||
        snprintf(refs, sizeof refs, "%s.refs", file) >= (int)sizeof refs ||
        snprintf(lock, sizeof lock, "%s.lock", file) >= (int)sizeof lock)
        return;
    const int fd = open(lock, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return;
    int rc;
    while ((rc = flock(fd, LOCK_EX)) != 0 && errno == EINTR)
        ;
    if (rc == 0 && !is_used(cache, hash, refs) && unlink(file) == 0)
        unlink(refs);
    close(fd);
}
