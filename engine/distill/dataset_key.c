/* SPDX-License-Identifier: Apache-2.0 */
/* The contents are hashed, not the times of files: a copy of the data on another machine has the
 * same key. All small text files of the tokenizer's folder count, whichever are read in the end: a
 * change of one costs a tokenization, a change that goes unseen would cost a run. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "common/file.h"
#include "common/mem.h"
#include "engine/distill/dataset_internal.h"
#include <fcntl.h>
#include <unistd.h>

#define KEY_VERSION 1u /* of what lines become; another one makes all cache files anew */
#define STEP        ((size_t)1 << 20)
#define NAMES_MAX   4096u

struct hasher {
    XXH3_state_t *state;
    unsigned char *data; /* [STEP] */
};

static enum q_code add(struct hasher *h, const void *data, size_t n, struct q_err *e)
{
    return XXH3_128bits_update(h->state, data, n) == XXH_OK
               ? Q_OK
               : q_fail(e, Q_INTERNAL, "the hash of the data failed");
}

static enum q_code add_number(struct hasher *h, uint64_t n, struct q_err *e)
{
    return add(h, &n, sizeof n, e);
}

static enum q_code add_text(struct hasher *h, const char *text, struct q_err *e)
{
    const enum q_code rc = add_number(h, strlen(text), e);
    return rc ? rc : add(h, text, strlen(text), e);
}

/* Its bytes and how many they are. */
static enum q_code add_file(struct hasher *h, const char *path, struct q_err *e)
{
    uint64_t total = 0;
    enum q_code rc = Q_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return q_fail(e, errno == ENOENT ? Q_NOT_FOUND : Q_IO, "%s: cannot open: %s", path,
                      strerror(errno));
    while (!rc) {
        const ssize_t n = read(fd, h->data, STEP);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = q_fail(e, Q_IO, "%s: cannot read: %s", path, strerror(errno));
        if (n <= 0)
            break;
        total += (uint64_t)n;
        rc = add(h, h->data, (size_t)n, e);
    }
    close(fd);
    return rc ? rc : add_number(h, total, e);
}

/* ---- the tokenizer's folder ---- */

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

static bool is_text_file(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".model", ".txt", ".tiktoken"};
    if (ends_with(name, ".index.json"))
        return false;
    if (strncmp(name, "tokenizer.model.v", 17) == 0)
        return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum q_code list_names(char ***names, size_t *n, const char *dir, struct q_err *e)
{
    size_t cap = 0;
    enum q_code rc = Q_OK;
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? Q_OK
                               : q_fail(e, Q_IO, "%s: cannot read: %s", dir, strerror(errno));
    for (const struct dirent *x; !rc && (x = readdir(d));) {
        if (!is_text_file(x->d_name))
            continue;
        if (!(rc = q_grow(names, &cap, *n + 1, sizeof **names, NAMES_MAX, e)) &&
            !((*names)[*n] = q_strdup(x->d_name)))
            rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", dir);
        *n += !rc;
    }
    closedir(d);
    return rc;
}

static enum q_code add_folder(struct hasher *h, const char *dir, struct q_err *e)
{
    char **names = NULL, path[PATH_MAX];
    size_t n = 0;
    enum q_code rc = list_names(&names, &n, dir, e);
    if (n)
        qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++) {
        if (!rc && !(rc = add_text(h, names[i], e)) &&
            !(rc = path_join(path, sizeof path, dir, names[i], e)) && file_exists(path))
            rc = add_file(h, path, e);
        q_free(names[i]);
    }
    q_free(names);
    return rc;
}

/* ---- the key ---- */

static enum q_code add_all(struct hasher *h, const struct dataset_options *o, struct q_err *e)
{
    const uint64_t numbers[] = {KEY_VERSION, o->seq_len, o->vocab_size, o->packing, o->n_path};
    char templates[PATH_MAX];
    enum q_code rc = add(h, numbers, sizeof numbers, e);
    for (uint32_t i = 0; i < o->n_path && !rc; i++)
        rc = add_file(h, o->paths[i], e);
    if (rc || !o->tokenizer_dir)
        return rc;
    if ((rc = add_folder(h, o->tokenizer_dir, e)) ||
        (rc = path_join(templates, sizeof templates, o->tokenizer_dir, "additional_chat_templates",
                        e)))
        return rc;
    return add_folder(h, templates, e);
}

enum q_code dataset_key(char out[SEQUENCE_FILE_KEY], const struct dataset_options *o,
                        struct q_err *e)
{
    struct hasher h = {XXH3_createState(), q_alloc(STEP)};
    char digits[SEQUENCE_FILE_KEY + 1];
    enum q_code rc;
    if (!h.state || !h.data || XXH3_128bits_reset(h.state) != XXH_OK)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for the hash of the data");
    else
        rc = add_all(&h, o, e);
    if (!rc) {
        const XXH128_hash_t sum = XXH3_128bits_digest(h.state);
        snprintf(digits, sizeof digits, "%016llx%016llx", (unsigned long long)sum.high64,
                 (unsigned long long)sum.low64);
        memcpy(out, digits, SEQUENCE_FILE_KEY);
    }
    XXH3_freeState(h.state);
    q_free(h.data);
    return rc;
}
