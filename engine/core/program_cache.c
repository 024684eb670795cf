/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/program_cache.h"
#include <string.h>
#include "common/mem.h"

static void add_bytes(char **at, struct proto_bytes from)
{
    if (from.n)
        memcpy(*at, from.data, from.n);
    *at += from.n;
}

bool source_own(struct owned_source *out, const struct msg_submit *m)
{
    *out = (struct owned_source){
        .kind = m->grammar_kind,
        .n_text = m->grammar.n,
        .n_after = m->grammar_after.n,
        .n_tags = m->reasoning_tags.n,
    };
    char *at = out->bytes = q_alloc(source_bytes(out) + 1);
    if (!at)
        return false;
    add_bytes(&at, m->grammar);
    add_bytes(&at, m->grammar_after);
    add_bytes(&at, m->reasoning_tags);
    return true;
}

void source_release(struct owned_source *s)
{
    q_free(s->bytes);
    *s = (struct owned_source){.bytes = NULL};
}

size_t source_bytes(const struct owned_source *s)
{
    return s->n_text + s->n_after + s->n_tags;
}

static bool same_text(const char *text, struct proto_bytes of)
{
    return !of.n || !memcmp(text, of.data, of.n);
}

bool source_is(const struct owned_source *s, const struct msg_submit *m)
{
    return s->kind == m->grammar_kind && s->n_text == m->grammar.n &&
           s->n_after == m->grammar_after.n && s->n_tags == m->reasoning_tags.n &&
           same_text(s->bytes, m->grammar) && same_text(s->bytes + s->n_text, m->grammar_after) &&
           same_text(s->bytes + s->n_text + s->n_after, m->reasoning_tags);
}

struct grammar_source source_view(const struct owned_source *s)
{
    return (struct grammar_source){
        .kind = s->kind,
        .text = s->bytes,
        .n = s->n_text,
        .after = s->bytes + s->n_text,
        .n_after = s->n_after,
        .tags = s->bytes + s->n_text + s->n_after,
        .n_tags = s->n_tags,
    };
}

static void forget(struct cached_program *p)
{
    source_release(&p->source);
    q_free(p->words);
    *p = (struct cached_program){.words = NULL};
}

void program_cache_release(struct program_cache *c)
{
    for (size_t i = 0; i < PROGRAM_CACHE_MAX; i++)
        forget(&c->items[i]);
}

const uint32_t *program_cache_get(struct program_cache *c, const struct msg_submit *m,
                                  uint32_t *n_word)
{
    for (size_t i = 0; i < PROGRAM_CACHE_MAX; i++) {
        struct cached_program *p = &c->items[i];
        if (!p->words || !source_is(&p->source, m))
            continue;
        p->used = ++c->n_use;
        *n_word = p->n_word;
        return p->words;
    }
    return NULL;
}

/* A free entry for n more bytes; evicts the least recently used programs. */
static struct cached_program *make_room(struct program_cache *c, size_t n)
{
    for (;;) {
        struct cached_program *oldest = NULL, *free = NULL;
        size_t bytes = n;
        for (size_t i = 0; i < PROGRAM_CACHE_MAX; i++) {
            struct cached_program *p = &c->items[i];
            bytes += p->n_word * sizeof *p->words + source_bytes(&p->source);
            if (!p->words)
                free = p;
            else if (!oldest || p->used < oldest->used)
                oldest = p;
        }
        if (free && (bytes <= PROGRAM_CACHE_BYTES || !oldest))
            return free;
        forget(oldest);
    }
}

void program_cache_put(struct program_cache *c, struct owned_source *source, const uint32_t *words,
                       uint32_t n_word)
{
    uint32_t *copy = q_alloc(n_word * sizeof *copy);
    if (!copy)
        return;
    memcpy(copy, words, n_word * sizeof *copy);
    struct cached_program *p = make_room(c, n_word * sizeof *copy + source_bytes(source));
    *p = (struct cached_program){.source = *source, .words = copy, .n_word = n_word};
    p->used = ++c->n_use;
    *source = (struct owned_source){.bytes = NULL};
}
