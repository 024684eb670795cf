/* SPDX-License-Identifier: Apache-2.0 */
/* Without an index nothing says which files belong together, so all are the model's, as in vLLM;
 * the names of shards say how many there are, so an interrupted download is noticed. Tensors that
 * two files have are refused by safetensors.c, which reads them. */
#include "common/hub/loose_files.h"
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "common/hub/folder.h"
#include "common/mem.h"

#define SUFFIX       ".safetensors"
#define SHARD_DIGITS 5u /* "-00001-of-00002" */

bool loose_files_is(const char *name)
{
    static const char *const others[] = {".", "consolidated", "adapter_"};
    const size_t n = strlen(name), n_suffix = sizeof SUFFIX - 1;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strncmp(name, others[i], strlen(others[i])))
            return false;
    return n > n_suffix && !strcmp(name + n - n_suffix, SUFFIX) && !strchr(name, '/');
}

void loose_files_release(struct loose_files *l)
{
    q_free(l->names);
    *l = (struct loose_files)LOOSE_FILES_INIT;
}

/* All of the folder's; n may be 0. */
static enum q_code list_all(struct loose_files *out, const char *dir, struct q_err *e)
{
    size_t n = 0;
    *out = (struct loose_files)LOOSE_FILES_INIT;
    const enum q_code rc = folder_names(&out->names, &n, dir, e);
    for (size_t i = 0; i < n && !rc; i++)
        if (loose_files_is(out->names[i]))
            memmove(out->names[out->n++], out->names[i], sizeof *out->names);
    if (rc)
        loose_files_release(out);
    return rc;
}

bool loose_files_any(const char *dir)
{
    struct loose_files l = LOOSE_FILES_INIT;
    const bool any = !list_all(&l, dir, NULL) && l.n > 0;
    loose_files_release(&l);
    return any;
}

/* SHARD_DIGITS digits at text; false: others are there. */
static bool read_number(uint32_t *out, const char *text)
{
    *out = 0;
    for (size_t i = 0; i < SHARD_DIGITS; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        *out = *out * 10 + (uint32_t)(text[i] - '0');
    }
    return true;
}

/* X-00001-of-00002.safetensors: the length of X, and how many there are; false: another name. */
static bool read_shard(size_t *n_stem, uint32_t *count, const char *name)
{
    static const size_t n_end = sizeof "-00001-of-00002" SUFFIX - 1;
    const size_t n = strlen(name);
    uint32_t number = 0;
    if (n <= n_end)
        return false;
    *n_stem = n - n_end;
    const char *end = name + *n_stem;
    return end[0] == '-' && read_number(&number, end + 1) &&
           !strncmp(end + 1 + SHARD_DIGITS, "-of-", 4) &&
           read_number(count, end + 5 + SHARD_DIGITS) && number >= 1 && number <= *count;
}

static bool has(const struct loose_files *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->names[i], name))
            return true;
    return false;
}

/* Are the other shards there of a file that is one? Names are sorted, and only the first of the
 * shards that are there asks. */
static enum q_code check_shards(const struct loose_files *l, size_t i, const char *dir,
                                struct q_err *e)
{
    size_t n_stem = 0, n_other = 0;
    uint32_t count = 0, other_count = 0;
    char name[NAME_MAX + 1];
    if (!read_shard(&n_stem, &count, l->names[i]) ||
        (i > 0 && read_shard(&n_other, &other_count, l->names[i - 1]) && n_other == n_stem &&
         other_count == count && !strncmp(l->names[i], l->names[i - 1], n_stem)))
        return Q_OK;
    for (uint32_t k = 1; k <= count; k++) {
        snprintf(name, sizeof name, "%.*s-%05u-of-%05u" SUFFIX, (int)n_stem, l->names[i], k, count);
        if (!has(l, name))
            return q_fail(e, Q_NOT_FOUND,
                          "%s: %s is one of %u files, and %s is missing: the model is incomplete, "
                          "download it with `quire download`",
                          dir, l->names[i], count, name);
    }
    return Q_OK;
}

enum q_code loose_files_list(struct loose_files *out, const char *dir, struct q_err *e)
{
    enum q_code rc = list_all(out, dir, e);
    if (rc)
        return rc;
    if (!out->n)
        rc = q_fail(e, Q_NOT_FOUND, "%s: there are no *.safetensors", dir);
    for (size_t i = 0; i < out->n && !rc; i++)
        rc = check_shards(out, i, dir, e);
    if (rc)
        loose_files_release(out);
    return rc;
}
