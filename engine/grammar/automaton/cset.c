/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/automaton/cset.h"
#include <stdlib.h>
#include <string.h>

static const struct range any_ranges[] = {{0, 0xD7FF}, {0xE000, EXPR_CHAR_MAX}};
const struct cset cset_any = {any_ranges, 2};

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
    if (from <= EXPR_CHAR_MAX)
        r[n++] = (struct range){from, EXPR_CHAR_MAX};
    return cset_and(b, wrap(b, r, n), &cset_any);
}

bool cset_has(const struct cset *s, uint32_t c)
{
    for (uint32_t i = 0; i < s->n && s->ranges[i].lo <= c; i++)
        if (c <= s->ranges[i].hi)
            return true;
    return false;
}
