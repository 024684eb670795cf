/* SPDX-License-Identifier: Apache-2.0 */
/* Strings. A single constraint keeps its form (a length is a counted loop of any size); several
 * become automata over code points, whose product is used. */
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/utf8.h"
#include "engine/grammar/source/regex.h"
#include "engine/grammar/source/schema_constraints.h"

static const struct format {
    const char *name, *pattern;
} formats[] = {
#define FORMAT(name, pattern) {name, pattern},
#include "engine/grammar/source/formats.def"
};

static const char *format_pattern(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].name, name))
            return formats[i].pattern;
    return NULL;
}

/* Any character inside quotes, in each way that JSON writes it, but for lone surrogates. */
static const struct expr *any_character(struct schema *s)
{
    static const struct range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, EXPR_CHAR_MAX}};
    static const struct range simple[] = {
        {'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 'b'},
        {'f', 'f'}, {'n', 'n'}, {'r', 'r'},   {'t', 't'},
    };
    static const struct range hex[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    static const struct range no_d[] = {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
    static const struct range d[] = {{'D', 'D'}, {'d', 'd'}}, low[] = {{'0', '7'}};
    static const struct range high[] = {{'8', '9'}, {'A', 'B'}, {'a', 'b'}};
    static const struct range last[] = {{'C', 'F'}, {'c', 'f'}};
    struct build *b = s->b;
    if (s->character)
        return s->character;
#define SET(ranges) expr_chars(b, cset_of(b, ranges, sizeof(ranges) / sizeof *(ranges)), EXPR_UTF8)
    const struct expr *digit = SET(hex), *two = expr_repeat(b, digit, 2, 2);
    const struct expr *three = expr_repeat(b, digit, 3, 3), *u = expr_text(b, "u"), *is_d = SET(d);
    const struct expr *pair = expr_seq3(b, expr_seq3(b, is_d, SET(high), two), expr_text(b, "\\u"),
                                        expr_seq3(b, is_d, SET(last), two));
    const struct expr *escapes[] = {SET(simple), expr_seq3(b, u, SET(no_d), three),
                                    expr_seq3(b, u, is_d, expr_seq2(b, SET(low), two)),
                                    expr_seq2(b, u, pair)};
#undef SET
    const struct expr *escape = expr_seq2(b, expr_text(b, "\\"), expr_alt(b, escapes, 4));
    s->character = expr_alt2(b, expr_chars(b, cset_of(b, plain, 3), EXPR_UTF8), escape);
    return s->character;
}

static const struct expr *quote(struct schema *s, const struct expr *inside)
{
    const struct expr *mark = expr_text(s->b, "\"");
    return expr_seq3(s->b, mark, inside, mark);
}

static const struct fsm *all_texts(struct build *b)
{
    return fsm_of_chars(b, expr_repeat(b, expr_chars(b, &cset_any, EXPR_UTF8), 0, EXPR_INF),
                        "string");
}

static void use_pattern(struct schema *s, const struct fsm **f, struct regex_text r, bool is_not)
{
    const struct fsm *g = regex_fsm(s->b, &r);
    if (!g || !build_ok(s->b))
        *f = NULL;
    else if (is_not)
        *f = fsm_minimal(s->b, fsm_minus(s->b, *f ? *f : all_texts(s->b), g));
    else
        *f = *f ? fsm_minimal(s->b, fsm_and(s->b, *f, g)) : g;
}

static const struct fsm *words_fsm(struct schema *s, const struct constraints *c)
{
    struct expr_list l = {0};
    for (uint32_t k = 0; k < c->n_not_in; k++) {
        size_t i;
        json_t *v;
        json_array_foreach ((json_t *)c->not_in[k], i, v)
            if (json_is_string(v))
                expr_add(s->b, &l, expr_bytes(s->b, json_string_value(v), json_string_length(v)));
    }
    return l.n ? fsm_of_chars(s->b, expr_alt(s->b, l.items, l.n), "not enum") : NULL;
}

static struct regex_text pattern_of(const struct constraints *c, uint32_t i)
{
    return (struct regex_text){
        .s = json_string_value(c->patterns[i]),
        .n = json_string_length(c->patterns[i]),
        .search = true,
        .where = "pattern",
    };
}

static struct regex_text format_of(const char *name)
{
    const char *pattern = format_pattern(name);
    return (struct regex_text){.s = pattern, .n = strlen(pattern), .where = "format"};
}

static bool has_length(const struct constraints *c)
{
    return c->length_min > 0 || c->length_max != EXPR_INF;
}

const struct fsm *string_fsm(struct schema *s, const struct constraints *c, bool *plain)
{
    struct build *b = s->b;
    const struct fsm *f = NULL, *words = words_fsm(s, c);
    *plain = false;
    for (uint32_t i = 0; i < c->n_pattern && build_ok(b); i++)
        use_pattern(s, &f, pattern_of(c, i), c->is_not[i]);
    for (uint32_t i = 0; i < c->n_format && build_ok(b); i++)
        if (format_pattern(c->formats[i]))
            use_pattern(s, &f, format_of(c->formats[i]), false);
    const struct expr *any = expr_chars(b, &cset_any, EXPR_UTF8);
    if (has_length(c) && build_ok(b)) {
        const struct fsm *length =
            fsm_of_chars(b, expr_repeat(b, any, c->length_min, c->length_max),
                         "minLength or maxLength with other constraints of the string");
        f = f ? fsm_and(b, f, length) : length;
    }
    if (words && build_ok(b))
        f = fsm_minus(b, f ? f : all_texts(b), words);
    *plain = !f && build_ok(b);
    return f;
}

/* What the constraints come down to, when it is one alone. */
static const struct expr *alone(struct schema *s, const struct constraints *c)
{
    uint32_t n_format = 0, i_format = 0;
    for (uint32_t i = 0; i < c->n_format; i++)
        if (format_pattern(c->formats[i])) {
            n_format++;
            i_format = i;
        }
    for (uint32_t k = 0; k < c->n_not_in; k++) {
        size_t i;
        json_t *v;
        json_array_foreach ((json_t *)c->not_in[k], i, v)
            if (json_is_string(v))
                return NULL;
    }
    uint32_t n = c->n_pattern + n_format + has_length(c);
    struct regex_text r;
    if (n == 0 || (n == 1 && has_length(c)))
        return quote(s, expr_repeat(s->b, any_character(s), c->length_min, c->length_max));
    if (n > 1 || (c->n_pattern && c->is_not[0]))
        return NULL;
    r = c->n_pattern ? pattern_of(c, 0) : format_of(c->formats[i_format]);
    return quote(s, regex_expr(s->b, &r, EXPR_JSON));
}

/* The texts of f that have constraints' lengths, as a string. minLength is multiplied; maxLength is
 * counted while a text is read, so it takes no states, whatever it is. */
static const struct expr *with_length(struct schema *s, const struct constraints *c,
                                      const struct fsm *f)
{
    struct build *b = s->b;
    uint32_t shortest, longest;
    const struct expr *any = expr_chars(b, &cset_any, EXPR_UTF8);
    if (!f || !fsm_lengths(b, f, &shortest, &longest))
        return &expr_never;
    if (c->length_min > shortest)
        f = fsm_minimal(b, fsm_and(b, f,
                                   fsm_of_chars(b, expr_repeat(b, any, c->length_min, EXPR_INF),
                                                "minLength with other constraints of the string")));
    if (!f || fsm_is_empty(f))
        return &expr_never;
    return quote(s, c->length_max == EXPR_INF ? expr_fsm(b, f, EXPR_JSON)
                                              : expr_within(b, f, EXPR_JSON, c->length_max));
}

static const struct fsm *without_length(struct schema *s, const struct constraints *c, bool *plain)
{
    struct constraints rest = *c;
    rest.length_min = 0;
    rest.length_max = EXPR_INF;
    return string_fsm(s, &rest, plain);
}

/* Nothing is asked of the string. */
static bool is_free(const struct constraints *c)
{
    bool free = c->n_pattern == 0 && c->n_not_in == 0 && !has_length(c);
    for (uint32_t i = 0; i < c->n_format; i++)
        free &= !format_pattern(c->formats[i]);
    return free;
}

/* What the texts of a string without excluded ones depend on. */
static char *string_key(struct schema *s, const struct constraints *c)
{
    struct buf key = BUF_INIT;
    buf_printf(&key, "%u %u", c->length_min, c->length_max);
    for (uint32_t i = 0; i < c->n_pattern; i++) {
        buf_printf(&key, " %d ", c->is_not[i]);
        buf_add_json_str(&key, json_string_value(c->patterns[i]),
                         json_string_length(c->patterns[i]));
    }
    for (uint32_t i = 0; i < c->n_format; i++)
        if (format_pattern(c->formats[i]))
            buf_printf(&key, " %s", c->formats[i]);
    char *copy = key.failed ? NULL : build_alloc(s->b, key.len + 1, 1);
    if (copy)
        memcpy(copy, buf_str(&key), key.len + 1);
    buf_release(&key);
    return copy;
}

/* The string, not alone a length. */
static const struct expr *make_string(struct schema *s, const struct constraints *c)
{
    bool plain;
    const struct expr *x = alone(s, c);
    if (x)
        return x;
    const struct fsm *f = without_length(s, c, &plain);
    return with_length(s, c, plain ? all_texts(s->b) : f);
}

const struct expr *string_expr(struct schema *s, const struct constraints *c)
{
    if (c->length_min > c->length_max)
        return &expr_never;
    char *key = c->n_not_in ? NULL : string_key(s, c);
    for (const struct string_memo *l = s->strings; key && l; l = l->next)
        if (build_work(s->b, 1) && !strcmp(l->key, key))
            return l->expr;
    const struct expr *x = make_string(s, c);
    if (x->kind != EXPR_NEVER)
        x = expr_named(s->b, is_free(c) ? "string" : "", x);
    struct string_memo *l = key ? build_alloc(s->b, 1, sizeof *l) : NULL;
    if (l) {
        *l = (struct string_memo){key, x, s->strings};
        s->strings = l;
    }
    return x;
}

/* The strings of an enum that the rest of the conj allows. */
static const struct fsm *listed_fsm(struct schema *s, const struct constraints *c)
{
    struct string_test test = {NULL, false, false};
    struct expr_list l = {0};
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)c->in[0], i, v)
        if (json_is_string(v) && constraints_allows(s, c, v, &test))
            expr_add(s->b, &l, expr_bytes(s->b, json_string_value(v), json_string_length(v)));
    return fsm_of_chars(s->b, expr_alt(s->b, l.items, l.n), "enum");
}

static const struct fsm *union_fsm(struct schema *s, const struct constraints *c, bool *plain);

/* The texts that no option of the choice allows; NULL: there is none (or the build failed). */
static const struct fsm *left_over(struct schema *s, const struct choice *pick)
{
    const struct fsm *rest = all_texts(s->b);
    struct constraints *option = q_alloc(sizeof *option);
    size_t i;
    json_t *v;
    bool plain = false;
    if (!option)
        expr_fail(s->b, Q_NO_MEMORY, "out of memory for a schema");
    json_array_foreach ((json_t *)pick->options, i, v) {
        struct chain *chain = build_alloc(s->b, 1, sizeof *chain);
        if (!option || !chain || plain || !rest)
            break;
        *chain = (struct chain){
            .up = pick->chain,
            .depth = chain_inside(pick->chain),
            .is_choice = true,
        };
        constraints_init(option);
        option->types = T_STRING;
        constraints_add(s, option, v, chain);
        constraints_prune(s, option);
        if (!option->dead)
            rest = fsm_minimal(s->b, fsm_minus(s->b, rest, union_fsm(s, option, &plain)));
    }
    q_free(option);
    return plain ? NULL : rest;
}

/* The texts of constraints with its choices. *plain: all. */
static const struct fsm *union_fsm(struct schema *s, const struct constraints *c, bool *plain)
{
    const struct fsm *f;
    *plain = false;
    if (!build_work(s->b, 200))
        return NULL;
    if (c->n_in)
        f = listed_fsm(s, c);
    else
        f = string_fsm(s, c, plain);
    for (uint32_t i = 0; i < c->n_choice && build_ok(s->b); i++) {
        const struct fsm *rest = left_over(s, &c->choices[i]);
        if (rest)
            f = fsm_minimal(s->b, fsm_minus(s->b, *plain ? all_texts(s->b) : f, rest));
        *plain = *plain && !rest;
    }
    return f;
}

const struct expr *string_union_expr(struct schema *s, const struct constraints *c)
{
    struct constraints rest = *c;
    bool plain;
    rest.types = T_STRING;
    rest.length_min = 0;
    rest.length_max = EXPR_INF;
    const struct fsm *f = union_fsm(s, &rest, &plain);
    if (!build_ok(s->b) || c->length_min > c->length_max)
        return &expr_never;
    return expr_named(s->b, "", with_length(s, c, plain ? all_texts(s->b) : f));
}

bool string_holds(struct schema *s, const struct constraints *c, struct string_test *t,
                  const char *text, size_t n)
{
    size_t length = utf8_count(text, n);
    if (length < c->length_min || length > c->length_max)
        return false;
    if (!t->is_made) {
        struct constraints rest = *c;
        rest.length_min = 0;
        rest.length_max = EXPR_INF;
        rest.n_not_in = 0; /* looked at by the caller */
        t->fsm = string_fsm(s, &rest, &t->is_plain);
        t->is_made = true;
    }
    return build_work(s->b, 1 + n / 8) && (t->is_plain || (t->fsm && fsm_accepts(t->fsm, text, n)));
}
