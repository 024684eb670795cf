/* SPDX-License-Identifier: Apache-2.0 */
/* program_cache - compiled grammars by source; the least recently used one is evicted first.
 * Threads: one owner. */
#ifndef QUIRE_ENGINE_CORE_PROGRAM_CACHE_H
#define QUIRE_ENGINE_CORE_PROGRAM_CACHE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/grammar/grammar.h"
#include "proto/proto.h"

#define PROGRAM_CACHE_MAX   128u /* programs, of PROGRAM_CACHE_BYTES together */
#define PROGRAM_CACHE_BYTES ((size_t)64 << 20)

/* The inputs of a program's compilation, in one allocation. */
struct owned_source {
    uint32_t kind;
    size_t n_text, n_after, n_tags;
    char *bytes; /* text, after, tags */
};
bool source_own(struct owned_source *out, const struct msg_submit *m); /* false: no memory */
void source_release(struct owned_source *s);
bool source_is(const struct owned_source *s, const struct msg_submit *m);
size_t source_bytes(const struct owned_source *s);
struct grammar_source source_view(const struct owned_source *s); /* borrows */

struct cached_program {
    struct owned_source source;
    uint32_t *words, n_word; /* NULL: this entry is free */
    uint64_t used;
};
struct program_cache { /* zeroed: empty */
    struct cached_program items[PROGRAM_CACHE_MAX];
    uint64_t n_use;
};
void program_cache_release(struct program_cache *c);
/* The program of m's grammar, borrowed until the next program_cache_put; NULL: not cached. */
const uint32_t *program_cache_get(struct program_cache *c, const struct msg_submit *m,
                                  uint32_t *n_word);
/* Move the source into the cache and copy the words; without memory nothing is cached. */
void program_cache_put(struct program_cache *c, struct owned_source *source, const uint32_t *words,
                       uint32_t n_word);

#endif
