/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/teacher_shard.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/file.h"
#include "common/mem.h"
#include "kernels/ops/ops_distill.h"

static const char magic[8] = {'Q', 'T', 'E', 'A', 'C', 'H', '1', '\n'};

struct teacher_key teacher_key_of(const uint32_t *ids, const int32_t *labels, uint32_t n)
{
    XXH128_hash_t h = XXH3_128bits(ids, (size_t)n * sizeof *ids);
    for (uint32_t at = 0; at < n; at += 64) {
        uint64_t words[3] = {h.low64, h.high64, 0};
        for (uint32_t i = at; i < n && i < at + 64; i++)
            words[2] |= (uint64_t)(labels[i] >= 0) << (i - at);
        h = XXH3_128bits(words, sizeof words);
    }
    return (struct teacher_key){{h.low64, h.high64}};
}

uint64_t teacher_entry_bytes(const struct teacher_entry *x, uint32_t top_k)
{
    const uint64_t n = (uint64_t)x->n_counted * top_k;
    return (n * (sizeof(uint32_t) + sizeof(uint16_t)) + 7) / 8 * 8;
}

uint64_t teacher_entry_sum(const void *data, uint64_t bytes)
{
    return XXH3_64bits(data, (size_t)bytes);
}

void teacher_shard_seal(struct teacher_shard_head *head)
{
    memcpy(head->magic, magic, sizeof magic);
    head->head_sum = XXH3_64bits(head, offsetof(struct teacher_shard_head, head_sum));
}

FALLIBLE teacher_shard_read(int fd, const char *path, uint64_t at, void *out, size_t n,
                            struct q_err *e)
{
    char *to = out;
    while (n) {
        const ssize_t step = pread(fd, to, n, (off_t)at);
        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0)
            return q_fail(e, Q_IO, "%s: cannot read: %s", path, strerror(errno));
        if (step == 0)
            return q_fail(e, Q_CORRUPT, "%s: it ends at byte %llu, %zu more are expected", path,
                          (unsigned long long)at, n);
        to += step;
        at += (uint64_t)step;
        n -= (size_t)step;
    }
    return Q_OK;
}

static const char *head_error(const struct teacher_shard_head *h)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return "it is no file of `quire teach`, or of another version";
    if (h->head_sum != XXH3_64bits(h, offsetof(struct teacher_shard_head, head_sum)))
        return "the checksum of its head is wrong";
    if (h->top_k == 0 || h->top_k > KERN_TOP_K_MAX || (h->n_vocab && h->top_k > h->n_vocab))
        return "the top k of its head is out of range";
    if (memchr(h->teacher, 0, sizeof h->teacher) == NULL)
        return "the teacher's name in its head has no end";
    return NULL;
}

static bool has_index(const struct teacher_shard_head *h, uint64_t file_bytes)
{
    const uint64_t entry = sizeof(struct teacher_entry);
    return h->file_bytes == file_bytes && h->index_at >= sizeof *h && h->index_at <= file_bytes &&
           h->n_entry == (file_bytes - h->index_at) / entry &&
           (file_bytes - h->index_at) % entry == 0;
}

FALLIBLE teacher_shard_read_head(struct teacher_shard_head *out, int fd, const char *path,
                                 bool is_complete, struct q_err *e)
{
    struct stat st;
    enum q_code rc = teacher_shard_read(fd, path, 0, out, sizeof *out, e);
    if (rc)
        return rc;
    const char *error = head_error(out);
    if (error)
        return q_fail(e, Q_CORRUPT, "%s: %s", path, error);
    if (fstat(fd, &st) != 0)
        return q_fail(e, Q_IO, "%s: cannot stat: %s", path, strerror(errno));
    if (is_complete && !has_index(out, (uint64_t)st.st_size))
        return q_fail(e, Q_CORRUPT, "%s: it has %lld bytes, its head says %llu with %llu entries",
                      path, (long long)st.st_size, (unsigned long long)out->file_bytes,
                      (unsigned long long)out->n_entry);
    return Q_OK;
}

static bool entry_fits(const struct teacher_entry *x, const struct teacher_shard_head *h)
{
    return x->n_row <= TEACHER_ROWS_MAX && x->n_counted <= x->n_row && x->at % 8 == 0 &&
           x->at >= sizeof *h + sizeof *x && x->at <= h->index_at &&
           teacher_entry_bytes(x, h->top_k) <= h->index_at - x->at;
}

FALLIBLE teacher_shard_read_index(struct teacher_entry **out, const struct teacher_shard_head *head,
                                  int fd, const char *path, struct q_err *e)
{
    const size_t n = (size_t)head->n_entry, bytes = n * sizeof(struct teacher_entry);
    struct teacher_entry *index = q_calloc(n + 1, sizeof *index);
    enum q_code rc;
    if (!index)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory for its %zu entries", path, n);
    if ((rc = teacher_shard_read(fd, path, head->index_at, index, bytes, e)))
        goto out;
    if (XXH3_64bits(index, bytes) != head->index_sum)
        rc = q_fail(e, Q_CORRUPT, "%s: the checksum of its index is wrong", path);
    for (size_t i = 0; i < n && !rc; i++)
        if (!entry_fits(&index[i], head))
            rc = q_fail(e, Q_CORRUPT, "%s: entry %zu of its index is out of range", path, i);
out:
    if (rc)
        q_free(index);
    else
        *out = index;
    return rc;
}

/* ---- folders ---- */

FALLIBLE teacher_shard_path(char out[PATH_MAX], const char *dir, uint32_t number, bool is_tmp,
                            struct q_err *e)
{
    char name[TEACHER_SHARD_NAME_MAX];
    snprintf(name, sizeof name, "%06u" TEACHER_SHARD_SUFFIX "%s", number % (TEACHER_SHARD_MAX + 1),
             is_tmp ? TEACHER_SHARD_BESIDE : "");
    return path_join(out, PATH_MAX, dir, name, e);
}

/* "000012.logprobs" -> 12; false: the name is another. */
static bool parse_name(const char *name, uint32_t *number, bool *is_tmp)
{
    uint32_t n = 0, digits = 0;
    for (; name[digits] >= '0' && name[digits] <= '9' && digits < 6; digits++)
        n = n * 10 + (uint32_t)(name[digits] - '0');
    *number = n;
    *is_tmp = strcmp(name + digits, TEACHER_SHARD_SUFFIX TEACHER_SHARD_BESIDE) == 0;
    return digits == 6 && (*is_tmp || strcmp(name + digits, TEACHER_SHARD_SUFFIX) == 0);
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

FALLIBLE teacher_shard_list(uint32_t **numbers, size_t *n, uint32_t *tmp, const char *dir,
                            struct q_err *e)
{
    uint32_t *all = NULL, number;
    size_t cap = 0, count = 0;
    bool is_tmp;
    enum q_code rc = Q_OK;
    DIR *d = opendir(dir);
    if (!d)
        return q_fail(e, errno == ENOENT || errno == ENOTDIR ? Q_NOT_FOUND : Q_IO,
                      "%s: cannot open the folder: %s", dir, strerror(errno));
    *tmp = UINT32_MAX;
    for (const struct dirent *x; !rc && (x = readdir(d));) {
        if (!parse_name(x->d_name, &number, &is_tmp))
            continue;
        if (is_tmp)
            *tmp = number;
        else if (!(rc = q_grow(&all, &cap, count + 1, sizeof *all, TEACHER_SHARD_MAX + 1, e)))
            all[count++] = number;
    }
    closedir(d);
    if (rc) {
        q_free(all);
        return rc;
    }
    if (count)
        qsort(all, count, sizeof *all, by_number);
    *numbers = all;
    *n = count;
    return Q_OK;
}
