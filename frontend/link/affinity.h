/* SPDX-License-Identifier: Apache-2.0 */
/* affinity - which engines have computed which prefixes, as far as this frontend knows.
 *
 * A prompt is cut into chunks of AFFINITY_CHUNK tokens. The key of a chunk is a hash of it and of
 * the key before it, of all that names blocks of an engine's prefix cache besides tokens (salt,
 * adapter), and of the items that are in it. A table holds for each key the engines that a prompt
 * with this chunk was sent to; of its AFFINITY_ENTRIES entries the oldest are replaced. An engine
 * may have evicted what the table says, and it may have prefixes that other frontends sent: a wrong
 * answer costs time, never a result.
 * Threads: the loop's. */
#ifndef QUIRE_FRONTEND_LINK_AFFINITY_H
#define QUIRE_FRONTEND_LINK_AFFINITY_H
#include "common/err.h"
#include "frontend/link/generation.h"

#define AFFINITY_CHUNK      64u   /* tokens */
#define AFFINITY_CHUNKS_MAX 4096u /* of a prompt; what is behind them is not looked up */
#define AFFINITY_ENTRIES    65536u
#define AFFINITY_ENGINES    32u

struct affinity;
struct affinity_keys {
    uint64_t keys[AFFINITY_CHUNKS_MAX];
    uint32_t n; /* whole chunks */
};

/* Errors: Q_NO_MEMORY. */
FALLIBLE affinity_new(struct affinity **out, struct q_err *e);
void affinity_free(struct affinity *a);
/* The keys of a generation's prompt; none if it does not use the prefix cache. */
void affinity_keys(struct affinity_keys *out, const struct generation *f);
/* n_token[AFFINITY_ENGINES]: leading tokens of the prompt that each engine has. */
void affinity_find(const struct affinity *a, const struct affinity_keys *k, uint32_t *n_token);
/* The engine gets this prompt. */
void affinity_add(struct affinity *a, const struct affinity_keys *k, uint32_t engine);
/* Its cache is empty. */
void affinity_forget(struct affinity *a, uint32_t engine);

#endif
