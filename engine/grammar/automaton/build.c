/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/automaton/build.h"
#include <stdio.h>

void build_init(struct build *b)
{
    *b = (struct build){.arena = ARENA_INIT(EXPR_MEMORY_MAX), .work_max = EXPR_WORK_MAX};
}

void build_release(struct build *b)
{
    arena_release(&b->arena);
    q_free(b->rules);
    b->rules = NULL;
    b->n_rule = b->rules_cap = 0;
}

void build_fail_va(struct build *b, enum q_code code, const char *fmt, va_list ap)
{
    char text[Q_MESSAGE_MAX];
    if (!build_ok(b))
        return;
    vsnprintf(text, sizeof text, fmt, ap);
    q_fail_text(&b->err, code, "%s", text);
}

void build_fail(struct build *b, enum q_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    build_fail_va(b, code, fmt, ap);
    va_end(ap);
}

enum q_code build_grown(struct build *b, enum q_code rc)
{
    if (rc == Q_NO_MEMORY)
        build_fail(b, rc, "out of memory for a grammar");
    return rc;
}

bool build_work(struct build *b, uint64_t n)
{
    b->work += n;
    if (b->stop && atomic_load_explicit(b->stop, memory_order_relaxed))
        build_fail(b, Q_CANCELLED, "the compilation was cancelled: no request needs the grammar");
    if (b->try_max && b->work > b->try_max)
        build_fail(b, Q_TIMEOUT, "compiling the grammar takes more than %u000 steps",
                   (unsigned)(b->try_max / 1000));
    if (b->work > b->work_max)
        build_fail(b, Q_TOO_LARGE,
                   "the grammar is too large: compiling it takes more than %u000 steps",
                   (unsigned)(b->work_max / 1000));
    return build_ok(b);
}

/* Is the arena below its limit with n elements more? */
static bool has_room(const struct arena *a, size_t n, size_t size)
{
    size_t bytes;
    return !__builtin_mul_overflow(n, size, &bytes) && a->used < a->bytes_max &&
           bytes < a->bytes_max - a->used;
}

void *build_alloc(struct build *b, size_t n, size_t size)
{
    void *p = build_ok(b) ? arena_alloc_array(&b->arena, n ? n : 1, size) : NULL;
    if (!p && has_room(&b->arena, n, size))
        build_fail(b, Q_NO_MEMORY, "out of memory for a grammar");
    else if (!p)
        build_fail(b, Q_TOO_LARGE, "the grammar is too large: it needs more than %zu MB",
                   EXPR_MEMORY_MAX >> 20);
    return p;
}
