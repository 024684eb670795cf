/* SPDX-License-Identifier: Apache-2.0 */
/* Objects: the listed properties in the order of the schema, each at most once, then other
 * properties. The names of the others are an automaton: all names that are not listed, divided by
 * the patterns of patternProperties into sets whose values have the same schemas.
 *
 * A comma belongs to the property after it, so the first property is special. After each property
 * a rule reads the rest: a tree of the names from there on (name_tree.h). With minProperties or
 * maxProperties there is such a rule for each number of properties so far.
 *
 * A property required by a negation (KEY_SOME) is tried as each listed property whose name
 * matches, and as one of the others. Those come last: readers take the last of several properties
 * of one name, so no later property may have that name. */
#include <string.h>
#include "engine/grammar/source/name_tree.h"
#include "engine/grammar/source/regex.h"
#include "engine/grammar/source/schema_constraints.h"

#define PATTERNS_MAX 12u
#define PROPS_MAX    5000u
#define FEW_MAX      32u /* names of an automaton that are listed one by one */
#define WANTED_MAX   4u  /* others that are wanted, of one object */
#define FLAT_MAX     16u /* required ones in one rule */

struct prop {
    const char *text;
    bool required;
    const struct expr *name;  /* BYTES, with its quotes */
    const struct expr *value; /* with the colon before it; NEVER when it cannot be */
};
struct wanted {              /* another property that there must be */
    const struct fsm *names; /* NULL: all */
    struct goal values;
    const struct expr *entry;
};
struct object_parts {
    struct schema *s;
    const struct constraints *c;
    struct prop *props; /* [n_prop] */
    size_t n_prop, cap;
    const struct fsm *names; /* what all names must be; NULL: anything */
    const json_t *pattern_schemas[PATTERNS_MAX];
    uint32_t pattern_source[PATTERNS_MAX];
    const struct fsm *pattern_fsms[PATTERNS_MAX];
    uint32_t n_pattern;
    const struct expr *extra; /* one property that is not listed; NEVER: there is none */
    const struct expr *comma;
    struct wanted wanted[WANTED_MAX]; /* no name is in two of them */
    uint32_t n_wanted;
};

static struct prop *find_property(struct object_parts *p, const char *name)
{
    for (size_t i = 0; i < p->n_prop; i++)
        if (!strcmp(p->props[i].text, name))
            return &p->props[i];
    return NULL;
}

static void list_prop(struct object_parts *p, const char *name, bool required)
{
    struct prop *old = build_work(p->s->b, p->n_prop / 4 + 1) ? find_property(p, name) : NULL;
    struct q_err e = Q_ERR_INIT;
    if (old)
        old->required |= required;
    if (old || !build_ok(p->s->b))
        return;
    if (build_grown(p->s->b,
                    q_grow(&p->props, &p->cap, p->n_prop + 1, sizeof *p->props, PROPS_MAX, &e))) {
        expr_fail(p->s->b, Q_TOO_LARGE, "properties: more than %u of one object", PROPS_MAX);
        return;
    }
    p->props[p->n_prop++] = (struct prop){.text = name, .required = required};
}

static void list_props(struct object_parts *p)
{
    const char *name;
    json_t *v;
    size_t k;
    for (uint32_t i = 0; i < p->c->n_object; i++)
        json_object_foreach (json_object_get(p->c->objects[i], "properties"), name, v)
            list_prop(p, name, false);
    for (uint32_t i = 0; i < p->c->n_required; i++)
        json_array_foreach ((json_t *)p->c->required[i], k, v)
            if (json_is_string(v))
                list_prop(p, json_string_value(v), true);
}

static void list_patterns(struct object_parts *p)
{
    const char *pattern;
    json_t *v;
    for (uint32_t i = 0; i < p->c->n_object; i++)
        json_object_foreach (json_object_get(p->c->objects[i], "patternProperties"), pattern, v) {
            if (p->n_pattern == PATTERNS_MAX) {
                schema_fail(p->s, Q_TOO_LARGE, p->c->objects[i], "patternProperties",
                            "more than %u patterns", PATTERNS_MAX);
                return;
            }
            const struct regex_text r = {
                .s = pattern,
                .n = strlen(pattern),
                .search = true,
                .where = "patternProperties",
            };
            uint32_t n = p->n_pattern;
            p->pattern_source[n] = i;
            p->pattern_schemas[n] = v;
            if (!(p->pattern_fsms[n] = regex_fsm(p->s->b, &r)))
                return;
            p->n_pattern++;
        }
}

static void list_names(struct object_parts *p)
{
    struct schema *s = p->s;
    for (uint32_t i = 0; i < p->c->n_object && build_ok(s->b); i++) {
        const json_t *v = json_object_get(p->c->objects[i], "propertyNames");
        bool plain;
        if (!v || json_is_true(v))
            continue;
        const struct fsm *f = names_fsm(s, v, p->c->objects[i], "propertyNames", &plain);
        if (f)
            p->names = p->names ? fsm_and(s->b, p->names, f) : f;
    }
}

/* Where properties are counted or some are wanted, names that are few are listed, so that each can
 * be there but once. */
static void list_few(struct object_parts *p)
{
    struct build *b = p->s->b;
    const char *texts[FEW_MAX];
    uint32_t n;
    for (uint32_t k = 0; k <= p->n_pattern && build_ok(b); k++) {
        const struct fsm *f = k < p->n_pattern ? p->pattern_fsms[k] : p->names;
        if (f && k < p->n_pattern && p->names)
            f = fsm_and(b, f, p->names);
        if (f && names_listed(b, f, texts, &n, FEW_MAX))
            for (uint32_t i = 0; i < n; i++)
                list_prop(p, texts[i], false);
    }
}

/* Source i says nothing of this name by properties or patterns: its additionalProperties. */
static void add_additional(struct object_parts *p, uint32_t i, struct goal *g)
{
    const json_t *v = json_object_get(p->c->objects[i], "additionalProperties");
    if (v)
        goal_add(p->s, g, v);
}

/* unevaluatedProperties: when no source that it sees has looked at the name (`known`). */
static void add_unevaluated(struct object_parts *p, const bool *known, struct goal *g)
{
    for (uint32_t i = 0; i < p->c->n_object; i++) {
        const json_t *v = json_object_get(p->c->objects[i], "unevaluatedProperties");
        bool looked_at = false;
        for (uint32_t k = 0; v && k < p->c->n_object; k++) {
            const json_t *other = p->c->objects[k];
            bool all = json_object_get(other, "additionalProperties") ||
                       (k != i && json_object_get(other, "unevaluatedProperties"));
            looked_at |=
                (known[k] || all) && constraints_sees(p->c->objects[i], p->c->object_chains[k]);
        }
        if (v && !looked_at)
            goal_add(p->s, g, v);
    }
}

/* What the value of a listed property must satisfy. */
static struct goal prop_goal(struct object_parts *p, const char *name)
{
    struct goal g = {0};
    bool known[SCHEMA_SOURCES_MAX] = {false};
    build_work(p->s->b, p->c->n_object + p->n_pattern * (1 + strlen(name) / 8));
    for (uint32_t i = 0; i < p->c->n_object; i++) {
        const json_t *v = json_object_get(json_object_get(p->c->objects[i], "properties"), name);
        known[i] = v != NULL;
        if (v)
            goal_add(p->s, &g, v);
        for (uint32_t k = 0; k < p->n_pattern; k++)
            if (p->pattern_source[k] == i && fsm_accepts(p->pattern_fsms[k], name, strlen(name))) {
                goal_add(p->s, &g, p->pattern_schemas[k]);
                known[i] = true;
            }
        if (!known[i])
            add_additional(p, i, &g);
    }
    add_unevaluated(p, known, &g);
    return g;
}

static const struct expr *entry(struct object_parts *p, const struct expr *name,
                                const struct expr *value)
{
    return expr_seq3(p->s->b, name, schema_token(p->s, ":"), value);
}

static void make_values(struct object_parts *p)
{
    struct schema *s = p->s;
    for (size_t i = 0; i < p->n_prop && build_ok(s->b); i++) {
        const char *text = p->props[i].text;
        const struct expr *name = schema_quoted(s, text, strlen(text)), *value = &expr_never;
        if (!p->names || fsm_accepts(p->names, text, strlen(text))) {
            const struct goal g = prop_goal(p, text);
            value = expr_seq2(s->b, schema_token(s, ":"), schema_goal(s, &g));
        }
        p->props[i].name = name;
        p->props[i].value = value;
    }
}

static const struct fsm *all_names(struct build *b)
{
    return fsm_of_chars(b, expr_repeat(b, expr_chars(b, &cset_any, EXPR_UTF8), 0, EXPR_INF),
                        "a name");
}

/* Names among `only` (NULL: all) that are not listed and match exactly the patterns of `set`; NULL:
 * all names. */
static const struct fsm *names_of(struct object_parts *p, uint32_t set, const struct fsm *only)
{
    struct build *b = p->s->b;
    struct expr_list l = {0};
    const struct fsm *f = p->names && only ? fsm_and(b, p->names, only) : only ? only : p->names;
    for (uint32_t k = 0; k < p->n_pattern; k++)
        if (set >> k & 1)
            f = f ? fsm_and(b, f, p->pattern_fsms[k]) : p->pattern_fsms[k];
    for (size_t i = 0; i < p->n_prop; i++)
        expr_add(b, &l, expr_text(b, p->props[i].text));
    if (!f && (p->n_prop || p->n_pattern))
        f = all_names(b);
    if (p->n_prop && f)
        f = fsm_minus(b, f, fsm_of_chars(b, expr_alt(b, l.items, l.n), "properties"));
    for (uint32_t k = 0; k < p->n_pattern && f; k++)
        if (!(set >> k & 1))
            f = fsm_minus(b, f, p->pattern_fsms[k]);
    return f;
}

/* wanted: what this one must be besides; NULL: nothing. */
static const struct expr *extra_of(struct object_parts *p, uint32_t set,
                                   const struct wanted *wanted)
{
    struct schema *s = p->s;
    struct goal g = {0};
    bool known[SCHEMA_SOURCES_MAX] = {false};
    for (uint32_t i = 0; i < p->c->n_object; i++) {
        for (uint32_t k = 0; k < p->n_pattern; k++)
            if (set >> k & 1 && p->pattern_source[k] == i) {
                goal_add(s, &g, p->pattern_schemas[k]);
                known[i] = true;
            }
        if (!known[i])
            add_additional(p, i, &g);
    }
    add_unevaluated(p, known, &g);
    for (size_t i = 0; wanted && i < wanted->values.n; i++)
        goal_add(s, &g, wanted->values.items[i]);
    for (size_t i = 0; i < g.n; i++)
        if (json_is_false(g.items[i]))
            return &expr_never;
    const struct fsm *names = names_of(p, set, wanted ? wanted->names : NULL);
    if (names && fsm_is_empty(names))
        return &expr_never;
    struct constraints any;
    constraints_init(&any);
    const struct expr *quote = expr_text(s->b, "\"");
    const struct expr *name =
        names
            ? expr_named(s->b, "", expr_seq3(s->b, quote, expr_fsm(s->b, names, EXPR_JSON), quote))
            : string_expr(s, &any);
    return build_ok(s->b) ? entry(p, name, schema_goal(s, &g)) : &expr_never;
}

/* Few patterns: every set of them. Many: names that match two of them are left out. */
static const struct expr *make_extra(struct object_parts *p, const struct wanted *wanted)
{
    struct expr_list l = {0};
    uint32_t n = p->n_pattern;
    if (n <= 3) {
        for (uint32_t set = 0; set < 1u << n && build_ok(p->s->b); set++)
            expr_add(p->s->b, &l, extra_of(p, set, wanted));
    } else {
        expr_add(p->s->b, &l, extra_of(p, 0, wanted));
        for (uint32_t k = 0; k < n && build_ok(p->s->b); k++)
            expr_add(p->s->b, &l, extra_of(p, 1u << k, wanted));
    }
    return expr_alt(p->s->b, l.items, l.n);
}

/* At most n of the others, then those that are wanted. */
static const struct expr *with_wanted(struct object_parts *p, uint32_t have, uint32_t n)
{
    struct build *b = p->s->b;
    const struct expr *x = have ? p->comma : &expr_empty;
    if (p->extra->kind != EXPR_NEVER)
        x = expr_seq2(b, x, expr_repeat(b, expr_seq2(b, p->extra, p->comma), 0, n));
    for (uint32_t i = 0; i < p->n_wanted; i++)
        x = expr_seq3(b, x, i ? p->comma : &expr_empty, p->wanted[i].entry);
    return x;
}

/* Others behind the listed ones, when `have` properties are there (known: it is known exactly). */
static const struct expr *extras(struct object_parts *p, uint32_t have)
{
    struct build *b = p->s->b;
    const struct constraints *c = p->c;
    uint32_t need = c->props_min > have ? c->props_min - have : 0;
    uint32_t left = c->props_max == EXPR_INF ? EXPR_INF
                    : c->props_max > have    ? c->props_max - have
                                             : 0;
    if (c->props_max < have || need > left || p->n_wanted > left)
        return &expr_never;
    if (need > (p->n_wanted ? p->n_wanted : 1) && p->extra->kind != EXPR_NEVER) /* equal names? */
        return schema_fail(p->s, Q_UNSUPPORTED, c->n_object ? c->objects[0] : p->s->root,
                           "minProperties",
                           "at most one property outside \"properties\" can be required");
    if (p->n_wanted && need <= p->n_wanted)
        return with_wanted(p, have, left == EXPR_INF ? EXPR_INF : left - p->n_wanted);
    if (p->extra->kind == EXPR_NEVER || left == 0)
        return need ? &expr_never : &expr_empty;
    const struct expr *more = expr_seq2(b, p->comma, p->extra);
    if (have)
        return expr_repeat(b, more, need, left);
    const struct expr *list =
        expr_seq2(b, p->extra, expr_repeat(b, more, 0, left == EXPR_INF ? EXPR_INF : left - 1));
    return need ? list : expr_alt2(b, list, &expr_empty);
}

/* The listed ones and the others behind them, made from the last one backwards. By the number of
 * properties so far, as far as it makes a difference: the names that may come next, each with all
 * that follows it, and what may come instead of them. */
struct listing {
    struct object_parts *p;
    uint32_t top;                   /* numbers so far; more are as many */
    const struct name_tree **names; /* [top + 1] */
    const struct expr **others;     /* [top + 1] NEVER: one of the names has to come */
};

static const struct expr *rest_of(const struct listing *l, uint32_t have)
{
    struct build *b = l->p->s->b;
    const struct expr *names = name_tree_expr(b, l->names[have]);
    return expr_alt2(b, expr_seq2(b, have ? l->p->comma : &expr_empty, names), l->others[have]);
}

/* Property i before all that the listing has. */
static void list_before(struct listing *l, uint32_t i)
{
    struct build *b = l->p->s->b;
    const struct prop *q = &l->p->props[i];
    /* between two that are required there is one way, which needs no rule of its own */
    bool is_shared = !q->required || (i && !l->p->props[i - 1].required) || i % FLAT_MAX == 0;
    const struct name_tree *before = NULL, *with = NULL;
    const struct expr *value = NULL;
    for (uint32_t have = 0; have <= l->top && have <= i && build_ok(b); have++) {
        const struct name_tree *names = q->required ? NULL : l->names[have];
        bool may = have < l->p->c->props_max, is_same = have && have == l->top && may && value;
        if (may && !is_same) {
            value = expr_seq2(b, q->value, rest_of(l, have < l->top ? have + 1 : have));
            value = is_shared ? expr_named(b, "", value) : value;
        }
        if (may && !(is_same && names == before))
            with = name_tree_add(b, names, q->name->bytes, q->name->n, value);
        before = names;
        l->names[have] = may ? with : names;
        if (q->required)
            l->others[have] = &expr_never;
    }
}

/* counts: there are minProperties or maxProperties that the listed ones do not see to alone. */
static const struct expr *list_all(struct object_parts *p, bool counts)
{
    struct build *b = p->s->b;
    uint32_t n = (uint32_t)p->n_prop;
    struct listing l = {.p = p, .top = counts ? n : 1};
    if (counts && p->c->props_max == EXPR_INF && p->c->props_min < n)
        l.top = p->c->props_min;
    l.top = l.top ? l.top : 1;
    if (!build_work(b, (uint64_t)n * l.top) || (uint64_t)n * l.top > 100000)
        return expr_fail(b, Q_TOO_LARGE,
                         "minProperties or maxProperties with %u properties is not supported", n);
    l.names = build_alloc(b, l.top + 1, sizeof *l.names);
    l.others = build_alloc(b, l.top + 1, sizeof *l.others);
    if (!l.names || !l.others)
        return &expr_never;
    for (uint32_t have = 0; have <= l.top; have++)
        l.others[have] = extras(p, have);
    for (uint32_t i = n; i-- > 0 && build_ok(b);)
        list_before(&l, i);
    return build_ok(b) ? rest_of(&l, 0) : &expr_never;
}

static void make_parts(struct object_parts *p)
{
    struct build *b = p->s->b;
    list_props(p);
    list_patterns(p);
    if (build_ok(b))
        list_names(p);
    if (build_ok(b) && (p->c->props_min > 1 || p->n_wanted || p->c->n_some))
        list_few(p);
}

/* The object with no more to want than `wanted` [n]. */
static const struct expr *object_way(struct schema *s, const struct constraints *c,
                                     const struct wanted *wanted, uint32_t n)
{
    struct build *b = s->b;
    struct object_parts p = {.s = s, .c = c, .comma = schema_token(s, ","), .extra = &expr_never};
    const struct expr *inside = &expr_never;
    for (; p.n_wanted < n; p.n_wanted++)
        p.wanted[p.n_wanted] = wanted[p.n_wanted];
    make_parts(&p);
    if (build_ok(b))
        make_values(&p);
    if (build_ok(b))
        p.extra = make_extra(&p, NULL);
    for (uint32_t i = 0; i < n && build_ok(b); i++)
        p.wanted[i].entry = make_extra(&p, &wanted[i]);
    for (size_t i = 0; i < p.n_prop && build_ok(b);) /* optional ones that cannot be are left out */
        if (p.props[i].value->kind == EXPR_NEVER && !p.props[i].required)
            memmove(&p.props[i], &p.props[i + 1], (--p.n_prop - i) * sizeof *p.props);
        else
            i++;
    uint32_t n_required = 0;
    for (size_t i = 0; i < p.n_prop; i++)
        n_required += p.props[i].required;
    bool endless = p.extra->kind != EXPR_NEVER || n;
    bool counts = c->props_min > n_required ||
                  (c->props_max != EXPR_INF && (endless || c->props_max < p.n_prop));
    struct constraints loose = *c;
    loose.props_min = 0;
    loose.props_max = EXPR_INF;
    if (build_ok(b)) {
        p.c = counts ? c : &loose;
        inside = list_all(&p, counts);
    }
    q_free(p.props);
    return inside;
}

/* The properties that c wants some of, each as one that is listed or as one of the others; several
 * may be the same one. */
struct ways {
    struct object_parts *p;
    const struct fsm *names[SOME_MAX]; /* NULL: all */
    uint32_t as[SOME_MAX];             /* number of a listed one, or n_prop + number of another */
    uint32_t n_other, n_way;
    struct expr_list out;
};

/* The others of this way; false: it cannot be. */
static bool others_of(struct ways *w, struct wanted *out)
{
    struct build *b = w->p->s->b;
    const struct constraints *c = w->p->c;
    for (uint32_t j = 0; j < c->n_some; j++) {
        struct wanted *o = w->as[j] < w->p->n_prop ? NULL : &out[w->as[j] - w->p->n_prop];
        if (!o)
            continue;
        goal_add(w->p->s, &o->values, json_object_get(c->some[j], "value"));
        if (w->names[j])
            o->names = o->names ? fsm_and(b, o->names, w->names[j]) : w->names[j];
    }
    for (uint32_t i = w->n_other; i-- > 0;) /* no name that one behind it may have */
        for (uint32_t k = i + 1; k < w->n_other && build_ok(b); k++) {
            if (!out[k].names)
                return false;
            out[i].names = fsm_minus(b, out[i].names ? out[i].names : all_names(b), out[k].names);
        }
    for (uint32_t i = 0; i < w->n_other && build_ok(b); i++)
        if (out[i].names && fsm_is_empty(out[i].names))
            return false;
    return build_ok(b);
}

static void add_way(struct ways *w)
{
    struct schema *s = w->p->s;
    struct wanted others[WANTED_MAX] = {{NULL, {NULL, 0, 0}, NULL}};
    if (++w->n_way > SCHEMA_CHOICES_MAX) {
        expr_fail(s->b, Q_TOO_LARGE, "not: more than %u combinations of the required properties",
                  SCHEMA_CHOICES_MAX);
        return;
    }
    struct constraints *c = build_work(s->b, 1000) ? build_alloc(s->b, 1, sizeof *c) : NULL;
    if (!c || !others_of(w, others))
        return;
    *c = *w->p->c;
    c->n_some = 0;
    for (uint32_t j = 0; j < w->p->c->n_some; j++) {
        const json_t *some = w->p->c->some[j];
        if (w->as[j] >= w->p->n_prop)
            continue;
        const char *name = w->p->props[w->as[j]].text;
        const json_t *made =
            schema_make(s, json_pack("{s:{s:O},s:[s]}", "properties", name,
                                     json_object_get(some, "value"), "required", name));
        if (!made || c->n_object == SCHEMA_SOURCES_MAX || c->n_required == SCHEMA_SOURCES_MAX) {
            expr_fail(s->b, Q_TOO_LARGE, "not: too many property schemas apply at once");
            return;
        }
        c->object_chains[c->n_object] = NULL;
        c->objects[c->n_object++] = made;
        c->required[c->n_required++] = json_object_get(made, "required");
    }
    expr_add(s->b, &w->out, object_way(s, c, others, w->n_other));
}

static void take_ways(struct ways *w, uint32_t j)
{
    struct object_parts *p = w->p;
    if (!build_work(p->s->b, 1 + p->n_prop))
        return;
    if (j == p->c->n_some) {
        add_way(w);
        return;
    }
    for (uint32_t k = 0; k < p->n_prop; k++) {
        const char *name = p->props[k].text;
        if (w->names[j] && !fsm_accepts(w->names[j], name, strlen(name)))
            continue;
        w->as[j] = k;
        take_ways(w, j + 1);
    }
    for (uint32_t k = 0; k <= w->n_other && k < WANTED_MAX; k++) {
        uint32_t n_other = w->n_other;
        w->as[j] = (uint32_t)p->n_prop + k;
        w->n_other += k == n_other;
        take_ways(w, j + 1);
        w->n_other = n_other;
    }
}

static const struct expr *with_some(struct schema *s, const struct constraints *c)
{
    struct object_parts p = {.s = s, .c = c};
    struct ways w = {.p = &p};
    make_parts(&p);
    for (uint32_t j = 0; j < c->n_some && build_ok(s->b); j++) {
        bool plain;
        const json_t *names = json_object_get(c->some[j], "names");
        w.names[j] = names_fsm(s, names, s->root, "not", &plain);
    }
    take_ways(&w, 0);
    q_free(p.props);
    return expr_alt(s->b, w.out.items, w.out.n);
}

const struct expr *object_expr(struct schema *s, const struct constraints *c)
{
    struct build *b = s->b;
    const struct expr *inside = c->n_some ? with_some(s, c) : object_way(s, c, NULL, 0);
    inside = expr_seq3(b, schema_ws(s), inside, schema_ws(s));
    return expr_named(b, "", expr_seq3(b, expr_text(b, "{"), inside, expr_text(b, "}")));
}

/* Some property has such a name and such a value. */
static bool has_some(struct schema *s, const json_t *some, const json_t *v)
{
    const char *name;
    json_t *value;
    bool has = false;
    json_object_foreach ((json_t *)v, name, value) {
        json_t *text = json_string(name);
        has = has || (text && schema_holds(s, json_object_get(some, "names"), text) &&
                      schema_holds(s, json_object_get(some, "value"), value));
        json_decref(text);
    }
    return has;
}

bool object_holds(struct schema *s, const struct constraints *c, const json_t *v)
{
    struct object_parts p = {.s = s, .c = c};
    size_t n = json_object_size(v), i;
    const char *name;
    json_t *value, *needed;
    bool holds = n >= c->props_min && n <= c->props_max;
    for (uint32_t k = 0; k < c->n_required && holds; k++)
        json_array_foreach ((json_t *)c->required[k], i, needed)
            holds &= !json_is_string(needed) || json_object_get(v, json_string_value(needed));
    for (uint32_t k = 0; k < c->n_some && holds; k++)
        holds = has_some(s, c->some[k], v);
    list_patterns(&p);
    if (build_ok(s->b))
        list_names(&p);
    json_object_foreach ((json_t *)v, name, value) {
        if (!holds || !build_ok(s->b))
            break;
        holds = !p.names || fsm_accepts(p.names, name, strlen(name));
        const struct goal g = prop_goal(&p, name);
        holds = holds && goal_holds(s, &g, value);
    }
    return holds && build_ok(s->b);
}
