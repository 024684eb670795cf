/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/automaton/expr.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "engine/grammar/automaton/fsm_measure.h"

const struct expr expr_never = {.kind = EXPR_NEVER};
const struct expr expr_empty = {.kind = EXPR_EMPTY};

const struct expr *expr_fail(struct build *b, enum q_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    build_fail_va(b, code, fmt, ap);
    va_end(ap);
    return &expr_never;
}

static uint32_t sum_weight(uint32_t a, uint64_t b)
{
    return a + b < UINT32_MAX ? a + (uint32_t)b : UINT32_MAX;
}

static struct expr *make(struct build *b, enum expr_kind kind)
{
    struct expr *x = build_alloc(b, 1, sizeof *x);
    if (x)
        x->kind = kind;
    return x;
}

const struct expr *expr_bytes(struct build *b, const char *s, size_t n)
{
    struct expr *x = n ? make(b, EXPR_BYTES) : NULL;
    char *copy = x ? build_alloc(b, n, 1) : NULL;
    if (!n)
        return &expr_empty;
    if (!copy)
        return &expr_never;
    memcpy(copy, s, n);
    x->bytes = copy;
    x->n = x->weight = (uint32_t)n;
    return x;
}

const struct expr *expr_text(struct build *b, const char *s)
{
    return expr_bytes(b, s, strlen(s));
}

const struct expr *expr_chars(struct build *b, const struct cset *set, enum expr_form form)
{
    struct expr *x = set->n ? make(b, EXPR_CHARS) : NULL;
    if (!x)
        return &expr_never;
    x->set = set;
    x->form = form;
    x->weight = set->ranges[set->n - 1].hi < 0x80 && form == EXPR_UTF8 ? 1 : 8 + set->n;
    return x;
}

const struct expr *expr_fsm(struct build *b, const struct fsm *f, enum expr_form form)
{
    struct expr *x = f ? make(b, EXPR_FSM) : NULL;
    if (!x)
        return &expr_never;
    x->fsm = f;
    x->form = form;
    x->weight = sum_weight(8, (uint64_t)f->n_state * 8);
    return x;
}

const struct expr *expr_within(struct build *b, const struct fsm *f, enum expr_form form,
                               uint32_t max)
{
    uint32_t shortest, longest;
    if (!f || !fsm_lengths(b, f, &shortest, &longest) || fsm_is_empty(f) || shortest > max)
        return &expr_never;
    if (longest <= max)
        return expr_fsm(b, f, form);
    struct expr *x = make(b, EXPR_WITHIN), *kid = make(b, EXPR_FSM);
    const struct expr **kids = x ? build_alloc(b, 1, sizeof *kids) : NULL;
    if (!kid || !kids)
        return &expr_never;
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
static const struct expr *join(struct build *b, enum expr_kind kind, const struct expr *const *kids,
                               size_t n)
{
    enum expr_kind neutral = kind == EXPR_SEQ ? EXPR_EMPTY : EXPR_NEVER;
    size_t n_kid = 0;
    for (size_t i = 0; i < n; i++) {
        if (kind == EXPR_SEQ && kids[i]->kind == EXPR_NEVER)
            return &expr_never;
        n_kid += kids[i]->kind == kind ? kids[i]->n : kids[i]->kind != neutral;
    }
    if (n_kid == 0)
        return kind == EXPR_SEQ ? &expr_empty : &expr_never;
    struct expr *x = make(b, kind);
    const struct expr **to = x ? build_alloc(b, n_kid, sizeof *to) : NULL;
    if (!to)
        return &expr_never;
    x->kids = to;
    for (size_t i = 0; i < n; i++)
        if (kids[i]->kind == kind)
            for (uint32_t k = 0; k < kids[i]->n; k++)
                to[x->n++] = kids[i]->kids[k];
        else if (kids[i]->kind != neutral)
            to[x->n++] = kids[i];
    for (uint32_t i = 0; i < x->n; i++)
        x->weight = sum_weight(x->weight, to[i]->weight + (kind == EXPR_ALT));
    return n_kid == 1 ? to[0] : x;
}

const struct expr *expr_seq(struct build *b, const struct expr *const *kids, size_t n)
{
    return join(b, EXPR_SEQ, kids, n);
}

const struct expr *expr_alt(struct build *b, const struct expr *const *kids, size_t n)
{
    return join(b, EXPR_ALT, kids, n);
}

const struct expr *expr_seq2(struct build *b, const struct expr *x, const struct expr *y)
{
    return join(b, EXPR_SEQ, (const struct expr *const[]){x, y}, 2);
}

const struct expr *expr_seq3(struct build *b, const struct expr *x, const struct expr *y,
                             const struct expr *z)
{
    return join(b, EXPR_SEQ, (const struct expr *const[]){x, y, z}, 3);
}

const struct expr *expr_alt2(struct build *b, const struct expr *x, const struct expr *y)
{
    return join(b, EXPR_ALT, (const struct expr *const[]){x, y}, 2);
}

const struct expr *expr_repeat(struct build *b, const struct expr *x, uint32_t min, uint32_t max)
{
    if (max == 0 || x->kind == EXPR_EMPTY || (x->kind == EXPR_NEVER && min == 0))
        return &expr_empty;
    if (x->kind == EXPR_NEVER || min > max)
        return &expr_never;
    if (min == 1 && max == 1)
        return x;
    struct expr *r = make(b, EXPR_REPEAT);
    const struct expr **kid = r ? build_alloc(b, 1, sizeof *kid) : NULL;
    if (!kid)
        return &expr_never;
    kid[0] = x;
    r->kids = kid;
    r->n = 1;
    r->min = min;
    r->max = max;
    r->weight = sum_weight(2, (uint64_t)x->weight * (max == EXPR_INF ? min + 1ull : max));
    return r;
}

const struct expr *expr_optional(struct build *b, const struct expr *x)
{
    return expr_repeat(b, x, 0, 1);
}

uint32_t expr_rule_new(struct build *b, const char *name)
{
    struct q_err e = Q_ERR_INIT;
    if (build_ok(b) && build_grown(b, q_grow(&b->rules, &b->rules_cap, b->n_rule + 1,
                                             sizeof *b->rules, EXPR_RULES_MAX, &e)))
        expr_fail(b, Q_TOO_LARGE, "the grammar is too large: more than %u rules", EXPR_RULES_MAX);
    char *copy = build_alloc(b, strlen(name) + 1, 1);
    if (!copy)
        return 0;
    memcpy(copy, name, strlen(name) + 1);
    b->rules[b->n_rule] = (struct expr_rule){copy, NULL, b->scope};
    return (uint32_t)b->n_rule++;
}

const struct expr *expr_ref(struct build *b, uint32_t rule)
{
    struct expr *x = make(b, EXPR_RULE);
    if (!x)
        return &expr_never;
    x->rule = rule;
    x->weight = 2;
    return x;
}

const struct expr *expr_named(struct build *b, const char *name, const struct expr *body)
{
    uint32_t rule = expr_rule_new(b, name);
    if (!build_ok(b))
        return &expr_never;
    b->rules[rule].body = body;
    return expr_ref(b, rule);
}

struct build_scope *expr_scope_new(struct build *b, const char *name)
{
    struct build_scope *scope = build_alloc(b, 1, sizeof *scope);
    char *copy = build_alloc(b, strlen(name) + 1, 1);
    if (!scope || !copy)
        return NULL;
    memcpy(copy, name, strlen(name) + 1);
    *scope = (struct build_scope){.name = copy, .next = b->scopes};
    b->scope = b->scopes = scope;
    scope->rule = expr_rule_new(b, "");
    return scope;
}

const struct expr *expr_scope_end(struct build *b, struct build_scope *scope,
                                  const struct expr *body)
{
    b->scope = NULL;
    if (!scope)
        return &expr_never;
    if (!build_ok(b)) {
        (void)q_wrap(&b->err, "%s", scope->name);
        return &expr_never;
    }
    b->rules[scope->rule].body = body;
    return expr_ref(b, scope->rule);
}

bool expr_nullable(const struct expr *x, const bool *rules)
{
    bool any = false;
    switch (x->kind) {
    case EXPR_EMPTY:
        return true;
    case EXPR_FSM:
        return x->fsm->states[0].final;
    case EXPR_SEQ:
        for (uint32_t i = 0; i < x->n; i++)
            if (!expr_nullable(x->kids[i], rules))
                return false;
        return true;
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n && !any; i++)
            any = expr_nullable(x->kids[i], rules);
        return any;
    case EXPR_WITHIN:
        return expr_nullable(x->kids[0], rules);
    case EXPR_REPEAT:
        return x->min == 0 || expr_nullable(x->kids[0], rules);
    case EXPR_RULE:
        return rules && rules[x->rule];
    default:
        return false;
    }
}

void expr_add(struct build *b, struct expr_list *l, const struct expr *x)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        const struct expr **items = build_alloc(b, cap, sizeof *items);
        if (!items)
            return;
        if (l->n)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = x;
}
