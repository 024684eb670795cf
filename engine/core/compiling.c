/* SPDX-License-Identifier: Apache-2.0 */
/* An item is the encoded submit; it goes through one queue to the thread, which adds the program,
 * and back through another. The loop keeps a list of all, so that one can be aborted on the way. */
#include "engine/core/compiling.h"
#include <pthread.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/queue.h"
#include "engine/grammar/grammar.h"

struct item {
    uint32_t origin;
    uint64_t req_id;
    bool aborted;       /* the loop's */
    struct buf frame;   /* the submit, encoded */
    struct arena arena; /* of its decoding, by the loop */
    uint32_t *words;    /* the thread's work */
    uint32_t n_word;
    struct q_err error;
};
struct known { /* a program by its source */
    uint32_t kind, n_word;
    size_t n_source, n_after, n_tags;
    char *
        source; /* [n_source], then what it begins after [n_after], and reasoning's tags [n_tags] */
    uint32_t *words;
    uint64_t used;
};
struct compiling {
    struct queue jobs, done; /* of struct item * */
    pthread_t thread;
    bool running;
    struct item *items[COMPILING_MAX];
    uint32_t n_item;
    struct item *taken; /* given out last */
    struct known known[COMPILED_KEPT];
    uint64_t n_use;
};

static void item_free(struct item *x)
{
    if (!x)
        return;
    buf_release(&x->frame);
    arena_release(&x->arena);
    q_free(x->words);
    q_free(x);
}

static void forget(struct known *k)
{
    q_free(k->source);
    q_free(k->words);
    *k = (struct known){.source = NULL};
}

static FALLIBLE compile(struct item *x, const struct msg_submit *m)
{
    const struct grammar_source source = {.kind = m->grammar_kind,
                                          .text = (const char *)m->grammar.data,
                                          .n = m->grammar.n,
                                          .after = (const char *)m->grammar_after.data,
                                          .n_after = m->grammar_after.n,
                                          .tags = (const char *)m->reasoning_tags.data,
                                          .n_tags = m->reasoning_tags.n};
    return grammar_compile(&x->words, &x->n_word, &source, &x->error);
}

static void *run(void *arg)
{
    struct compiling *c = arg;
    struct item *x;
    while (queue_pop(&c->jobs, &x, -1)) {
        struct msg_submit m;
        struct q_err ignored = Q_ERR_INIT;
        struct arena arena = ARENA_INIT(PROTO_FRAME_MAX);
        if (!msg_submit_decode(&m, x->frame.data, x->frame.len, &arena, &x->error) &&
            compile(x, &m))
            x->words = NULL;
        arena_release(&arena);
        if (queue_push(&c->done, &x, &ignored)) {
            /* never: it has room for all that can wait, and nobody closes it */
        }
    }
    return NULL;
}

FALLIBLE compiling_new(struct compiling **out, struct q_err *e)
{
    struct compiling *c = q_calloc(1, sizeof *c);
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "engine: no memory for grammars");
    enum q_code rc;
    if ((rc = queue_init(&c->jobs, sizeof(struct item *), COMPILING_MAX, false, e)) ||
        (rc = queue_init(&c->done, sizeof(struct item *), COMPILING_MAX, true, e)) ||
        (rc = queue_reserve(&c->done, e))) {
        compiling_free(c);
        return rc;
    }
    int failed = pthread_create(&c->thread, NULL, run, c);
    if (failed) {
        compiling_free(c);
        return q_fail(e, Q_IO, "engine: cannot start a thread for grammars: %s", strerror(failed));
    }
    pthread_setname_np(c->thread, "quire-grammar");
    c->running = true;
    *out = c;
    return Q_OK;
}

void compiling_free(struct compiling *c)
{
    if (!c)
        return;
    if (c->running) {
        queue_close(&c->jobs);
        pthread_join(c->thread, NULL);
    }
    for (uint32_t i = 0; i < c->n_item; i++)
        item_free(c->items[i]);
    item_free(c->taken);
    for (size_t i = 0; i < COMPILED_KEPT; i++)
        forget(&c->known[i]);
    queue_release(&c->jobs);
    queue_release(&c->done);
    q_free(c);
}

int compiling_fd(const struct compiling *c)
{
    return queue_fd(&c->done);
}

static bool same(const char *text, struct proto_bytes of)
{
    return !of.n || !memcmp(text, of.data, of.n);
}

const uint32_t *compiling_known(struct compiling *c, const struct msg_submit *m, uint32_t *n_word)
{
    for (size_t i = 0; i < COMPILED_KEPT; i++) {
        struct known *k = &c->known[i];
        if (!k->words || k->kind != m->grammar_kind || k->n_source != m->grammar.n ||
            k->n_after != m->grammar_after.n || k->n_tags != m->reasoning_tags.n ||
            !same(k->source, m->grammar) || !same(k->source + k->n_source, m->grammar_after) ||
            !same(k->source + k->n_source + k->n_after, m->reasoning_tags))
            continue;
        k->used = ++c->n_use;
        *n_word = k->n_word;
        return k->words;
    }
    return NULL;
}

/* A free place for n bytes more: those that were not used for the longest time are forgotten. */
static struct known *make_room(struct compiling *c, size_t n)
{
    for (;;) {
        struct known *oldest = &c->known[0];
        bool is_full = true;
        size_t bytes = n;
        for (size_t i = 0; i < COMPILED_KEPT; i++) {
            struct known *k = &c->known[i];
            bytes += k->n_word * sizeof *k->words + k->n_source;
            is_full = is_full && k->words;
            if (k->words && (!oldest->words || k->used < oldest->used))
                oldest = k;
        }
        if (is_full || (bytes > COMPILED_BYTES && oldest->words)) {
            forget(oldest);
            continue;
        }
        for (size_t i = 0; i < COMPILED_KEPT; i++)
            if (!c->known[i].words)
                return &c->known[i];
    }
}

static void remember(struct compiling *c, const struct item *x, const struct msg_submit *m)
{
    struct known *k = make_room(c, x->n_word * sizeof *x->words + m->grammar.n);
    char *source = q_alloc(m->grammar.n + m->grammar_after.n + m->reasoning_tags.n + 1);
    uint32_t *words = q_alloc(x->n_word * sizeof *words);
    if (!source || !words) {
        q_free(source);
        q_free(words);
        return;
    }
    memcpy(source, m->grammar.data, m->grammar.n);
    if (m->grammar_after.n)
        memcpy(source + m->grammar.n, m->grammar_after.data, m->grammar_after.n);
    if (m->reasoning_tags.n)
        memcpy(source + m->grammar.n + m->grammar_after.n, m->reasoning_tags.data,
               m->reasoning_tags.n);
    memcpy(words, x->words, x->n_word * sizeof *words);
    *k = (struct known){.kind = m->grammar_kind,
                        .n_word = x->n_word,
                        .n_source = m->grammar.n,
                        .n_after = m->grammar_after.n,
                        .n_tags = m->reasoning_tags.n,
                        .source = source,
                        .words = words,
                        .used = ++c->n_use};
}

FALLIBLE compiling_add(struct compiling *c, uint32_t origin, const struct msg_submit *m,
                       struct q_err *e)
{
    if (c->n_item == COMPILING_MAX)
        return q_fail(e, Q_NO_SPACE, "%u requests wait for their grammar to be compiled",
                      COMPILING_MAX);
    struct item *x = q_calloc(1, sizeof *x);
    enum q_code rc = x ? msg_submit_encode(m, &x->frame, e)
                       : q_fail(e, Q_NO_MEMORY, "engine: no memory for a request");
    if (!rc) {
        x->arena = (struct arena)ARENA_INIT(PROTO_FRAME_MAX);
        x->origin = origin;
        x->req_id = m->req_id;
        rc = queue_push(&c->jobs, &x, e);
    }
    if (rc)
        item_free(x);
    else
        c->items[c->n_item++] = x;
    return rc;
}

static void unlist(struct compiling *c, const struct item *x)
{
    for (uint32_t i = 0; i < c->n_item; i++)
        if (c->items[i] == x) {
            c->items[i] = c->items[--c->n_item];
            return;
        }
}

bool compiling_take(struct compiling *c, struct compiled *out)
{
    struct item *x;
    while (queue_pop(&c->done, &x, 0)) {
        unlist(c, x);
        item_free(c->taken);
        c->taken = x;
        if (x->aborted)
            continue;
        *out = (struct compiled){.origin = x->origin, .req_id = x->req_id, .error = x->error};
        /* it was encoded here, so only memory can be missing: the request ends with that */
        if (x->error.code ||
            msg_submit_decode(&out->submit, x->frame.data, x->frame.len, &x->arena, &out->error))
            return true;
        remember(c, x, &out->submit);
        out->submit.grammar =
            (struct proto_bytes){(const unsigned char *)x->words, x->n_word * sizeof *x->words};
        return true;
    }
    return false;
}

bool compiling_abort(struct compiling *c, uint32_t origin, uint64_t req_id)
{
    for (uint32_t i = 0; i < c->n_item; i++) {
        struct item *x = c->items[i];
        if (x->origin == origin && x->req_id == req_id && !x->aborted) {
            x->aborted = true;
            return true;
        }
    }
    return false;
}

uint32_t compiling_abort_origin(struct compiling *c, uint32_t origin)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_item; i++)
        if (c->items[i]->origin == origin && !c->items[i]->aborted) {
            c->items[i]->aborted = true;
            n++;
        }
    return n;
}

bool compiling_abort_next(struct compiling *c, uint32_t *origin, uint64_t *req_id)
{
    for (uint32_t i = 0; i < c->n_item; i++) {
        struct item *x = c->items[i];
        if (x->aborted)
            continue;
        x->aborted = true;
        *origin = x->origin;
        *req_id = x->req_id;
        return true;
    }
    return false;
}

uint32_t compiling_count(const struct compiling *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_item; i++)
        n += !c->items[i]->aborted;
    return n;
}
