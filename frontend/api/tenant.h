/* SPDX-License-Identifier: Apache-2.0 */
/* tenant - the tenant of a request, and its part of the prefix cache.
 *
 * The time to first token reveals whether a prompt was cached; so requests of different API keys
 * share no cached blocks, and no key can probe the prompts of another. Each key has a salt:
 *
 *     salt = HMAC-SHA-256(digest of the model folder, "quire cache", SHA-256 of the API key,
 *                         SHA-256 of cache_salt)
 *
 * The folder's digest is equal in all frontends of one engine (others cannot connect) and differs
 * between models. Prefixes of --prefix-cache-shared are public: prompts that start with one are
 * marked (shared_prompts_match).
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
    bool apart;                  /* each key has its own salt */
};
struct tenant {
    uint64_t id; /* by key, else by user; 0 = neither */
    unsigned char salt[32];
    uint32_t n_salt; /* 32, or 0: the shared part of the cache */
};
FALLIBLE tenant_of(struct tenant *t, const struct tenant_source *s, struct q_err *e);

struct shared_prompts {
    struct token_list *items; /* [n] public prefixes */
    size_t n;
};
void shared_prompts_release(struct shared_prompts *s);
/* Add a public prefix; the list is moved in. Errors: Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE shared_prompts_add(struct shared_prompts *s, struct token_list *ids, struct q_err *e);
/* Number of leading public tokens of the prompt: its longest common prefix with a public prefix. */
uint32_t shared_prompts_match(const struct shared_prompts *s, const struct token_list *ids);

#endif
