/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/automaton/gx.h"
#include <stdarg.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include "engine/grammar/automaton/fsm.h"

const struct gx gx_never = {.kind = GX_NEVER};
const struct gx gx_empty = {.kind = GX_EMPTY};
static const struct range any_ranges[] = {{0, 0xD7FF}, {0xE000, GX_CHAR_MAX}};
const struct cset cset_any = {any_ranges, 2};

void build_init(struct build *b)
{
    *b = (struct build){.arena = ARENA_INIT(GX_MEMORY_MAX), .work_max = GX_WORK_MAX};
}

void build_release(struct build *b)
{
    arena_release(&b->arena);
    q_free(b->rules);
    b->rules = NULL;
    b->n_rule = b->rules_cap = 0;
}

const struct gx *gx_fail(struct build *b, enum q_code code, const char *fmt, ...)
{
    if (!build_ok(b))
        return &gx_never;
    va_list ap;
    va_start(ap, fmt);
    char text[Q_MESSAGE_MAX];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    q_fail_text(&b->err, code, "%s", text);
    return &gx_never;
}

bool build_work(struct build *b, uint64_t n)
{
    b->work += n;
    if (b->work > b->work_max)
        gx_fail(b, Q_TOO_LARGE,
                "the grammar is too large: compiling it takes more than %u000 steps",
                (unsigned)(b->work_max / 1000));
    return build_ok(b);
}

void *build_alloc(struct build *b, size_t n, size_t size)
{
    void *p = build_ok(b) ? arena_alloc_array(&b->arena, n ? n : 1, size) : NULL;
    if (!p)
        gx_fail(b, Q_TOO_LARGE, "the grammar is too large: it needs more than %zu MB",
                GX_MEMORY_MAX >> 20);
    return p;
}

static uint32_t sum_weight(uint32_t a, uint64_t b)
{
    return a + b < UINT32_MAX ? a + (uint32_t)b : UINT32_MAX;
}

static struct gx *make(struct build *b, enum gx_kind kind)
{
    struct gx *x = build_alloc(b, 1, sizeof *x);
    if (x)
        x->kind = kind;
    return x;
}

const struct gx *gx_bytes(struct build *b, const char *s, size_t n)
{
    struct gx *x = n ? make(b, GX_BYTES) : NULL;
    char *copy = x ? build_alloc(b, n, 1) : NULL;
    if (!n)
        return &gx_empty;
    if (!copy)
        return &gx_never;
    memcpy(copy, s, n);
    x->bytes = copy;
    x->n = x->weight = (uint32_t)n;
    return x;
}

const struct gx *gx_text(struct build *b, const char *s)
{
    return gx_bytes(b, s, strlen(s));
}

const struct gx *gx_chars(struct build *b, const struct cset *set, enum gx_form form)
{
    struct gx *x = set->n ? make(b, GX_CHARS) : NULL;
    if (!x)
        return &gx_never;
    x->set = set;
    x->form = form;
    x->weight = set->ranges[set->n - 1].hi < 0x80 && form == GX_UTF8 ? 1 : 8 + set->n;
    return x;
}

const struct gx *gx_fsm(struct build *b, const struct fsm *f, enum gx_form form)
{
    struct gx *x = f ? make(b, GX_FSM) : NULL;
    if (!x)
        return &gx_never;
    x->fsm = f;
    x->form = form;
    x->weight = sum_weight(8, (uint64_t)f->n_state * 8);
    return x;
}

const struct gx *gx_within(struct build *b, const struct fsm *f, enum gx_form form, uint32_t max)
{
    uint32_t shortest, longest;
    if (!f || !fsm_lengths(b, f, &shortest, &longest) || fsm_is_empty(f) || shortest > max)
        return &gx_never;
    if (longest <= max)
        return gx_fsm(b, f, form);
    struct gx *x = make(b, GX_WITHIN), *kid = make(b, GX_FSM);
    const struct gx **kids = x ? build_alloc(b, 1, sizeof *kids) : NULL;
    if (!kid || !kids)
        return &gx_never;
    kid->fsm = f;
    kid->form = form;
    kid->ticks = true;
    kid->weight = sum_weight(8, (uint64_t)f->n_state * 8);
    kids[0] = kid;
    x->kids = kids;
    x->n = 1;
    x->max = max;
    x->weight = 2;
    return x;
}

/* Kids of this kind are taken apart, the neutral ones left out. */
static const struct gx *join(struct build *b, enum gx_kind kind, const struct gx *const *kids,
                             size_t n)
{
    enum gx_kind neutral = kind == GX_SEQ ? GX_EMPTY : GX_NEVER;
    size_t n_kid = 0;
    for (size_t i = 0; i < n; i++) {
        if (kind == GX_SEQ && kids[i]->kind == GX_NEVER)
            return &gx_never;
        n_kid += kids[i]->kind == kind ? kids[i]->n : kids[i]->kind != neutral;
    }
    if (n_kid == 0)
        return kind == GX_SEQ ? &gx_empty : &gx_never;
    struct gx *x = make(b, kind);
    const struct gx **to = x ? build_alloc(b, n_kid, sizeof *to) : NULL;
    if (!to)
        return &gx_never;
    x->kids = to;
    for (size_t i = 0; i < n; i++)
        if (kids[i]->kind == kind)
            for (uint32_t k = 0; k < kids[i]->n; k++)
                to[x->n++] = kids[i]->kids[k];
        else if (kids[i]->kind != neutral)
            to[x->n++] = kids[i];
    for (uint32_t i = 0; i < x->n; i++)
        x->weight = sum_weight(x->weight, to[i]->weight + (kind == GX_ALT));
    return n_kid == 1 ? to[0] : x;
}

const struct gx *gx_seq(struct build *b, const struct gx *const *kids, size_t n)
{
    return join(b, GX_SEQ, kids, n);
}

const struct gx *gx_alt(struct build *b, const struct gx *const *kids, size_t n)
{
    return join(b, GX_ALT, kids, n);
}

const struct gx *gx_seq2(struct build *b, const struct gx *x, const struct gx *y)
{
    return join(b, GX_SEQ, (const struct gx *const[]){x, y}, 2);
}

const struct gx *gx_seq3(struct build *b, const struct gx *x, const struct gx *y,
                         const struct gx *z)
{
    return join(b, GX_SEQ, (const struct gx *const[]){x, y, z}, 3);
}

const struct gx *gx_alt2(struct build *b, const struct gx *x, const struct gx *y)
{
    return join(b, GX_ALT, (const struct gx *const[]){x, y}, 2);
}

const struct gx *gx_repeat(struct build *b, const struct gx *x, uint32_t min, uint32_t max)
{
    if (max == 0 || x->kind == GX_EMPTY || (x->kind == GX_NEVER && min == 0))
        return &gx_empty;
    if (x->kind == GX_NEVER || min > max)
        return &gx_never;
    if (min == 1 && max == 1)
        return x;
    struct gx *r = make(b, GX_REPEAT);
    const struct gx **kid = r ? build_alloc(b, 1, sizeof *kid) : NULL;
    if (!kid)
        return &gx_never;
    kid[0] = x;
    r->kids = kid;
    r->n = 1;
    r->min = min;
    r->max = max;
    r->weight = sum_weight(2, (uint64_t)x->weight * (max == GX_INF ? min + 1ull : max));
    return r;
}

const struct gx *gx_optional(struct build *b, const struct gx *x)
{
    return gx_repeat(b, x, 0, 1);
}

uint32_t gx_rule_new(struct build *b, const char *name)
{
    struct q_err e = Q_ERR_INIT;
    if (build_ok(b) &&
        q_grow(&b->rules, &b->rules_cap, b->n_rule + 1, sizeof *b->rules, GX_RULES_MAX, &e))
        gx_fail(b, Q_TOO_LARGE, "the grammar is too large: more than %u rules", GX_RULES_MAX);
    char *copy = build_alloc(b, strlen(name) + 1, 1);
    if (!copy)
        return 0;
    memcpy(copy, name, strlen(name) + 1);
    b->rules[b->n_rule] = (struct gx_rule){copy, NULL};
    return (uint32_t)b->n_rule++;
}

const struct gx *gx_ref(struct build *b, uint32_t rule)
{
    struct gx *x = make(b, GX_RULE);
    if (!x)
        return &gx_never;
    x->rule = rule;
    x->weight = 2;
    return x;
}

const struct gx *gx_named(struct build *b, const char *name, const struct gx *body)
{
    uint32_t rule = gx_rule_new(b, name);
    if (!build_ok(b))
        return &gx_never;
    b->rules[rule].body = body;
    return gx_ref(b, rule);
}

void gx_add(struct build *b, struct gx_list *l, const struct gx *x)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        const struct gx **items = build_alloc(b, cap, sizeof *items);
        if (!items)
            return;
        if (l->n)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = x;
}

static int by_lo(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static const struct cset *wrap(struct build *b, const struct range *ranges, uint32_t n)
{
    struct cset *s = build_alloc(b, 1, sizeof *s);
    static const struct cset none;
    if (!s)
        return &none;
    *s = (struct cset){ranges, n};
    return s;
}

/* r[0..n) sorted in place; touching ones become one. */
static const struct cset *tidy(struct build *b, struct range *r, size_t n)
{
    uint32_t n_out = 0;
    if (n)
        qsort(r, n, sizeof *r, by_lo);
    for (size_t i = 0; i < n; i++)
        if (n_out && r[i].lo <= r[n_out - 1].hi + 1)
            r[n_out - 1].hi = r[i].hi > r[n_out - 1].hi ? r[i].hi : r[n_out - 1].hi;
        else
            r[n_out++] = r[i];
    return wrap(b, r, n_out);
}

const struct cset *cset_of(struct build *b, const struct range *ranges, size_t n)
{
    struct range *r = build_alloc(b, n, sizeof *r);
    if (!r)
        return wrap(b, NULL, 0);
    if (n)
        memcpy(r, ranges, n * sizeof *r);
    return cset_and(b, tidy(b, r, n), &cset_any);
}

const struct cset *cset_or(struct build *b, const struct cset *x, const struct cset *y)
{
    struct range *r = build_alloc(b, x->n + y->n, sizeof *r);
    if (!r)
        return wrap(b, NULL, 0);
    for (uint32_t i = 0; i < x->n; i++)
        r[i] = x->ranges[i];
    for (uint32_t i = 0; i < y->n; i++)
        r[x->n + i] = y->ranges[i];
    return tidy(b, r, x->n + y->n);
}

const struct cset *cset_and(struct build *b, const struct cset *x, const struct cset *y)
{
    struct range *r = build_alloc(b, x->n + y->n, sizeof *r);
    uint32_t n = 0;
    if (!r)
        return wrap(b, NULL, 0);
    for (uint32_t i = 0, k = 0; i < x->n && k < y->n;) {
        const struct range *p = &x->ranges[i], *q = &y->ranges[k];
        uint32_t lo = p->lo > q->lo ? p->lo : q->lo, hi = p->hi < q->hi ? p->hi : q->hi;
        if (lo <= hi)
            r[n++] = (struct range){lo, hi};
        if (p->hi < q->hi)
            i++;
        else
            k++;
    }
    return wrap(b, r, n);
}

const struct cset *cset_not(struct build *b, const struct cset *s)
{
    struct range *r = build_alloc(b, s->n + 1, sizeof *r);
    uint32_t n = 0, from = 0;
    if (!r)
        return wrap(b, NULL, 0);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].lo > from)
            r[n++] = (struct range){from, s->ranges[i].lo - 1};
        from = s->ranges[i].hi + 1;
    }
    if (from <= GX_CHAR_MAX)
        r[n++] = (struct range){from, GX_CHAR_MAX};
    return cset_and(b, wrap(b, r, n), &cset_any);
}

bool cset_has(const struct cset *s, uint32_t c)
{
    for (uint32_t i = 0; i < s->n && s->ranges[i].lo <= c; i++)
        if (c <= s->ranges[i].hi)
            return true;
    return false;
}
