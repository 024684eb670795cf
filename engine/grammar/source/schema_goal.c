/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/source/regex.h"
#include "engine/grammar/source/schema_constraints.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"

#define REFS_MAX        24  /* one behind the other */
#define STRING_WAYS_MAX 32u /* alternatives that are written out */

struct goal_memo {
    const json_t **items; /* [n] sorted */
    size_t n;
    const struct expr *body; /* NULL: being made */
    uint32_t rule;           /* EXPR_INF: none was needed */
    bool begun;
    struct goal_memo *later; /* the next one of those that were put off */
};

const struct expr *schema_fail(struct schema *s, enum q_code code, const json_t *at,
                               const char *keyword, const char *fmt, ...)
{
    char text[Q_MESSAGE_MAX], path[SCHEMA_PATH_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ref_path(s, at, path, sizeof path);
    s->is_placed |= build_ok(s->b);
    return expr_fail(s->b, code, "%s/%s: %s", path, keyword, text);
}

/* The goal failed: put the path of its first schema that is one of the root's before a message
 * without a path. Schemas made of others have none; the goal around them is tried next. */
static void place_failure(struct schema *s, const struct goal *g)
{
    char path[SCHEMA_PATH_MAX];
    for (size_t i = 0; i < g->n && !s->is_placed; i++)
        if (ref_path(s, g->items[i], path, sizeof path)) {
            (void)q_wrap(&s->b->err, "%s", path);
            s->is_placed = true;
        }
}

json_t *schema_make(struct schema *s, json_t *made)
{
    if (!made || json_array_append_new(s->made, made)) {
        expr_fail(s->b, Q_NO_MEMORY, "out of memory for a schema");
        return NULL;
    }
    return made;
}

static size_t made_hash(const void *from, enum made_kind kind)
{
    uint64_t h = ((uintptr_t)from ^ (uint64_t)kind << 56) * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 31);
}

static bool made_room(struct schema *s)
{
    size_t size = s->made_size ? s->made_size * 4 : 256;
    if (s->n_made * 2 < s->made_size)
        return true;
    struct made **mades = build_alloc(s->b, size, sizeof *mades);
    for (size_t i = 0; mades && i < s->made_size; i++) {
        struct made *m = s->mades[i];
        size_t at = m ? made_hash(m->from, m->kind) & (size - 1) : 0;
        while (m && mades[at])
            at = (at + 1) & (size - 1);
        if (m)
            mades[at] = m;
    }
    if (mades) {
        s->mades = mades;
        s->made_size = size;
    }
    return mades != NULL;
}

struct made *schema_made(struct schema *s, const void *from, enum made_kind kind)
{
    if (!made_room(s))
        return NULL;
    size_t at = made_hash(from, kind) & (s->made_size - 1);
    for (; s->mades[at]; at = (at + 1) & (s->made_size - 1))
        if (s->mades[at]->from == from && s->mades[at]->kind == kind)
            return s->mades[at];
    struct made *m = build_alloc(s->b, 1, sizeof *m);
    if (m) {
        *m = (struct made){.from = from, .kind = kind};
        s->mades[at] = m;
        s->n_made++;
    }
    return m;
}

void goal_add(struct schema *s, struct goal *g, const json_t *schema)
{
    /* a reference alone is what it leads to, so that all of them are one goal */
    for (int i = 0; i < REFS_MAX && json_object_size(schema) == 1; i++) {
        const json_t *negated = json_object_get(schema, KEY_NEGATED), *target = NULL;
        if (negated)
            target = schema_not(s, negated);
        else if (json_object_get(schema, "$ref"))
            target = ref_target(s, schema, "$ref");
        if (!target)
            break;
        schema = target;
    }
    if (json_is_true(schema))
        return;
    for (size_t i = 0; i < g->n; i++)
        if (g->items[i] == schema)
            return;
    if (g->n == g->cap) {
        size_t cap = g->cap ? g->cap * 2 : 4;
        const json_t **items = build_alloc(s->b, cap, sizeof *items);
        if (!items)
            return;
        if (g->n)
            memcpy(items, g->items, g->n * sizeof *items);
        g->items = items;
        g->cap = cap;
    }
    size_t at = g->n++;
    for (; at && g->items[at - 1] > schema; at--)
        g->items[at] = g->items[at - 1];
    g->items[at] = schema;
}

const struct expr *schema_ws(struct schema *s)
{
    struct build *b = s->b;
    if (!s->ws) {
        /* What printers of JSON write, and no more: some models never get on from white space. */
        const struct range blanks[] = {{'\t', '\t'}, {' ', ' '}};
        const struct expr *blank = expr_chars(b, cset_of(b, blanks, 2), EXPR_UTF8);
        const struct expr *line = expr_seq3(b, expr_optional(b, expr_text(b, "\r")),
                                            expr_text(b, "\n"), expr_repeat(b, blank, 0, 32));
        s->ws = expr_named(b, "ws", expr_alt2(b, expr_optional(b, blank), line));
    }
    return s->ws;
}

const struct expr *schema_token(struct schema *s, const char *text)
{
    return expr_seq2(s->b, expr_text(s->b, text), schema_ws(s));
}

/* item (, item)* between brackets, or nothing. */
static const struct expr *any_list(struct schema *s, const char *open, const struct expr *item,
                                   const char *close)
{
    struct build *b = s->b;
    const struct expr *more = expr_repeat(b, expr_seq2(b, schema_token(s, ","), item), 0, EXPR_INF);
    const struct expr *list = expr_seq3(b, item, more, schema_ws(s));
    return expr_named(b, "",
                      expr_seq3(b, expr_text(b, open),
                                expr_seq2(b, schema_ws(s), expr_optional(b, list)),
                                expr_text(b, close)));
}

const struct expr *schema_any(struct schema *s)
{
    struct build *b = s->b;
    if (!s->any) {
        uint32_t rule = expr_rule_new(b, "value");
        s->any = expr_ref(b, rule);
        struct constraints c;
        constraints_init(&c);
        const struct expr *string = string_expr(s, &c);
        const struct expr *entry = expr_seq3(b, string, schema_token(s, ":"), s->any);
        const struct expr *kinds[] = {expr_text(b, "null"),
                                      expr_text(b, "true"),
                                      expr_text(b, "false"),
                                      number_expr(s, &c),
                                      string,
                                      any_list(s, "[", s->any, "]"),
                                      any_list(s, "{", entry, "}")};
        if (build_ok(b))
            b->rules[rule].body = expr_alt(b, kinds, sizeof kinds / sizeof *kinds);
    }
    return s->any;
}

static int add_piece(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0;
}

/* v as JSON writes it, without a choice. */
static const struct expr *dumped(struct schema *s, const json_t *v)
{
    struct buf json = BUF_INIT;
    int failed = json_dump_callback(v, add_piece, &json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    const struct expr *x =
        failed || json.failed
            ? expr_fail(s->b, Q_NO_MEMORY, "out of memory for a value of the schema")
            : expr_bytes(s->b, json.data, json.len);
    buf_release(&json);
    return x;
}

const struct expr *schema_quoted(struct schema *s, const char *text, size_t n)
{
    json_t *v = json_stringn(text, n);
    const struct expr *x =
        v ? dumped(s, v) : expr_fail(s->b, Q_INVALID, "a string of the schema is not UTF-8");
    json_decref(v);
    return x;
}

const struct expr *schema_value(struct schema *s, const json_t *v)
{
    struct build *b = s->b;
    struct expr_list l = {0};
    size_t i, n = 0;
    json_t *item;
    const char *key;
    if (json_is_array(v)) {
        expr_add(b, &l, expr_seq2(b, expr_text(b, "["), schema_ws(s)));
        json_array_foreach ((json_t *)v, i, item) {
            expr_add(b, &l, i ? schema_token(s, ",") : &expr_empty);
            expr_add(b, &l, schema_value(s, item));
        }
        expr_add(b, &l, i ? schema_ws(s) : &expr_empty);
        expr_add(b, &l, expr_text(b, "]"));
        return expr_seq(b, l.items, l.n);
    }
    if (json_is_object(v)) {
        expr_add(b, &l, expr_seq2(b, expr_text(b, "{"), schema_ws(s)));
        json_object_foreach ((json_t *)v, key, item) {
            expr_add(b, &l, n++ ? schema_token(s, ",") : &expr_empty);
            expr_add(b, &l, schema_quoted(s, key, strlen(key)));
            expr_add(b, &l, schema_token(s, ":"));
            expr_add(b, &l, schema_value(s, item));
        }
        expr_add(b, &l, n ? schema_ws(s) : &expr_empty);
        expr_add(b, &l, expr_text(b, "}"));
        return expr_seq(b, l.items, l.n);
    }
    return json_is_number(v) ? number_value(s, v, false) : dumped(s, v);
}

uint32_t schema_type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return T_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return T_BOOL;
    case JSON_INTEGER:
        return T_INTEGER;
    case JSON_REAL:
        return json_real_value(v) == floor(json_real_value(v)) ? T_INTEGER : T_FRACTION;
    case JSON_STRING:
        return T_STRING;
    case JSON_ARRAY:
        return T_ARRAY;
    default:
        return T_OBJECT;
    }
}

bool schema_same(const json_t *x, const json_t *y)
{
    size_t i, n = json_array_size(x);
    json_t *v;
    const char *key;
    if (json_is_number(x) && json_is_number(y))
        return json_number_value(x) == json_number_value(y);
    if (json_is_array(x) && json_is_array(y)) {
        for (i = 0; i < n && n == json_array_size(y); i++)
            if (!schema_same(json_array_get(x, i), json_array_get(y, i)))
                return false;
        return n == json_array_size(y);
    }
    if (json_is_object(x) && json_is_object(y)) {
        json_object_foreach ((json_t *)x, key, v)
            if (!json_object_get(y, key) || !schema_same(v, json_object_get(y, key)))
                return false;
        return json_object_size(x) == json_object_size(y);
    }
    return json_equal(x, y);
}

static bool is_in(struct schema *s, const json_t *list, const json_t *v)
{
    size_t i;
    json_t *item;
    if (!build_work(s->b, 1 + json_array_size(list) / 2))
        return false;
    json_array_foreach ((json_t *)list, i, item)
        if (schema_same(item, v))
            return true;
    return false;
}

bool constraints_allows(struct schema *s, const struct constraints *c, const json_t *v,
                        struct string_test *t)
{
    if (!(c->types & schema_type_of(v)))
        return false;
    for (uint32_t i = 1; i < c->n_in; i++) /* v is of the first one */
        if (!is_in(s, c->in[i], v))
            return false;
    for (uint32_t i = 0; i < c->n_not_in; i++)
        if (is_in(s, c->not_in[i], v))
            return false;
    if (json_is_number(v))
        return number_holds(c, v);
    if (json_is_string(v))
        return string_holds(s, c, t, json_string_value(v), json_string_length(v));
    if (json_is_array(v))
        return array_holds(s, c, v);
    return !json_is_object(v) || object_holds(s, c, v);
}

/* c with this option of a choice of its own; false: no memory. */
static bool take_option(struct schema *s, struct constraints *next, const struct constraints *c,
                        const struct choice *pick, const json_t *option)
{
    struct chain *chain = build_alloc(s->b, 1, sizeof *chain);
    if (!chain)
        return false;
    *chain =
        (struct chain){.up = pick->chain, .depth = chain_inside(pick->chain), .is_choice = true};
    *next = *c;
    constraints_add(s, next, option, chain);
    constraints_prune(s, next);
    return true;
}

/* Room for such conjs, by q_free; NULL: failed. */
static struct constraints *constraints_new(struct schema *s)
{
    struct constraints *c = build_work(s->b, 200) ? q_alloc(sizeof *c) : NULL;
    if (!c)
        expr_fail(s->b, Q_NO_MEMORY, "out of memory for a schema");
    return c;
}

/* Some way to take the open choices allows v. */
static bool any_allows(struct schema *s, struct constraints *c, const json_t *v)
{
    struct string_test test = {NULL, false, false};
    size_t i;
    json_t *option;
    bool holds = false;
    if (!build_work(s->b, 200) || c->dead)
        return false;
    if (c->n_choice == 0)
        return (!c->n_in || is_in(s, c->in[0], v)) && constraints_allows(s, c, v, &test);
    const struct choice pick = c->choices[--c->n_choice];
    struct constraints *next = constraints_new(s);
    json_array_foreach ((json_t *)pick.options, i, option) {
        if (holds || !next || !take_option(s, next, c, &pick, option))
            break;
        holds = any_allows(s, next, v);
    }
    q_free(next);
    return holds;
}

bool goal_holds(struct schema *s, const struct goal *g, const json_t *v)
{
    struct constraints *c = constraints_new(s);
    bool holds = false;
    if (!c || ++s->depth > EXPR_DEPTH_MAX) {
        expr_fail(s->b, Q_TOO_LARGE, "the schema is nested more than %u deep", EXPR_DEPTH_MAX);
    } else {
        constraints_init(c);
        for (size_t i = 0; i < g->n; i++)
            constraints_add(s, c, g->items[i], NULL);
        holds = any_allows(s, c, v) && build_ok(s->b);
        s->depth--;
    }
    q_free(c);
    return holds;
}

bool schema_holds(struct schema *s, const json_t *schema, const json_t *v)
{
    struct goal g = {0};
    goal_add(s, &g, schema);
    return goal_holds(s, &g, v);
}

/* A value of an enum beside the rest of the conj: numbers in each way to write them. */
static const struct expr *listed_expr(struct schema *s, const struct constraints *c,
                                      const json_t *v)
{
    return json_is_number(v) ? number_value(s, v, !(c->types & T_FRACTION)) : schema_value(s, v);
}

static const struct expr *enum_expr(struct schema *s, const struct constraints *c)
{
    struct string_test test = {NULL, false, false};
    struct expr_list l = {0};
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)c->in[0], i, v)
        if (constraints_allows(s, c, v, &test))
            expr_add(s->b, &l, listed_expr(s, c, v));
    return expr_alt(s->b, l.items, l.n);
}

static bool unconstrained(const struct constraints *c)
{
    return c->types == T_ANY && !c->n_not_in && !c->low.is_set && !c->high.is_set &&
           !c->n_multiple && !c->n_pattern && !c->n_format && c->length_min == 0 &&
           c->length_max == EXPR_INF && c->items_min == 0 && c->items_max == EXPR_INF &&
           c->props_min == 0 && c->props_max == EXPR_INF && !c->n_array && !c->n_object &&
           !c->n_required && !c->n_some;
}

/* Excluded arrays and objects that could not be taken apart: none of the kind may come. Strings and
 * numbers are taken out one by one. */
static uint32_t left_types(const struct constraints *c)
{
    uint32_t types = c->types;
    size_t i;
    json_t *v;
    for (uint32_t k = 0; k < c->n_not_in; k++)
        json_array_foreach ((json_t *)c->not_in[k], i, v)
            if (json_is_null(v) || json_is_array(v) || json_is_object(v))
                types &= ~schema_type_of(v);
    return types;
}

static bool excludes(const struct constraints *c, bool value)
{
    for (uint32_t k = 0; k < c->n_not_in; k++) {
        size_t i;
        json_t *v;
        json_array_foreach ((json_t *)c->not_in[k], i, v)
            if (json_is_boolean(v) && json_is_true(v) == value)
                return true;
    }
    return false;
}

/* A conj without open choices. */
static const struct expr *constraints_expr(struct schema *s, const struct constraints *c)
{
    struct build *b = s->b;
    struct expr_list l = {0};
    if (c->dead || !build_ok(b))
        return &expr_never;
    if (c->n_in)
        return enum_expr(s, c);
    if (unconstrained(c))
        return schema_any(s);
    uint32_t types = left_types(c);
    if (types & T_NULL)
        expr_add(b, &l, expr_text(b, "null"));
    if (types & T_BOOL && !excludes(c, true))
        expr_add(b, &l, expr_text(b, "true"));
    if (types & T_BOOL && !excludes(c, false))
        expr_add(b, &l, expr_text(b, "false"));
    struct constraints part = *c;
    part.types = types;
    if (types & T_NUMBER)
        expr_add(b, &l, number_expr(s, &part));
    if (types & T_STRING)
        expr_add(b, &l, string_expr(s, c));
    if (types & T_ARRAY)
        expr_add(b, &l, array_expr(s, c));
    if (types & T_OBJECT)
        expr_add(b, &l, object_expr(s, c));
    return expr_alt(b, l.items, l.n);
}

/* The values of an enum that some way to take the open choices allows. */
static const struct expr *enum_union_expr(struct schema *s, const struct constraints *c)
{
    struct constraints *way = constraints_new(s);
    struct expr_list l = {0};
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)c->in[0], i, v) {
        if (!way)
            break;
        *way = *c;
        if (any_allows(s, way, v))
            expr_add(s->b, &l, listed_expr(s, c, v));
    }
    q_free(way);
    return expr_alt(s->b, l.items, l.n);
}

/* Take the last open choice in each way; all of them end in `out`. */
static void choose(struct schema *s, struct constraints *c, struct expr_list *out, uint32_t *n_left)
{
    if (!build_ok(s->b) || c->dead)
        return;
    if (c->n_choice && c->n_in) {
        expr_add(s->b, out, enum_union_expr(s, c));
        return;
    }
    if (c->n_choice == 0) {
        if ((*n_left)-- == 0) {
            expr_fail(s->b, Q_TOO_LARGE,
                      "anyOf, oneOf and the like combine to more than %u alternatives",
                      SCHEMA_CHOICES_MAX);
            return;
        }
        expr_add(s->b, out, constraints_expr(s, c));
        return;
    }
    const struct choice pick = c->choices[--c->n_choice];
    struct constraints *next = constraints_new(s);
    size_t i;
    json_t *option;
    json_array_foreach ((json_t *)pick.options, i, option) {
        if (!next || !take_option(s, next, c, &pick, option))
            break;
        choose(s, next, out, n_left);
    }
    q_free(next);
}

/* Count the alternatives of the types that c has, down from *n_left. */
static void count_ways(struct schema *s, struct constraints *c, uint32_t *n_left)
{
    size_t i;
    json_t *option;
    if (c->dead || !build_ok(s->b))
        return;
    if (!c->n_choice) {
        --*n_left;
        return;
    }
    const struct choice pick = c->choices[--c->n_choice];
    struct constraints *next = constraints_new(s);
    json_array_foreach ((json_t *)pick.options, i, option) {
        if (!*n_left || !next || !take_option(s, next, c, &pick, option))
            break;
        count_ways(s, next, n_left);
    }
    q_free(next);
}

/* Strings of many alternatives: no option depends on another one, so that each choice is made an
 * automaton of its own, and the product of the choices is not written out. */
static const struct expr *take_strings(struct schema *s, struct constraints *c)
{
    uint32_t n_left = STRING_WAYS_MAX;
    if (!(c->types & T_STRING) || c->dead || c->n_choice < 2)
        return &expr_never;
    struct constraints *strings = constraints_new(s);
    if (strings) {
        *strings = *c;
        strings->types = T_STRING;
        count_ways(s, strings, &n_left);
    }
    q_free(strings);
    if (n_left || !build_ok(s->b))
        return &expr_never;
    c->types &= ~(uint32_t)T_STRING;
    c->dead |= c->types == 0;
    return string_union_expr(s, c);
}

static const struct expr *make_goal(struct schema *s, const struct goal *g)
{
    struct constraints *c = build_alloc(s->b, 1, sizeof *c);
    struct expr_list out = {0};
    uint32_t n_left = SCHEMA_CHOICES_MAX;
    if (!c)
        return &expr_never;
    constraints_init(c);
    for (size_t i = 0; i < g->n; i++)
        constraints_add(s, c, g->items[i], NULL);
    constraints_prune(s, c);
    expr_add(s->b, &out, take_strings(s, c));
    choose(s, c, &out, &n_left);
    return expr_alt(s->b, out.items, out.n);
}

static size_t goal_hash(const struct goal *g)
{
    uint64_t h = g->n;
    for (size_t i = 0; i < g->n; i++)
        h = (h ^ (uintptr_t)g->items[i]) * 0x9E3779B97F4A7C15u >> 3;
    return (size_t)(h ^ h >> 31);
}

static bool memo_room(struct schema *s)
{
    size_t size = s->memo_size ? s->memo_size * 4 : 512;
    if (s->n_memo * 2 < s->memo_size)
        return true;
    if (s->n_memo >= SCHEMA_GOALS_MAX)
        expr_fail(s->b, Q_TOO_LARGE, "the schema is too large: it has more than %u different parts",
                  SCHEMA_GOALS_MAX);
    struct goal_memo **memos = build_alloc(s->b, size, sizeof *memos);
    for (size_t i = 0; memos && i < s->memo_size; i++) {
        const struct goal_memo *m = s->memos[i];
        if (!m)
            continue;
        const struct goal g = {m->items, m->n, 0};
        size_t at = goal_hash(&g) & (size - 1);
        while (memos[at])
            at = (at + 1) & (size - 1);
        memos[at] = s->memos[i];
    }
    s->memos = memos;
    s->memo_size = size;
    return memos != NULL;
}

static struct goal_memo *memo_of(struct schema *s, const struct goal *g)
{
    if (!memo_room(s))
        return NULL;
    size_t at = goal_hash(g) & (s->memo_size - 1);
    for (; s->memos[at]; at = (at + 1) & (s->memo_size - 1))
        if (s->memos[at]->n == g->n &&
            !memcmp(s->memos[at]->items, g->items, g->n * sizeof *g->items))
            return s->memos[at];
    struct goal_memo *m = build_alloc(s->b, 1, sizeof *m);
    if (m) {
        *m = (struct goal_memo){.items = g->items, .n = g->n, .rule = EXPR_INF};
        s->memos[at] = m;
        s->n_memo++;
    }
    return m;
}

/* References lead from one schema to the next without end, the stack has one: the goal becomes a
 * rule whose body is made when the goals that it was met in are done. */
static const struct expr *put_off(struct schema *s, struct goal_memo *m)
{
    m->rule = expr_rule_new(s->b, "");
    m->body = expr_ref(s->b, m->rule);
    m->later = s->later;
    s->later = m;
    return m->body;
}

static void make_later(struct schema *s)
{
    while (s->later && build_ok(s->b)) {
        struct goal_memo *m = s->later;
        s->later = m->later;
        const struct goal g = {.items = m->items, .n = m->n};
        const struct expr *body = make_goal(s, &g);
        if (build_ok(s->b))
            s->b->rules[m->rule].body = body;
        else
            place_failure(s, &g);
    }
}

const struct expr *schema_goal(struct schema *s, const struct goal *g)
{
    struct build *b = s->b;
    for (size_t i = 0; i < g->n; i++)
        if (json_is_false(g->items[i]))
            return &expr_never;
    if (g->n == 0)
        return schema_any(s);
    struct goal_memo *m = build_ok(b) ? memo_of(s, g) : NULL;
    if (!m)
        return &expr_never;
    if (m->begun) {
        if (m->body)
            return m->body;
        if (m->rule == EXPR_INF)
            m->rule = expr_rule_new(b, "");
        return expr_ref(b, m->rule);
    }
    m->begun = true;
    if (s->depth >= SCHEMA_INSIDE_MAX)
        return put_off(s, m);
    s->depth++;
    const struct expr *body = make_goal(s, g);
    s->depth--;
    if (!build_ok(b))
        place_failure(s, g);
    if (m->rule != EXPR_INF) { /* something inside refers to it */
        if (build_ok(b))
            b->rules[m->rule].body = body;
        m->body = expr_ref(b, m->rule);
    } else {
        m->body = body->weight < 24 ? body : expr_named(b, "", body);
    }
    return m->body;
}

const struct expr *schema_one(struct schema *s, const json_t *schema)
{
    struct goal g = {0};
    goal_add(s, &g, schema);
    return schema_goal(s, &g);
}

static bool is_old_draft(const json_t *root)
{
    const char *draft = json_string_value(json_object_get(root, "$schema"));
    return draft && (strstr(draft, "draft-07") || strstr(draft, "draft-06") ||
                     strstr(draft, "draft-04") || strstr(draft, "draft-03"));
}

const struct expr *schema_ws_pattern(struct build *b, const char *pattern, size_t n)
{
    static const struct range blanks[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    const struct cset *space = cset_of(b, blanks, 3);
    const struct fsm *f =
        regex_fsm(b, &(struct regex_text){.s = pattern, .n = n, .where = "white space pattern"});
    for (uint32_t i = 0; f && i < f->n_edge; i++)
        for (uint32_t c = f->edges[i].lo; c <= f->edges[i].hi; c++)
            if (!cset_has(space, c))
                return expr_fail(
                    b, Q_INVALID,
                    "white space pattern: it matches more than blanks, tabs, line feeds "
                    "and carriage returns");
    if (f && fsm_is_empty(f))
        return expr_fail(b, Q_INVALID, "white space pattern: no text matches it");
    return f ? expr_named(b, "ws", expr_fsm(b, f, EXPR_UTF8)) : &expr_never;
}

const struct expr *schema_expr(struct build *b, const json_t *root, const struct expr *ws,
                               const char *base)
{
    struct schema s = {
        .b = b,
        .root = root,
        .ws = ws,
        .base = base,
        .old_ref = is_old_draft(root),
    };
    s.made = json_array();
    const struct expr *x = &expr_never;
    if (!json_is_object(root) && !json_is_boolean(root)) {
        expr_fail(b, Q_INVALID, "expected a schema (an object, true or false)");
    } else if (s.made) {
        ref_index_new(&s);
        x = build_ok(b) ? schema_one(&s, root) : &expr_never;
        make_later(&s);
    }
    if (!s.made)
        expr_fail(b, Q_NO_MEMORY, "out of memory for a schema");
    ref_index_free(s.refs);
    json_decref(s.made);
    return x;
}
