/* SPDX-License-Identifier: Apache-2.0 */
/* Objects: the listed properties in the schema's order, each at most once, then others. What names
 * the others may have is an automaton: every name that is not listed, cut by the patterns of
 * patternProperties into sets whose values have the same schemas.
 *
 * The comma belongs to the property behind it, so the first one is special. Rules follow each other
 * along the list: `rest[i]` reads what may come from property i on when something came before. With
 * minProperties or maxProperties there is such a rule for each number of properties so far. */
#include <string.h>
#include "engine/grammar/regex.h"
#include "engine/grammar/schema.h"

#define PATTERNS_MAX 12u
#define PROPS_MAX    5000u

struct prop {
    const char *name;
    bool required;
    const struct gx *entry; /* "name": value; NEVER when it cannot be */
};
struct object_parts {
    struct schema *s;
    const struct conj *c;
    struct prop *props; /* [n_prop] */
    size_t n_prop, cap;
    const struct fsm *names; /* what all names must be; NULL: anything */
    const json_t *patterns[PATTERNS_MAX], *pattern_schemas[PATTERNS_MAX];
    uint32_t pattern_source[PATTERNS_MAX];
    const struct fsm *pattern_fsms[PATTERNS_MAX];
    uint32_t n_pattern;
    const struct gx *extra; /* one property that is not listed; NEVER: there is none */
    const struct gx *comma;
};

static struct prop *find(struct object_parts *p, const char *name)
{
    for (size_t i = 0; i < p->n_prop; i++)
        if (!strcmp(p->props[i].name, name))
            return &p->props[i];
    return NULL;
}

static void list_prop(struct object_parts *p, const char *name, bool required)
{
    struct prop *old = find(p, name);
    struct q_err e = Q_ERR_INIT;
    if (old) {
        old->required |= required;
        return;
    }
    if (!build_work(p->s->b, p->n_prop / 16 + 1) ||
        q_grow(&p->props, &p->cap, p->n_prop + 1, sizeof *p->props, PROPS_MAX, &e)) {
        gx_fail(p->s->b, Q_TOO_LARGE, "properties: more than %u of one object", PROPS_MAX);
        return;
    }
    p->props[p->n_prop++] = (struct prop){name, required, NULL};
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
                .s = pattern, .n = strlen(pattern), .search = true, .where = "patternProperties"};
            uint32_t n = p->n_pattern;
            p->pattern_source[n] = i;
            p->pattern_schemas[n] = v;
            if (!(p->pattern_fsms[n] = regex_fsm(p->s->b, &r)))
                return;
            p->n_pattern++;
        }
}

/* propertyNames: a goal whose strings are the names. */
static void list_names(struct object_parts *p)
{
    struct schema *s = p->s;
    for (uint32_t i = 0; i < p->c->n_object && build_ok(s->b); i++) {
        const json_t *v = json_object_get(p->c->objects[i], "propertyNames");
        bool plain = false;
        if (!v || json_is_true(v))
            continue;
        struct conj *c = build_alloc(s->b, 1, sizeof *c);
        if (!c)
            return;
        conj_init(c);
        conj_add(s, c, v, NULL);
        const struct fsm *f = NULL;
        if (c->n_choice) {
            schema_fail(s, Q_UNSUPPORTED, p->c->objects[i], "propertyNames",
                        "choices (anyOf, oneOf, if) are not supported here");
        } else if (c->dead || !(c->types & T_STRING)) {
            f = fsm_of_chars(s->b, &gx_never, "propertyNames");
        } else if (c->n_in) {
            struct gx_list l = {0};
            struct string_test test = {NULL, false, false};
            size_t k;
            json_t *name;
            json_array_foreach ((json_t *)c->in[0], k, name)
                if (json_is_string(name) &&
                    string_holds(s, c, &test, json_string_value(name), json_string_length(name)))
                    gx_add(s->b, &l,
                           gx_bytes(s->b, json_string_value(name), json_string_length(name)));
            f = fsm_of_chars(s->b, gx_alt(s->b, l.items, l.n), "propertyNames");
        } else {
            f = string_fsm(s, c, &plain);
        }
        if (f && !plain)
            p->names = p->names ? fsm_and(s->b, p->names, f) : f;
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
            looked_at |= (known[k] || all) && conj_sees(p->c->objects[i], p->c->object_chains[k]);
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

static const struct gx *entry(struct object_parts *p, const struct gx *name, const struct gx *value)
{
    return gx_seq3(p->s->b, name, schema_token(p->s, ":"), value);
}

static void make_entries(struct object_parts *p)
{
    struct schema *s = p->s;
    for (size_t i = 0; i < p->n_prop && build_ok(s->b); i++) {
        struct prop *q = &p->props[i];
        const char *name = q->name;
        if (p->names && !fsm_accepts(p->names, name, strlen(name))) {
            q->entry = &gx_never;
            continue;
        }
        const struct goal value = prop_goal(p, name);
        p->props[i].entry = entry(p, schema_quoted(s, name, strlen(name)), schema_goal(s, &value));
    }
}

/* Names that are not listed and match exactly the patterns of `set`; NULL: all names. */
static const struct fsm *names_of(struct object_parts *p, uint32_t set)
{
    struct build *b = p->s->b;
    struct gx_list l = {0};
    const struct fsm *f = p->names;
    for (uint32_t k = 0; k < p->n_pattern; k++)
        if (set >> k & 1)
            f = f ? fsm_and(b, f, p->pattern_fsms[k]) : p->pattern_fsms[k];
    for (size_t i = 0; i < p->n_prop; i++)
        gx_add(b, &l, gx_text(b, p->props[i].name));
    if (!f && (p->n_prop || p->n_pattern))
        f = fsm_of_chars(b, gx_repeat(b, gx_chars(b, &cset_any, GX_UTF8), 0, GX_INF), "a name");
    if (p->n_prop && f)
        f = fsm_minus(b, f, fsm_of_chars(b, gx_alt(b, l.items, l.n), "properties"));
    for (uint32_t k = 0; k < p->n_pattern && f; k++)
        if (!(set >> k & 1))
            f = fsm_minus(b, f, p->pattern_fsms[k]);
    return f;
}

static const struct gx *extra_of(struct object_parts *p, uint32_t set)
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
    for (size_t i = 0; i < g.n; i++)
        if (json_is_false(g.items[i]))
            return &gx_never;
    const struct fsm *names = names_of(p, set);
    if (names && fsm_is_empty(names))
        return &gx_never;
    struct conj any;
    conj_init(&any);
    const struct gx *quote = gx_text(s->b, "\"");
    const struct gx *name =
        names ? gx_named(s->b, "", gx_seq3(s->b, quote, gx_fsm(s->b, names, GX_JSON), quote))
              : string_gx(s, &any);
    return build_ok(s->b) ? entry(p, name, schema_goal(s, &g)) : &gx_never;
}

/* Few patterns: every set of them. Many: names that match two of them are left out. */
static void make_extra(struct object_parts *p)
{
    struct gx_list l = {0};
    uint32_t n = p->n_pattern;
    if (n <= 3) {
        for (uint32_t set = 0; set < 1u << n && build_ok(p->s->b); set++)
            gx_add(p->s->b, &l, extra_of(p, set));
    } else {
        gx_add(p->s->b, &l, extra_of(p, 0));
        for (uint32_t k = 0; k < n && build_ok(p->s->b); k++)
            gx_add(p->s->b, &l, extra_of(p, 1u << k));
    }
    p->extra = gx_alt(p->s->b, l.items, l.n);
}

/* Others behind the listed ones, when `have` properties are there (known: it is known exactly). */
static const struct gx *extras(struct object_parts *p, uint32_t have)
{
    struct build *b = p->s->b;
    const struct conj *c = p->c;
    uint32_t need = c->props_min > have ? c->props_min - have : 0;
    uint32_t left = c->props_max == GX_INF ? GX_INF : c->props_max > have ? c->props_max - have : 0;
    if (c->props_max < have || need > left)
        return &gx_never;
    if (need > 1 && p->extra->kind != GX_NEVER) /* two others might have the same name */
        return schema_fail(p->s, Q_UNSUPPORTED, c->n_object ? c->objects[0] : p->s->root,
                           "minProperties",
                           "more than one property beyond those in \"properties\" cannot be asked "
                           "for");
    if (p->extra->kind == GX_NEVER || left == 0)
        return need ? &gx_never : &gx_empty;
    const struct gx *more = gx_seq2(b, p->comma, p->extra);
    if (have)
        return gx_repeat(b, more, need, left);
    const struct gx *list =
        gx_seq2(b, p->extra, gx_repeat(b, more, 0, left == GX_INF ? GX_INF : left - 1));
    return need ? list : gx_alt2(b, list, &gx_empty);
}

/* Without counting: the listed ones from i on behind another one, then others. Flat, so that one
 * automaton reads it. */
static const struct gx *rest_from(struct object_parts *p, size_t i)
{
    struct build *b = p->s->b;
    struct gx_list l = {0};
    for (; i < p->n_prop; i++) {
        const struct gx *x = gx_seq2(b, p->comma, p->props[i].entry);
        gx_add(b, &l, p->props[i].required ? x : gx_optional(b, x));
    }
    gx_add(b, &l, extras(p, 1));
    return gx_seq(b, l.items, l.n);
}

static const struct gx *uncounted(struct object_parts *p)
{
    struct build *b = p->s->b;
    struct gx_list l = {0};
    size_t n = p->n_prop, n_first = 0;
    while (n_first < n && !p->props[n_first].required)
        n_first++;
    if (n_first == 0 && n)
        return gx_seq2(b, p->props[0].entry, rest_from(p, 1));
    /* rest[i] for every i that the first property may leave; each is the next one's beginning. */
    size_t last = n_first < n ? n_first + 1 : n;
    const struct gx *rest = gx_named(b, "", rest_from(p, last));
    if (n_first < n)
        gx_add(b, &l, gx_seq2(b, p->props[n_first].entry, rest));
    else
        gx_add(b, &l, extras(p, 0));
    for (size_t i = last; i-- > 0;) {
        const struct prop *q = &p->props[i];
        if (i < n_first)
            gx_add(b, &l, gx_seq2(b, q->entry, rest));
        const struct gx *here = gx_seq2(b, p->comma, q->entry);
        rest = gx_named(b, "", gx_seq2(b, q->required ? here : gx_optional(b, here), rest));
    }
    return gx_alt(b, l.items, l.n);
}

/* With counting: a rule for each property and number so far, from the last one backwards. */
static const struct gx *counted(struct object_parts *p)
{
    struct build *b = p->s->b;
    const struct conj *c = p->c;
    uint32_t n = (uint32_t)p->n_prop, top = n; /* more so far make no difference */
    if (c->props_max == GX_INF)
        top = c->props_min < n ? c->props_min : n;
    if (top == 0)
        top = 1;
    if (!build_work(b, (uint64_t)n * top) || (uint64_t)n * top > 100000)
        return gx_fail(b, Q_TOO_LARGE, "minProperties or maxProperties beside %u properties", n);
    const struct gx **rest = build_alloc(b, top + 2, sizeof *rest); /* by number so far */
    for (uint32_t have = 0; rest && have <= top; have++)
        rest[have] = extras(p, have);
    for (uint32_t i = n; rest && i-- > 0;) {
        const struct prop *q = &p->props[i];
        for (uint32_t have = 0; have <= i && have <= top && build_ok(b); have++) {
            const struct gx *next = rest[have < top ? have + 1 : top];
            const struct gx *with = have < c->props_max
                                        ? gx_seq3(b, have ? p->comma : &gx_empty, q->entry, next)
                                        : &gx_never;
            const struct gx *x = q->required ? with : gx_alt2(b, with, rest[have]);
            rest[have] = x->weight > 8 ? gx_named(b, "", x) : x;
        }
    }
    return rest && build_ok(b) ? rest[0] : &gx_never;
}

const struct gx *object_gx(struct schema *s, const struct conj *c)
{
    struct build *b = s->b;
    struct object_parts p = {.s = s, .c = c, .comma = schema_token(s, ","), .extra = &gx_never};
    const struct gx *inside = &gx_never;
    list_props(&p);
    list_patterns(&p);
    if (build_ok(b))
        list_names(&p);
    if (build_ok(b))
        make_entries(&p);
    if (build_ok(b))
        make_extra(&p);
    for (size_t i = 0; i < p.n_prop && build_ok(b);) /* optional ones that cannot be are left out */
        if (p.props[i].entry->kind == GX_NEVER && !p.props[i].required)
            memmove(&p.props[i], &p.props[i + 1], (--p.n_prop - i) * sizeof *p.props);
        else
            i++;
    uint32_t n_required = 0;
    for (size_t i = 0; i < p.n_prop; i++)
        n_required += p.props[i].required;
    bool endless = p.extra->kind != GX_NEVER;
    bool counts = c->props_min > (n_required ? n_required : 0) ||
                  (c->props_max != GX_INF && (endless || c->props_max < p.n_prop));
    struct conj loose = *c;
    loose.props_min = 0;
    loose.props_max = GX_INF;
    if (build_ok(b)) {
        p.c = counts ? c : &loose;
        inside = counts ? counted(&p) : uncounted(&p);
    }
    q_free(p.props);
    inside = gx_seq3(b, schema_ws(s), inside, schema_ws(s));
    return gx_named(b, "", gx_seq3(b, gx_text(b, "{"), inside, gx_text(b, "}")));
}

bool object_holds(struct schema *s, const struct conj *c, const json_t *v)
{
    struct object_parts p = {.s = s, .c = c};
    size_t n = json_object_size(v), i;
    const char *name;
    json_t *value, *needed;
    bool holds = n >= c->props_min && n <= c->props_max;
    for (uint32_t k = 0; k < c->n_required && holds; k++)
        json_array_foreach ((json_t *)c->required[k], i, needed)
            holds &= !json_is_string(needed) || json_object_get(v, json_string_value(needed));
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
