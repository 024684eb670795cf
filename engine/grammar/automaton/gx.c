/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/automaton/gx.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "engine/grammar/automaton/fsm_measure.h"

const struct gx gx_never = {.kind = GX_NEVER};
const struct gx gx_empty = {.kind = GX_EMPTY};

const struct gx *gx_fail(struct build *b, enum q_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    build_fail_va(b, code, fmt, ap);
    va_end(ap);
    return &gx_never;
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

bool gx_nullable(const struct gx *x, const bool *rules)
{
    bool any = false;
    switch (x->kind) {
    case GX_EMPTY:
        return true;
    case GX_FSM:
        return x->fsm->states[0].final;
    case GX_SEQ:
        for (uint32_t i = 0; i < x->n; i++)
            if (!gx_nullable(x->kids[i], rules))
                return false;
        return true;
    case GX_ALT:
        for (uint32_t i = 0; i < x->n && !any; i++)
            any = gx_nullable(x->kids[i], rules);
        return any;
    case GX_WITHIN:
        return gx_nullable(x->kids[0], rules);
    case GX_REPEAT:
        return x->min == 0 || gx_nullable(x->kids[0], rules);
    case GX_RULE:
        return rules && rules[x->rule];
    default:
        return false;
    }
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
