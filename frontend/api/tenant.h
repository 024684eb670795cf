/* SPDX-License-Identifier: Apache-2.0 */
/* tenant - whose request it is, and with whom it shares the prefix cache.
 *
 * How long a first token takes tells whether a prompt was in the cache; so requests of different
 * API keys share no cached blocks, and none can find out what another sends. Each key has a salt:
 *
 *     salt = HMAC-SHA-256(digest of the model folder, "quire cache", SHA-256 of the API key,
 *                         SHA-256 of cache_salt)
 *
 * The folder's digest is the same in all frontends before one engine (they could not connect
 * otherwise), so they agree, and differs between models. What --prefix-cache-shared names as public
 * is shared all the same: prompts that begin with it say so (shared_prompts_match).
 * Threads: values; the list of shared prompts is read-only once made. */
#ifndef QUIRE_FRONTEND_API_TENANT_H
#define QUIRE_FRONTEND_API_TENANT_H
#include "common/tokenizer/tokenizer.h"
#include "frontend/link/link.h"

#define SHARED_PROMPTS_MAX 256
#define CACHE_SALT_MAX     1024 /* characters of the request's cache_salt, as in vLLM */

struct tenant_source {           /* all borrowed */
    const unsigned char *digest; /* [32] of the model folder */
    const unsigned char *key;    /* [32] SHA-256 of the API key; NULL: the server has none */
    const char *user, *salt;     /* the request's `user` and `cache_salt`; NULL = absent */
    bool apart;                  /* each key has its own part of the cache */
};
struct tenant {
    uint64_t id; /* by key, else by user; 0 = neither */
    unsigned char salt[32];
    uint32_t n_salt; /* 32, or 0: the part of the cache that all share */
};
FALLIBLE tenant_of(struct tenant *t, const struct tenant_source *s, struct q_err *e);

struct shared_prompts {
    struct token_list *items; /* [n] beginnings that are public */
    size_t n;
};
void shared_prompts_release(struct shared_prompts *s);
/* Add a beginning; the list is moved in. Errors: Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE shared_prompts_add(struct shared_prompts *s, struct token_list *ids, struct q_err *e);
/* How many tokens of the prompt are a public beginning: its longest common prefix with one. */
uint32_t shared_prompts_match(const struct shared_prompts *s, const struct token_list *ids);

#endif
