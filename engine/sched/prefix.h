/* SPDX-License-Identifier: Apache-2.0 */
/* prefix - keys of chains of full blocks, for the prefix cache.
 *
 *     root    = SHA-256("quire kv 1", LoRA id, length class, salt)
 *     block i = SHA-256(key of the block before it, its 16 token ids, of each item with rows in it
 *               the hash of its contents and where it begins)
 *
 * If the first blocks are public (submit.n_shared), their root has no salt, and the key before the
 * first other block is SHA-256(that key, root with the salt) instead.
 *
 * So a key covers everything that the KV of a block depends on, and the tenant's salt: equal keys
 * mean equal bits and the same salt. The hash is cryptographic, because a deliberate collision
 * would give access to the KV of another prompt.
 * Threads: one user of a hasher. Allocates nothing after prefix_hasher_init. */
#ifndef QUIRE_ENGINE_SCHED_PREFIX_H
#define QUIRE_ENGINE_SCHED_PREFIX_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "engine/sched/kv.h"
#include "proto/items.h"

struct prefix_hasher {
    void *context, *method; /* of OpenSSL */
};
/* clang-format off */
#define PREFIX_HASHER_INIT {NULL, NULL}
/* clang-format on */

struct prefix_root {
    uint32_t lora; /* 0 = none */
    uint32_t
        length_class; /* sequences of different classes have different K vectors (dynamic rope) */
    const void *salt; /* [n_salt] */
    size_t n_salt;
};

/* Errors: Q_NO_MEMORY, Q_INTERNAL (OpenSSL has no SHA-256 here). */
FALLIBLE prefix_hasher_init(struct prefix_hasher *h, struct q_err *e);
void prefix_hasher_release(struct prefix_hasher *h);
void prefix_hash_root(const struct prefix_hasher *h, struct kv_hash *out,
                      const struct prefix_root *r);
struct prefix_block {
    const uint32_t *tokens;        /* [KV_BLOCK_TOKENS] */
    uint32_t start;                /* position of the first */
    const struct step_item *items; /* [n_item] with rows in this block */
    uint32_t n_item;
};
/* out may be before. */
void prefix_hash_block(const struct prefix_hasher *h, struct kv_hash *out,
                       const struct kv_hash *before, const struct prefix_block *b);
/* The key before the first block that is not public; salted: the root with the salt. */
void prefix_hash_salted(const struct prefix_hasher *h, struct kv_hash *out,
                        const struct kv_hash *before, const struct kv_hash *salted);

#endif
