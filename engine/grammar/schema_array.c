/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: a prefix of items with schemas of their own, then items that are all alike. The comma
 * belongs to the item behind it. */
#include <string.h>
#include "engine/grammar/schema.h"

struct parts {
    struct goal *prefix; /* [n_prefix] */
    size_t n_prefix;
    struct goal rest;
    uint32_t min, max;
};

static const json_t *prefix_of(const json_t *schema)
{
    const json_t *p = json_object_get(schema, "prefixItems"), *items;
    if (!p && json_is_array(items = json_object_get(schema, "items")))
        p = items;
    return p;
}

/* The schema of the items behind the prefix; NULL: any. */
static const json_t *rest_of(const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");
    return json_is_array(items) ? json_object_get(schema, "additionalItems") : items;
}

/* unevaluatedItems: of the items that no schema it sees has looked at. What `contains` looked at
 * counts as not looked at, which is stricter. */
static void add_unevaluated(struct schema *s, const struct conj *c, struct parts *p, uint32_t i)
{
    const json_t *rest = json_object_get(c->arrays[i], "unevaluatedItems");
    size_t n = 0;
    if (!rest)
        return;
    for (uint32_t k = 0; k < c->n_array; k++) {
        if (!conj_sees(c->arrays[i], c->array_chains[k]))
            continue;
        if (rest_of(c->arrays[k]) || (k != i && json_object_get(c->arrays[k], "unevaluatedItems")))
            return;
        size_t n_here = json_array_size(prefix_of(c->arrays[k]));
        n = n_here > n ? n_here : n;
    }
    for (; n < p->n_prefix; n++)
        goal_add(s, &p->prefix[n], rest);
    goal_add(s, &p->rest, rest);
}

static bool gather(struct schema *s, const struct conj *c, struct parts *p)
{
    for (uint32_t i = 0; i < c->n_array; i++) {
        size_t n = json_array_size(prefix_of(c->arrays[i]));
        p->n_prefix = n > p->n_prefix ? n : p->n_prefix;
    }
    p->prefix = build_alloc(s->b, p->n_prefix, sizeof *p->prefix);
    if (!p->prefix)
        return false;
    for (uint32_t i = 0; i < c->n_array; i++) {
        const json_t *prefix = prefix_of(c->arrays[i]), *rest = rest_of(c->arrays[i]);
        for (size_t k = 0; k < p->n_prefix; k++) {
            const json_t *one = k < json_array_size(prefix) ? json_array_get(prefix, k) : rest;
            if (one)
                goal_add(s, &p->prefix[k], one);
        }
        if (rest)
            goal_add(s, &p->rest, rest);
    }
    for (uint32_t i = 0; i < c->n_array; i++)
        add_unevaluated(s, c, p, i);
    return build_ok(s->b);
}

/* items and those that contains asks for, at least min of them. */
static const struct gx *containing(struct schema *s, const struct conj *c, const struct parts *p,
                                   const json_t *at)
{
    struct build *b = s->b;
    const json_t *v = json_object_get(at, "minContains"), *contains;
    json_int_t least = v ? (json_int_t)json_number_value(v) : 1;
    contains = json_object_get(at, "contains");
    if (json_object_get(at, "maxContains") || p->n_prefix || c->n_array > 2 || least > 64)
        return schema_fail(s, Q_UNSUPPORTED, at, "contains",
                           "is not supported together with maxContains, prefixItems or another "
                           "contains");
    struct goal with = {0};
    for (size_t i = 0; i < p->rest.n; i++)
        goal_add(s, &with, p->rest.items[i]);
    goal_add(s, &with, contains);
    const struct gx *item = schema_goal(s, &p->rest), *wanted = schema_goal(s, &with);
    const struct gx *comma = schema_token(s, ",");
    uint32_t n = (uint32_t)least, min = p->min > n ? p->min : n;
    if (p->max != GX_INF || min > n) { /* wanted ones first, then as many as there may be */
        if (p->max < n)
            return &gx_never;
        const struct gx *first =
            gx_seq2(b, wanted, gx_repeat(b, gx_seq2(b, comma, wanted), n - 1, n - 1));
        return gx_seq2(
            b, first,
            gx_repeat(b, gx_seq2(b, comma, item), min - n, p->max == GX_INF ? GX_INF : p->max - n));
    }
    const struct gx *before = gx_repeat(b, gx_seq2(b, item, comma), 0, GX_INF);
    const struct gx *after = gx_repeat(b, gx_seq2(b, comma, item), 0, GX_INF);
    const struct gx *x = gx_seq2(b, before, wanted);
    for (uint32_t i = 1; i < n; i++)
        x = gx_seq3(b, x, comma, gx_seq2(b, before, wanted));
    return gx_seq2(b, x, after);
}

/* uniqueItems: where the items are a few known values, orders of them are written out. */
static const struct gx *unique(struct schema *s, const struct conj *c, const struct parts *p,
                               const json_t *at)
{
    struct build *b = s->b;
    const json_t *values = p->rest.n == 1 ? json_object_get(p->rest.items[0], "enum") : NULL;
    size_t n = json_array_size(values);
    if (p->n_prefix || !values || n == 0 || json_object_size(p->rest.items[0]) > 2 || n > 8)
        return schema_fail(s, Q_UNSUPPORTED, at, "uniqueItems",
                           "a grammar cannot compare items; accepted are arrays of at most 1 item, "
                           "and items with an enum of at most 8 values");
    uint32_t full = 1u << n, first = 0;
    uint32_t *rules = build_alloc(b, full, sizeof *rules);
    (void)c;
    for (uint32_t used = 0; rules && used < full; used++)
        rules[used] = gx_rule_new(b, "");
    if (!rules || !build_ok(b))
        return &gx_never;
    for (uint32_t used = full; used-- > 0;) { /* what may follow when these are there */
        struct gx_list l = {0};
        uint32_t n_used = (uint32_t)__builtin_popcount(used);
        if (n_used >= p->min)
            gx_add(b, &l, &gx_empty);
        for (uint32_t k = 0; k < n && n_used < p->max; k++)
            if (!(used >> k & 1))
                gx_add(b, &l,
                       gx_seq3(b, used ? schema_token(s, ",") : &gx_empty,
                               schema_value(s, json_array_get(values, k)),
                               gx_ref(b, rules[used | 1u << k])));
        b->rules[rules[used]].body = gx_alt(b, l.items, l.n);
    }
    return gx_ref(b, rules[first]);
}

static const struct gx *sequence(struct schema *s, const struct parts *p)
{
    struct build *b = s->b;
    const struct gx *comma = schema_token(s, ",");
    uint32_t n = (uint32_t)p->n_prefix, max = p->max;
    const struct gx *rest = max > n ? schema_goal(s, &p->rest) : &gx_never;
    if (rest->kind == GX_NEVER && max > n)
        max = n;
    uint32_t left = max == GX_INF ? GX_INF : max > n ? max - n : 0;
    if (p->min > max)
        return &gx_never;
    if (n == 0) {
        const struct gx *more = gx_repeat(b, gx_seq2(b, comma, rest), p->min ? p->min - 1 : 0,
                                          left == GX_INF ? GX_INF
                                          : left         ? left - 1
                                                         : 0);
        const struct gx *list = left ? gx_seq2(b, rest, more) : &gx_never;
        return p->min ? list : gx_alt2(b, list, &gx_empty);
    }
    uint32_t least = p->min > n ? p->min - n : 0;
    const struct gx *tail = left ? gx_repeat(b, gx_seq2(b, comma, rest), least, left) : &gx_empty;
    for (uint32_t i = n; i-- > 0;) {
        const struct gx *item = i < max ? schema_goal(s, &p->prefix[i]) : &gx_never;
        tail = gx_seq3(b, i ? comma : &gx_empty, item, tail);
        if (i >= p->min)
            tail = gx_alt2(b, tail, &gx_empty);
    }
    return tail;
}

const struct gx *array_gx(struct schema *s, const struct conj *c)
{
    struct build *b = s->b;
    struct parts p = {.min = c->items_min, .max = c->items_max};
    const json_t *contains = NULL, *is_unique = NULL;
    if (p.min > p.max || !gather(s, c, &p))
        return &gx_never;
    for (uint32_t i = 0; i < c->n_array; i++) {
        const json_t *v = json_object_get(c->arrays[i], "minContains");
        if (json_object_get(c->arrays[i], "contains") && (!v || json_number_value(v) > 0))
            contains = c->arrays[i];
        else if (json_object_get(c->arrays[i], "maxContains"))
            return schema_fail(s, Q_UNSUPPORTED, c->arrays[i], "maxContains", "is not supported");
        if (json_is_true(json_object_get(c->arrays[i], "uniqueItems")) && p.max > 1)
            is_unique = c->arrays[i];
    }
    const struct gx *inside = contains && is_unique
                                  ? schema_fail(s, Q_UNSUPPORTED, is_unique, "uniqueItems",
                                                "is not supported together with contains")
                              : contains  ? containing(s, c, &p, contains)
                              : is_unique ? unique(s, c, &p, is_unique)
                                          : sequence(s, &p);
    inside = gx_seq3(b, schema_ws(s), inside, schema_ws(s));
    return gx_named(b, "", gx_seq3(b, gx_text(b, "["), inside, gx_text(b, "]")));
}
