/* SPDX-License-Identifier: Apache-2.0 */
/* The method is fetched once and all digests share one context, so a digest is three calls without
 * an allocation. These calls fail only if the provider is missing (checked at init) or memory is
 * exhausted (the context already has its memory), so a failure after init is a bug. */
#include "engine/sched/prefix.h"
#include <assert.h>
#include <openssl/evp.h>
#include <string.h>

static_assert(sizeof(struct kv_hash) == 32, "a SHA-256");

static bool digest(const struct prefix_hasher *h, struct kv_hash *out, const void *bytes, size_t n)
{
    EVP_MD_CTX *c = h->context;
    return EVP_DigestInit_ex(c, h->method, NULL) && EVP_DigestUpdate(c, bytes, n) &&
           EVP_DigestFinal_ex(c, (unsigned char *)out->words, NULL);
}

FALLIBLE prefix_hasher_init(struct prefix_hasher *h, struct q_err *e)
{
    struct kv_hash first;
    *h = (struct prefix_hasher)PREFIX_HASHER_INIT;
    h->context = EVP_MD_CTX_new();
    if (!h->context)
        return q_fail(e, Q_NO_MEMORY, "prefix cache: out of memory for a hash");
    h->method = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (h->method && digest(h, &first, "", 0))
        return Q_OK;
    prefix_hasher_release(h);
    return q_fail(e, Q_INTERNAL, "prefix cache: OpenSSL does not provide SHA-256");
}

void prefix_hasher_release(struct prefix_hasher *h)
{
    EVP_MD_CTX_free(h->context);
    EVP_MD_free(h->method);
    *h = (struct prefix_hasher)PREFIX_HASHER_INIT;
}

void prefix_hash_root(const struct prefix_hasher *h, struct kv_hash *out,
                      const struct prefix_root *r)
{
    struct {
        char name[12];
        uint32_t lora, length_class, n_salt;
    } head = {"quire kv 1", r->lora, r->length_class, (uint32_t)r->n_salt};
    EVP_MD_CTX *c = h->context;
    bool done = EVP_DigestInit_ex(c, h->method, NULL) && EVP_DigestUpdate(c, &head, sizeof head) &&
                (!r->n_salt || EVP_DigestUpdate(c, r->salt, r->n_salt)) &&
                EVP_DigestFinal_ex(c, (unsigned char *)out->words, NULL);
    Q_ASSERT(done);
}

void prefix_hash_block(const struct prefix_hasher *h, struct kv_hash *out,
                       const struct kv_hash *before, const struct prefix_block *b)
{
    struct {
        struct kv_hash before;
        uint32_t tokens[KV_BLOCK_TOKENS];
    } block = {.before = *before};
    memcpy(block.tokens, b->tokens, sizeof block.tokens);
    EVP_MD_CTX *c = h->context;
    bool done = EVP_DigestInit_ex(c, h->method, NULL) && EVP_DigestUpdate(c, &block, sizeof block);
    for (uint32_t i = 0; i < b->n_item && done; i++) {
        struct { /* no padding: all of it is hashed */
            uint64_t hash[4];
            int64_t start; /* of the item's rows, from the block's first one on */
        } item = {.start = (int64_t)b->items[i].position - b->start};
        memcpy(item.hash, b->items[i].hash, sizeof item.hash);
        done = EVP_DigestUpdate(c, &item, sizeof item);
    }
    done = done && EVP_DigestFinal_ex(c, (unsigned char *)out->words, NULL);
    Q_ASSERT(done);
}

void prefix_hash_salted(const struct prefix_hasher *h, struct kv_hash *out,
                        const struct kv_hash *before, const struct kv_hash *salted)
{
    const struct kv_hash both[] = {*before, *salted};
    bool done = digest(h, out, both, sizeof both);
    Q_ASSERT(done);
}
