/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/packed_cache.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "engine/model/load/packed_cache_internal.h"

const char *const packed_cache_other_files = "was made of other files";

#define N_SPOT     8 /* of each tensor, from its first bytes to its last */
#define SPOT_BYTES 32

static void hash_tensor(EVP_MD_CTX *md, const struct tensor *t)
{
    const unsigned char *data = t->data;
    const uint64_t last = t->n_bytes > SPOT_BYTES ? t->n_bytes - SPOT_BYTES : 0;
    const size_t n = t->n_bytes < SPOT_BYTES ? t->n_bytes : SPOT_BYTES;
    const uint32_t dtype = (uint32_t)t->dtype;
    EVP_DigestUpdate(md, t->name, strlen(t->name) + 1);
    EVP_DigestUpdate(md, dtype_name(t->dtype), strlen(dtype_name(t->dtype)) + 1);
    EVP_DigestUpdate(md, &dtype, sizeof dtype);
    EVP_DigestUpdate(md, t->shape, t->n_dim * sizeof *t->shape);
    EVP_DigestUpdate(md, &t->n_bytes, sizeof t->n_bytes);
    for (uint64_t i = 0; i < N_SPOT; i++)
        EVP_DigestUpdate(md, data + last / (N_SPOT - 1) * i, n);
    tensor_drop(t->data, t->n_bytes);
}

enum q_code packed_cache_identify(struct packed_cache_id *out, const struct tensor_set *s,
                                  const void *plan, size_t n_plan, struct q_err *e)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    enum q_code rc = Q_OK;
    if (!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        rc = q_fail(e, Q_NO_MEMORY, "packed cache: no SHA-256");
        goto out;
    }
    for (uint32_t i = 0; i < tensor_count(s); i++)
        hash_tensor(md, tensor_at(s, i));
    EVP_DigestUpdate(md, plan, n_plan);
    EVP_DigestFinal_ex(md, out->key, NULL);
    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    for (uint32_t i = 0; i < tensor_set_n_file(s); i++) {
        const struct file_stamp *stamp = tensor_set_stamp(s, i);
        EVP_DigestUpdate(md, stamp, sizeof *stamp);
    }
    EVP_DigestFinal_ex(md, out->stamp, NULL);
out:
    EVP_MD_CTX_free(md);
    return rc;
}

const char *packed_cache_head_check(struct packed_cache_head *head, const void *file,
                                    uint64_t n_file, const struct packed_cache_id *id)
{
    struct packed_cache_head want;
    if (n_file < sizeof *head)
        return "is too short";
    memcpy(head, file, sizeof *head);
    if (memcmp(head->magic, PACKED_CACHE_MAGIC, sizeof head->magic) != 0)
        return "is no file of packed weights";
    if (head->version != PACKED_CACHE_VERSION || head->head_bytes != sizeof *head)
        return "is of another version";
    if (head->head_sum != XXH3_64bits(head, offsetof(struct packed_cache_head, head_sum)))
        return "has a damaged header";
    if (memcmp(head->stamp, id->stamp, PACKED_CACHE_HASH) != 0 &&
        memcmp(head->key, id->key, PACKED_CACHE_HASH) == 0)
        return PACKED_CACHE_OTHER_FILES;
    packed_cache_head_fill(&want, id);
    want.sums_sum = head->sums_sum;
    want.head_sum = head->head_sum;
    if (memcmp(&want, head, sizeof want) != 0)
        return "holds other weights";
    if (n_file != head->file_bytes)
        return "is truncated";
    if (XXH3_64bits((const char *)file + head->sums_at, head->n_chunk * sizeof(uint64_t)) !=
        head->sums_sum)
        return "has damaged checksums";
    return NULL;
}

/* ---- reading ---- */

struct check_job {
    const unsigned char *data;
    const uint64_t *sums;
    uint64_t n_bytes, n_chunk;
    atomic_uint_fast64_t next, bad; /* bad: a chunk that differs, or n_chunk */
};

static void check_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct check_job *j = arg;
    (void)ith;
    (void)nth;
    for (uint64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->n_chunk;) {
        const uint64_t at = i * PACKED_CACHE_CHUNK, left = j->n_bytes - at;
        const size_t n = (size_t)(left < PACKED_CACHE_CHUNK ? left : PACKED_CACHE_CHUNK);
        tensor_want(j->data + at, n);
        if (XXH3_64bits(j->data + at, n) != j->sums[i])
            atomic_store(&j->bad, i);
    }
}

static const char *check_file(struct packed_cache_head *head, const unsigned char *file,
                              uint64_t n_file, const struct packed_cache_id *id, struct team *team)
{
    const char *why = packed_cache_head_check(head, file, n_file, id);
    if (why)
        return why;
    struct check_job j = {
        .data = file + head->data_at,
        .sums = (const uint64_t *)(const void *)(file + head->sums_at),
        .n_bytes = head->data_bytes,
        .n_chunk = head->n_chunk,
        .bad = head->n_chunk,
    };
    if (team)
        team_run(team, check_run, &j);
    else
        check_run(&j, 0, 1);
    return atomic_load(&j.bad) == j.n_chunk ? NULL : "is damaged: a checksum differs";
}

/* The file at an address that is a multiple of 2 MiB, so that its data can be in huge pages. */
static unsigned char *map_file(struct region *out, int fd, size_t n)
{
    const size_t align = PACKED_CACHE_ALIGN;
    void *map =
        mmap(NULL, n + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    unsigned char *at = (unsigned char *)(((uintptr_t)map + align - 1) / align * align);
    out->map = map;
    out->map_size = n + align;
    if (mmap(at, n, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED)
        return NULL;
    (void)madvise(at, n, MADV_HUGEPAGE); /* a wish */
    return at;
}

bool packed_cache_open(struct region *out, const char *dir, const struct packed_cache_id *id,
                       struct team *team)
{
    char path[PATH_MAX];
    struct stat st;
    struct region r = REGION_INIT;
    struct packed_cache_head head;
    const char *why = NULL;
    int64_t start_ms = clock_ms();
    if (packed_cache_path(path, dir, id))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        log_info("packed cache: %s: %s", path, errno == ENOENT ? "not there yet" : strerror(errno));
        return false;
    }
    const unsigned char *file = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < PACKED_CACHE_SUMS_AT)
        why = "is too short";
    else if (!(file = map_file(&r, fd, (size_t)st.st_size)))
        why = "cannot be mapped";
    else
        why = check_file(&head, file, (uint64_t)st.st_size, id, team);
    close(fd);
    if (why) {
        region_release(&r);
        log_line(why == PACKED_CACHE_OTHER_FILES ? LOG_INFO : LOG_WARNING,
                 "packed cache: %s %s; packing", path, why);
        return false;
    }
    r.data = (unsigned char *)(uintptr_t)file + head.data_at;
    r.size = (size_t)head.data_bytes;
    r.is_file = true;
    *out = r;
    log_info("packed cache: %s: %.1f MiB mapped and checked in %lld ms", path,
             (double)r.size / (1 << 20), (long long)(clock_ms() - start_ms));
    return true;
}
