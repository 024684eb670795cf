/* SPDX-License-Identifier: Apache-2.0 */
/* Strings. One constraint alone keeps its form (a length is a counted loop, whatever its size);
 * several become automata over code points and are multiplied. */
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/utf8.h"
#include "engine/grammar/source/regex.h"
#include "engine/grammar/source/schema_conj.h"

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
static const struct gx *any_character(struct schema *s)
{
    static const struct range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, GX_CHAR_MAX}};
    static const struct range simple[] = {{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 'b'},
                                          {'f', 'f'}, {'n', 'n'}, {'r', 'r'},   {'t', 't'}};
    static const struct range hex[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    static const struct range no_d[] = {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
    static const struct range d[] = {{'D', 'D'}, {'d', 'd'}}, low[] = {{'0', '7'}};
    static const struct range high[] = {{'8', '9'}, {'A', 'B'}, {'a', 'b'}};
    static const struct range last[] = {{'C', 'F'}, {'c', 'f'}};
    struct build *b = s->b;
    if (s->character)
        return s->character;
#define SET(ranges) gx_chars(b, cset_of(b, ranges, sizeof(ranges) / sizeof *(ranges)), GX_UTF8)
    const struct gx *digit = SET(hex), *two = gx_repeat(b, digit, 2, 2);
    const struct gx *three = gx_repeat(b, digit, 3, 3), *u = gx_text(b, "u"), *is_d = SET(d);
    const struct gx *pair = gx_seq3(b, gx_seq3(b, is_d, SET(high), two), gx_text(b, "\\u"),
                                    gx_seq3(b, is_d, SET(last), two));
    const struct gx *escapes[] = {SET(simple), gx_seq3(b, u, SET(no_d), three),
                                  gx_seq3(b, u, is_d, gx_seq2(b, SET(low), two)),
                                  gx_seq2(b, u, pair)};
#undef SET
    const struct gx *escape = gx_seq2(b, gx_text(b, "\\"), gx_alt(b, escapes, 4));
    s->character = gx_alt2(b, gx_chars(b, cset_of(b, plain, 3), GX_UTF8), escape);
    return s->character;
}

static const struct gx *quote(struct schema *s, const struct gx *inside)
{
    const struct gx *mark = gx_text(s->b, "\"");
    return gx_seq3(s->b, mark, inside, mark);
}

static const struct fsm *all_texts(struct build *b)
{
    return fsm_of_chars(b, gx_repeat(b, gx_chars(b, &cset_any, GX_UTF8), 0, GX_INF), "string");
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

static const struct fsm *words_fsm(struct schema *s, const struct conj *c)
{
    struct gx_list l = {0};
    for (uint32_t k = 0; k < c->n_not_in; k++) {
        size_t i;
        json_t *v;
        json_array_foreach ((json_t *)c->not_in[k], i, v)
            if (json_is_string(v))
                gx_add(s->b, &l, gx_bytes(s->b, json_string_value(v), json_string_length(v)));
    }
    return l.n ? fsm_of_chars(s->b, gx_alt(s->b, l.items, l.n), "not enum") : NULL;
}

static struct regex_text pattern_of(const struct conj *c, uint32_t i)
{
    return (struct regex_text){.s = json_string_value(c->patterns[i]),
                               .n = json_string_length(c->patterns[i]),
                               .search = true,
                               .where = "pattern"};
}

static struct regex_text format_of(const char *name)
{
    const char *pattern = format_pattern(name);
    return (struct regex_text){.s = pattern, .n = strlen(pattern), .where = "format"};
}

static bool has_length(const struct conj *c)
{
    return c->length_min > 0 || c->length_max != GX_INF;
}

const struct fsm *string_fsm(struct schema *s, const struct conj *c, bool *plain)
{
    struct build *b = s->b;
    const struct fsm *f = NULL, *words = words_fsm(s, c);
    *plain = false;
    for (uint32_t i = 0; i < c->n_pattern && build_ok(b); i++)
        use_pattern(s, &f, pattern_of(c, i), c->is_not[i]);
    for (uint32_t i = 0; i < c->n_format && build_ok(b); i++)
        if (format_pattern(c->formats[i]))
            use_pattern(s, &f, format_of(c->formats[i]), false);
    const struct gx *any = gx_chars(b, &cset_any, GX_UTF8);
    if (has_length(c) && build_ok(b)) {
        const struct fsm *length =
            fsm_of_chars(b, gx_repeat(b, any, c->length_min, c->length_max),
                         "minLength or maxLength with other constraints of the string");
        f = f ? fsm_and(b, f, length) : length;
    }
    if (words && build_ok(b))
        f = fsm_minus(b, f ? f : all_texts(b), words);
    *plain = !f && build_ok(b);
    return f;
}

/* What the constraints come down to, when it is one alone. */
static const struct gx *alone(struct schema *s, const struct conj *c)
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
        return quote(s, gx_repeat(s->b, any_character(s), c->length_min, c->length_max));
    if (n > 1 || (c->n_pattern && c->is_not[0]))
        return NULL;
    r = c->n_pattern ? pattern_of(c, 0) : format_of(c->formats[i_format]);
    return quote(s, regex_gx(s->b, &r, GX_JSON));
}

/* The texts of f that have a conj's lengths, as a string. minLength is multiplied; maxLength is
 * counted while a text is read, so it takes no states, whatever it is. */
static const struct gx *with_length(struct schema *s, const struct conj *c, const struct fsm *f)
{
    struct build *b = s->b;
    uint32_t shortest, longest;
    const struct gx *any = gx_chars(b, &cset_any, GX_UTF8);
    if (!f || !fsm_lengths(b, f, &shortest, &longest))
        return &gx_never;
    if (c->length_min > shortest)
        f = fsm_minimal(b, fsm_and(b, f,
                                   fsm_of_chars(b, gx_repeat(b, any, c->length_min, GX_INF),
                                                "minLength with other constraints of the string")));
    if (!f || fsm_is_empty(f))
        return &gx_never;
    return quote(s, c->length_max == GX_INF ? gx_fsm(b, f, GX_JSON)
                                            : gx_within(b, f, GX_JSON, c->length_max));
}

static const struct fsm *without_length(struct schema *s, const struct conj *c, bool *plain)
{
    struct conj rest = *c;
    rest.length_min = 0;
    rest.length_max = GX_INF;
    return string_fsm(s, &rest, plain);
}

/* Nothing is asked of the string. */
static bool is_free(const struct conj *c)
{
    bool free = c->n_pattern == 0 && c->n_not_in == 0 && !has_length(c);
    for (uint32_t i = 0; i < c->n_format; i++)
        free &= !format_pattern(c->formats[i]);
    return free;
}

/* What the texts of a string without excluded ones depend on. */
static char *string_key(struct schema *s, const struct conj *c)
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
static const struct gx *make_string(struct schema *s, const struct conj *c)
{
    bool plain;
    const struct gx *x = alone(s, c);
    if (x)
        return x;
    const struct fsm *f = without_length(s, c, &plain);
    return with_length(s, c, plain ? all_texts(s->b) : f);
}

const struct gx *string_gx(struct schema *s, const struct conj *c)
{
    if (c->length_min > c->length_max)
        return &gx_never;
    char *key = c->n_not_in ? NULL : string_key(s, c);
    for (const struct string_memo *l = s->strings; key && l; l = l->next)
        if (build_work(s->b, 1) && !strcmp(l->key, key))
            return l->gx;
    const struct gx *x = make_string(s, c);
    if (x->kind != GX_NEVER)
        x = gx_named(s->b, is_free(c) ? "string" : "", x);
    struct string_memo *l = key ? build_alloc(s->b, 1, sizeof *l) : NULL;
    if (l) {
        *l = (struct string_memo){key, x, s->strings};
        s->strings = l;
    }
    return x;
}

/* The strings of an enum that the rest of the conj allows. */
static const struct fsm *listed_fsm(struct schema *s, const struct conj *c)
{
    struct string_test test = {NULL, false, false};
    struct gx_list l = {0};
    size_t i;
    json_t *v;
    json_array_foreach ((json_t *)c->in[0], i, v)
        if (json_is_string(v) && conj_allows(s, c, v, &test))
            gx_add(s->b, &l, gx_bytes(s->b, json_string_value(v), json_string_length(v)));
    return fsm_of_chars(s->b, gx_alt(s->b, l.items, l.n), "enum");
}

static const struct fsm *union_fsm(struct schema *s, const struct conj *c, bool *plain);

/* The texts that no option of the choice allows; NULL: there is none (or the build failed). */
static const struct fsm *left_over(struct schema *s, const struct choice *pick)
{
    const struct fsm *rest = all_texts(s->b);
    struct conj *option = q_alloc(sizeof *option);
    size_t i;
    json_t *v;
    bool plain = false;
    if (!option)
        gx_fail(s->b, Q_NO_MEMORY, "out of memory for a schema");
    json_array_foreach ((json_t *)pick->options, i, v) {
        struct chain *chain = build_alloc(s->b, 1, sizeof *chain);
        if (!option || !chain || plain || !rest)
            break;
        *chain = (struct chain){.up = pick->chain, .is_choice = true};
        conj_init(option);
        option->types = T_STRING;
        conj_add(s, option, v, chain);
        conj_prune(s, option);
        if (!option->dead)
            rest = fsm_minimal(s->b, fsm_minus(s->b, rest, union_fsm(s, option, &plain)));
    }
    q_free(option);
    return plain ? NULL : rest;
}

/* The texts of a conj with its choices. *plain: all. */
static const struct fsm *union_fsm(struct schema *s, const struct conj *c, bool *plain)
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

const struct gx *string_union_gx(struct schema *s, const struct conj *c)
{
    struct conj rest = *c;
    bool plain;
    rest.types = T_STRING;
    rest.length_min = 0;
    rest.length_max = GX_INF;
    const struct fsm *f = union_fsm(s, &rest, &plain);
    if (!build_ok(s->b) || c->length_min > c->length_max)
        return &gx_never;
    return gx_named(s->b, "", with_length(s, c, plain ? all_texts(s->b) : f));
}

bool string_holds(struct schema *s, const struct conj *c, struct string_test *t, const char *text,
                  size_t n)
{
    size_t length = utf8_count(text, n);
    if (length < c->length_min || length > c->length_max)
        return false;
    if (!t->is_made) {
        struct conj rest = *c;
        rest.length_min = 0;
        rest.length_max = GX_INF;
        rest.n_not_in = 0; /* looked at by the caller */
        t->fsm = string_fsm(s, &rest, &t->is_plain);
        t->is_made = true;
    }
    return build_work(s->b, 1 + n / 8) && (t->is_plain || (t->fsm && fsm_accepts(t->fsm, text, n)));
}
