/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/batch_ids.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

#define CAP_MIN ((size_t)1024)

void batch_ids_release(struct batch_ids *s)
{
    q_free(s->entries);
    *s = (struct batch_ids)BATCH_IDS_INIT;
}

static struct batch_entry *place(const struct batch_ids *s, const uint64_t key[2])
{
    size_t at = key[0] & (s->cap - 1);
    while ((s->entries[at].key[0] | s->entries[at].key[1]) &&
           memcmp(s->entries[at].key, key, sizeof s->entries[at].key) != 0)
        at = (at + 1) & (s->cap - 1);
    return &s->entries[at];
}

static FALLIBLE grow(struct batch_ids *s, struct q_err *e)
{
    struct batch_ids larger = {.cap = s->cap ? 2 * s->cap : CAP_MIN, .n = s->n};
    larger.entries = q_calloc(larger.cap, sizeof *larger.entries);
    if (!larger.entries)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the custom_ids of %zu lines", s->n);
    for (size_t i = 0; i < s->cap; i++)
        if (s->entries[i].key[0] | s->entries[i].key[1])
            *place(&larger, s->entries[i].key) = s->entries[i];
    q_free(s->entries);
    *s = larger;
    return Q_OK;
}

/* Ids and line numbers never collide: an id has the prefix 'i', a number the prefix 'l'. */
static FALLIBLE digest(uint64_t key[2], const char *custom_id, uint64_t line, struct q_err *e)
{
    unsigned char md[EVP_MAX_MD_SIZE];
    char number[32];
    const char *text = custom_id;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (!custom_id) {
        snprintf(number, sizeof number, "%llu", (unsigned long long)line);
        text = number;
    }
    bool fine = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) &&
                EVP_DigestUpdate(ctx, custom_id ? "i" : "l", 1) &&
                EVP_DigestUpdate(ctx, text, strlen(text)) && EVP_DigestFinal_ex(ctx, md, NULL);
    EVP_MD_CTX_free(ctx);
    if (!fine)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a digest");
    memcpy(key, md, 2 * sizeof *key);
    key[1] |= 1; /* never 0, 0 */
    return Q_OK;
}

FALLIBLE batch_ids_find(struct batch_ids *s, const char *custom_id, uint64_t line,
                        struct batch_entry **out, struct q_err *e)
{
    uint64_t key[2];
    enum q_code rc = digest(key, custom_id, line, e);
    if (!rc && 3 * (s->n + 1) > 2 * s->cap)
        rc = grow(s, e);
    if (rc)
        return rc;
    *out = place(s, key);
    if (!((*out)->key[0] | (*out)->key[1])) {
        memcpy((*out)->key, key, sizeof key);
        s->n++;
    }
    return Q_OK;
}
