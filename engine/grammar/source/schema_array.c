/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: a prefix of items with their own schemas, then items with one schema. A comma belongs to
 * the item after it. */
#include <string.h>
#include "engine/grammar/source/schema_constraints.h"

struct parts {
    struct goal *prefix; /* [n_prefix] */
    size_t n_prefix;
    struct goal rest;
    uint32_t min, max;
};
#define WANTED_MAX        3u    /* contains that hold at once */
#define COUNTED_RULES_MAX 4000u /* numbers of items that are told apart for them */
struct wanted {                 /* one `contains` */
    const json_t *schema, *negated;
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
static void add_unevaluated(struct schema *s, const struct constraints *c, struct parts *p,
                            uint32_t i)
{
    const json_t *rest = json_object_get(c->arrays[i], "unevaluatedItems");
    size_t n = 0;
    if (!rest)
        return;
    for (uint32_t k = 0; k < c->n_array; k++) {
        if (!constraints_sees(c->arrays[i], c->array_chains[k]))
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

static bool gather(struct schema *s, const struct constraints *c, struct parts *p)
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

/* Items, at least min of which satisfy `contains`. */
static const struct expr *containing(struct schema *s, const struct parts *p,
                                     const struct wanted *w)
{
    struct build *b = s->b;
    struct goal with = {0};
    for (size_t i = 0; i < p->rest.n; i++)
        goal_add(s, &with, p->rest.items[i]);
    goal_add(s, &with, w->schema);
    const struct expr *item = schema_goal(s, &p->rest), *wanted = schema_goal(s, &with);
    const struct expr *comma = schema_token(s, ",");
    uint32_t n = w->min, min = p->min > n ? p->min : n;
    if (p->max != EXPR_INF || min > n) { /* wanted ones first, then as many as there may be */
        if (p->max < n)
            return &expr_never;
        const struct expr *first =
            expr_seq2(b, wanted, expr_repeat(b, expr_seq2(b, comma, wanted), n - 1, n - 1));
        return expr_seq2(b, first,
                         expr_repeat(b, expr_seq2(b, comma, item), min - n,
                                     p->max == EXPR_INF ? EXPR_INF : p->max - n));
    }
    const struct expr *before = expr_repeat(b, expr_seq2(b, item, comma), 0, EXPR_INF);
    const struct expr *after = expr_repeat(b, expr_seq2(b, comma, item), 0, EXPR_INF);
    const struct expr *x = expr_seq2(b, before, wanted);
    for (uint32_t i = 1; i < n; i++)
        x = expr_seq3(b, x, comma, expr_seq2(b, before, wanted));
    return expr_seq2(b, x, after);
}

/* The general form: a rule for each number of items so far and each number of those that count. An
 * item that counts satisfies `contains`; one that does not must not, where there is a maximum. */
struct counting {
    struct schema *s;
    const struct parts *p;
    const struct wanted *wanted; /* [n] */
    uint32_t n, at_max;          /* items told apart: more are as many */
    uint32_t size[WANTED_MAX];   /* numbers of each that are told apart */
    uint32_t *rules;             /* as rule_at orders them */
};

static uint32_t rule_at(const struct counting *k, uint32_t at, const uint32_t *counts)
{
    uint32_t i = at;
    for (uint32_t j = 0; j < k->n; j++)
        i = i * k->size[j] + counts[j];
    return k->rules[i];
}

/* One more item, which counts for the set `as` of wanted ones; NEVER: it cannot. */
static const struct expr *one_more(const struct counting *k, uint32_t at, const uint32_t *counts,
                                   uint32_t as)
{
    struct build *b = k->s->b;
    const struct goal *base = at < k->p->n_prefix ? &k->p->prefix[at] : &k->p->rest;
    struct goal g = {0};
    uint32_t next[WANTED_MAX];
    for (size_t i = 0; i < base->n; i++)
        goal_add(k->s, &g, base->items[i]);
    for (uint32_t j = 0; j < k->n; j++) {
        const struct wanted *w = &k->wanted[j];
        bool counts_here = as >> j & 1;
        next[j] = counts[j] + counts_here;
        if (next[j] == k->size[j]) /* enough without it, or too many */
            return &expr_never;
        if (counts_here || w->max != EXPR_INF)
            goal_add(k->s, &g, counts_here ? w->schema : w->negated);
    }
    const struct expr *item = schema_goal(k->s, &g);
    uint32_t rule = rule_at(k, at < k->at_max ? at + 1 : at, next);
    return expr_seq3(b, at ? schema_token(k->s, ",") : &expr_empty, item, expr_ref(b, rule));
}

static const struct expr *from_here(const struct counting *k, uint32_t at, const uint32_t *counts)
{
    struct expr_list l = {0};
    bool enough = at >= k->p->min;
    for (uint32_t j = 0; j < k->n; j++)
        enough &= counts[j] >= k->wanted[j].min;
    if (enough)
        expr_add(k->s->b, &l, &expr_empty);
    for (uint32_t as = 0; as < 1u << k->n && at < k->p->max; as++)
        expr_add(k->s->b, &l, one_more(k, at, counts, as));
    return expr_alt(k->s->b, l.items, l.n);
}

static const struct expr *counted(struct schema *s, const struct parts *p, const struct wanted *w,
                                  uint32_t n)
{
    struct counting k = {.s = s, .p = p, .wanted = w, .n = n};
    uint32_t prefix = (uint32_t)p->n_prefix, counts[WANTED_MAX];
    k.at_max = p->max != EXPR_INF ? p->max : p->min > prefix ? p->min : prefix;
    k.at_max = k.at_max ? k.at_max : 1; /* a comma stands before all but the first */
    uint64_t n_rule = k.at_max + 1ull;
    for (uint32_t j = 0; j < n; j++) {
        k.size[j] = (w[j].max == EXPR_INF ? w[j].min : w[j].max) + 1;
        n_rule *= k.size[j];
    }
    if (n_rule > COUNTED_RULES_MAX)
        return expr_fail(
            s->b, Q_TOO_LARGE,
            "contains with minItems, maxItems or prefixItems: %llu combinations of item "
            "counts, the limit is %u",
            (unsigned long long)n_rule, COUNTED_RULES_MAX);
    k.rules = build_alloc(s->b, n_rule, sizeof *k.rules);
    if (!k.rules)
        return &expr_never;
    for (uint64_t i = 0; i < n_rule; i++)
        k.rules[i] = expr_rule_new(s->b, "");
    for (uint64_t i = 0; i < n_rule && build_ok(s->b); i++) {
        uint64_t left = i;
        for (uint32_t j = n; j-- > 0; left /= k.size[j])
            counts[j] = (uint32_t)(left % k.size[j]);
        const struct expr *body = from_here(&k, (uint32_t)left, counts);
        if (build_ok(s->b))
            s->b->rules[k.rules[i]].body = body;
    }
    return build_ok(s->b) ? expr_ref(s->b, k.rules[0]) : &expr_never;
}

static uint32_t bound_of(const json_t *schema, const char *key, uint32_t missing)
{
    double n = json_number_value(json_object_get(schema, key));
    return !json_object_get(schema, key) ? missing : n < 0 ? 0 : n < 1e6 ? (uint32_t)n : 1000000;
}

/* What `contains` of all sources ask for; how many of them say anything. */
static uint32_t list_wanted(struct schema *s, const struct constraints *c, struct wanted *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_array && build_ok(s->b); i++) {
        const json_t *v = json_object_get(c->arrays[i], "contains");
        struct wanted w = {
            .schema = v,
            .min = bound_of(c->arrays[i], "minContains", 1),
            .max = bound_of(c->arrays[i], "maxContains", EXPR_INF),
        };
        if (!v || (w.min == 0 && w.max == EXPR_INF))
            continue;
        if (w.max != EXPR_INF && !(w.negated = schema_not(s, v)))
            schema_fail(s, Q_UNSUPPORTED, c->arrays[i], "maxContains",
                        "the negation of the counted schema cannot be written as a grammar");
        else if (n == WANTED_MAX)
            schema_fail(s, Q_UNSUPPORTED, c->arrays[i], "contains",
                        "more than %u of them apply at once", WANTED_MAX);
        else
            out[n++] = w;
    }
    return n;
}

static const struct expr *with_wanted(struct schema *s, const struct parts *p,
                                      const struct wanted *w, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++)
        if (w[j].min > w[j].max)
            return &expr_never;
    bool simple = n == 1 && w[0].max == EXPR_INF && !p->n_prefix && w[0].min <= 64;
    return simple ? containing(s, p, w) : counted(s, p, w, n);
}

/* The values that items with these schemas can have, if one of them lists them: those that all
 * allow, each once. NULL: they are not listed. */
static const json_t *item_values(struct schema *s, const struct goal *g)
{
    json_t *all = NULL, *values = json_array(), *v;
    size_t i, k;
    for (i = 0; i < g->n && !all; i++) {
        const json_t *at = g->items[i];
        for (int depth = 0; depth < 8 && json_object_get(at, "$ref") && build_ok(s->b); depth++)
            at = ref_target(s, at, "$ref");
        if (json_is_array(json_object_get(at, "enum")))
            all = json_incref(json_object_get(at, "enum"));
        else if (json_object_get(at, "const"))
            all = json_pack("[O]", json_object_get(at, "const"));
        else if (json_is_string(json_object_get(at, "type")) &&
                 !strcmp(json_string_value(json_object_get(at, "type")), "boolean"))
            all = json_pack("[b,b]", 1, 0);
    }
    json_array_foreach (all, i, v) {
        bool fresh = goal_holds(s, g, v);
        for (k = 0; fresh && k < json_array_size(values) && build_work(s->b, 1); k++)
            fresh = !schema_same(json_array_get(values, k), v);
        if (fresh)
            json_array_append(values, v);
    }
    const json_t *made = schema_make(s, values);
    made = all ? made : NULL;
    json_decref(all);
    return made;
}

/* Few values in any order: what may follow is known by which of them are there. */
static const struct expr *any_order(struct schema *s, const struct parts *p, const json_t *values)
{
    struct build *b = s->b;
    uint32_t n = (uint32_t)json_array_size(values), full = 1u << n;
    uint32_t *rules = build_alloc(b, full, sizeof *rules);
    for (uint32_t used = 0; rules && used < full; used++)
        rules[used] = expr_rule_new(b, "");
    if (!rules || !build_ok(b))
        return &expr_never;
    for (uint32_t used = full; used-- > 0;) {
        struct expr_list l = {0};
        uint32_t n_used = (uint32_t)__builtin_popcount(used);
        if (n_used >= p->min)
            expr_add(b, &l, &expr_empty);
        for (uint32_t k = 0; k < n && n_used < p->max; k++)
            if (!(used >> k & 1))
                expr_add(b, &l,
                         expr_seq3(b, used ? schema_token(s, ",") : &expr_empty,
                                   schema_value(s, json_array_get(values, k)),
                                   expr_ref(b, rules[used | 1u << k])));
        b->rules[rules[used]].body = expr_alt(b, l.items, l.n);
    }
    return expr_ref(b, rules[0]);
}

/* Many: in their order, from the last one backwards, by how many there are so far. */
static const struct expr *in_order(struct schema *s, const struct parts *p, const json_t *values)
{
    struct build *b = s->b;
    uint32_t n = (uint32_t)json_array_size(values), most = p->max < n ? p->max : n;
    uint32_t top = p->max < n ? p->max : p->min > 1 ? p->min : 1; /* more make no difference */
    if (p->min > most)
        return &expr_never;
    if (!build_work(b, (uint64_t)n * top))
        return &expr_never;
    const struct expr **rest = build_alloc(b, top + 1, sizeof *rest);
    for (uint32_t have = 0; rest && have <= top; have++)
        rest[have] = have >= p->min ? &expr_empty : &expr_never;
    for (uint32_t i = n; rest && i-- > 0;) {
        const struct expr *value = expr_named(b, "", schema_value(s, json_array_get(values, i)));
        for (uint32_t have = 0; have <= i && have <= top && build_ok(b); have++) {
            const struct expr *next = rest[have < top ? have + 1 : top];
            const struct expr *comma = have ? schema_token(s, ",") : &expr_empty;
            const struct expr *x = have < most ? expr_seq3(b, comma, value, next) : &expr_never;
            rest[have] = expr_named(b, "", expr_alt2(b, x, rest[have]));
        }
    }
    return rest && build_ok(b) ? rest[0] : &expr_never;
}

/* uniqueItems: where the items are known values. */
static const struct expr *unique(struct schema *s, const struct parts *p, const json_t *at)
{
    const json_t *values = p->n_prefix ? NULL : item_values(s, &p->rest);
    if (!values)
        return schema_fail(s, Q_UNSUPPORTED, at, "uniqueItems",
                           "a grammar cannot compare items; expected an array of at most 1 item, "
                           "or items with an enum");
    return json_array_size(values) <= 8 ? any_order(s, p, values) : in_order(s, p, values);
}

static const struct expr *sequence(struct schema *s, const struct parts *p)
{
    struct build *b = s->b;
    const struct expr *comma = schema_token(s, ",");
    uint32_t n = (uint32_t)p->n_prefix, max = p->max;
    const struct expr *rest = max > n ? schema_goal(s, &p->rest) : &expr_never;
    if (rest->kind == EXPR_NEVER && max > n)
        max = n;
    uint32_t left = max == EXPR_INF ? EXPR_INF : max > n ? max - n : 0;
    if (p->min > max)
        return &expr_never;
    if (n == 0) {
        const struct expr *more = expr_repeat(b, expr_seq2(b, comma, rest), p->min ? p->min - 1 : 0,
                                              left == EXPR_INF ? EXPR_INF
                                              : left           ? left - 1
                                                               : 0);
        const struct expr *list = left ? expr_seq2(b, rest, more) : &expr_never;
        return p->min ? list : expr_alt2(b, list, &expr_empty);
    }
    uint32_t least = p->min > n ? p->min - n : 0;
    const struct expr *tail =
        left ? expr_repeat(b, expr_seq2(b, comma, rest), least, left) : &expr_empty;
    for (uint32_t i = n; i-- > 0;) {
        const struct expr *item = i < max ? schema_goal(s, &p->prefix[i]) : &expr_never;
        tail = expr_seq3(b, i ? comma : &expr_empty, item, tail);
        if (i >= p->min)
            tail = expr_alt2(b, tail, &expr_empty);
    }
    return tail;
}

const struct expr *array_expr(struct schema *s, const struct constraints *c)
{
    struct build *b = s->b;
    struct parts p = {.min = c->items_min, .max = c->items_max};
    struct wanted wanted[WANTED_MAX];
    const json_t *is_unique = NULL;
    if (p.min > p.max || !gather(s, c, &p))
        return &expr_never;
    uint32_t n_wanted = list_wanted(s, c, wanted);
    for (uint32_t i = 0; i < c->n_array; i++)
        if (json_is_true(json_object_get(c->arrays[i], "uniqueItems")) && p.max > 1)
            is_unique = c->arrays[i];
    const struct expr *inside = n_wanted && is_unique
                                    ? schema_fail(s, Q_UNSUPPORTED, is_unique, "uniqueItems",
                                                  "is not supported together with contains")
                                : n_wanted  ? with_wanted(s, &p, wanted, n_wanted)
                                : is_unique ? unique(s, &p, is_unique)
                                            : sequence(s, &p);
    inside = expr_seq3(b, schema_ws(s), inside, schema_ws(s));
    return expr_named(b, "", expr_seq3(b, expr_text(b, "["), inside, expr_text(b, "]")));
}

static bool are_unique(struct schema *s, const json_t *v)
{
    size_t n = json_array_size(v);
    for (size_t i = 0; i < n && build_work(s->b, n); i++)
        for (size_t k = 0; k < i; k++)
            if (schema_same(json_array_get(v, i), json_array_get(v, k)))
                return false;
    return build_ok(s->b);
}

/* At most max items count. Schemas may be taken stricter than they are: an item that neither
 * satisfies this one nor its negation counts. */
static bool within_most(struct schema *s, const struct wanted *w, const json_t *v)
{
    size_t n = json_array_size(v), n_not = 0;
    for (size_t i = 0; i < n && w->max != EXPR_INF; i++)
        n_not += schema_holds(s, w->negated, json_array_get(v, i));
    return n - n_not <= w->max;
}

bool array_holds(struct schema *s, const struct constraints *c, const json_t *v)
{
    struct parts p = {.min = c->items_min, .max = c->items_max};
    struct wanted wanted[WANTED_MAX];
    size_t n = json_array_size(v);
    bool holds = n >= p.min && n <= p.max && gather(s, c, &p);
    for (size_t i = 0; i < n && holds; i++)
        holds = goal_holds(s, i < p.n_prefix ? &p.prefix[i] : &p.rest, json_array_get(v, i));
    uint32_t n_wanted = holds ? list_wanted(s, c, wanted) : 0;
    for (uint32_t j = 0; j < n_wanted && holds; j++) {
        uint32_t count = 0;
        for (size_t i = 0; i < n; i++)
            count += schema_holds(s, wanted[j].schema, json_array_get(v, i));
        holds = count >= wanted[j].min && within_most(s, &wanted[j], v);
    }
    for (uint32_t i = 0; i < c->n_array && holds; i++)
        if (json_is_true(json_object_get(c->arrays[i], "uniqueItems")))
            holds = are_unique(s, v);
    return holds;
}
