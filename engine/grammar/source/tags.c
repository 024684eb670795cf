/* SPDX-License-Identifier: Apache-2.0 */
/* Free text before a trigger is an automaton of all texts without a trigger; the letters of a
 * trigger can therefore only be read as the trigger. One of the tags that begin with the trigger
 * must follow it. */
#include "engine/grammar/source/tags.h"
#include <stdio.h>
#include <string.h>
#include "engine/grammar/source/chars.h"
#include "engine/grammar/source/ebnf.h"
#include "engine/grammar/automaton/fsm.h"
#include "engine/grammar/automaton/program.h"
#include "engine/grammar/source/regex.h"
#include "engine/grammar/source/schema.h"
#include "engine/grammar/matcher/trie.h"

#define TAGS_MAX 4096u

struct tags {
    struct build *b;
    bool compact;
    uint32_t depth;
};

static const struct expr *format(struct tags *t, const json_t *f, const char *until);

static const struct expr *wrong(struct tags *t, const char *what)
{
    return expr_fail(t->b, Q_INVALID, "structural tag: %s", what);
}

/* Texts without any of the strings (NULL ends; none: all texts). */
static const struct fsm *free_of(struct tags *t, const char *const *words, size_t n)
{
    struct build *b = t->b;
    struct expr_list l = {0};
    const struct expr *any = expr_repeat(b, expr_chars(b, &cset_any, EXPR_UTF8), 0, EXPR_INF);
    const struct fsm *all = fsm_of_chars(b, any, "structural tag");
    for (size_t i = 0; i < n; i++)
        if (*words[i])
            expr_add(b, &l, expr_text(b, words[i]));
    if (!l.n || !all)
        return all;
    const struct expr *with = expr_seq3(b, any, expr_alt(b, l.items, l.n), any);
    return fsm_minus(b, all, fsm_of_chars(b, with, "structural tag"));
}

/* Free text, then one of the words. A text may end in the beginning of a word. */
static const struct expr *text_until(struct tags *t, const char *const *words, size_t n)
{
    return expr_fsm(t->b, free_of(t, words, n), EXPR_UTF8);
}

/* The end of what looks like a special token and begins at s: <x>, [X], ｜x｜, and the mark before
 * MiniMax's tags. NULL: nothing does. */
static const char *special_end(const char *s)
{
    static const char bar[] = "｜", mark[] = "]<]minimax[>[";
    size_t n;
    if (strncmp(s, mark, sizeof mark - 1) == 0)
        return s + sizeof mark - 1;
    if (strncmp(s, bar, sizeof bar - 1) == 0) {
        const char *end = strstr(s + sizeof bar - 1, bar);
        return end && end - s < 64 ? end + sizeof bar - 1 : NULL;
    }
    if (*s == '[') {
        n = strspn(s + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_/") + 1;
        return n > 1 && s[n] == ']' ? s + n + 1 : NULL;
    }
    n = *s == '<' ? strcspn(s + 1, "<> \n") + 1 : 0;
    return n > 1 && n < 64 && s[n] == '>' ? s + n + 1 : NULL;
}

/* Literal text. What looks like a special token in it may also come as one. */
static const struct expr *literal(struct tags *t, const char *s)
{
    struct expr_list l = {0};
    for (const char *at = s; *at;) {
        const char *close = special_end(at);
        if (!close) {
            at++;
            continue;
        }
        const struct expr *name = expr_bytes(t->b, at, (size_t)(close - at));
        const struct expr *mark = expr_bytes(t->b, "\xff", 1);
        expr_add(t->b, &l, expr_bytes(t->b, s, (size_t)(at - s)));
        expr_add(t->b, &l, expr_alt2(t->b, name, expr_seq3(t->b, mark, name, mark)));
        s = at = close;
    }
    expr_add(t->b, &l, expr_text(t->b, s));
    return expr_seq(t->b, l.items, l.n);
}

/* One of these bytes. */
static const struct expr *bytes_of(struct build *b, uint32_t lo, uint32_t hi)
{
    return expr_chars(b, chars_one(b, lo, hi), EXPR_UTF8);
}

/* Characters beyond ASCII, written as letters that are bytes. */
static const struct expr *wide_character(struct build *b)
{
    struct expr_list l = {0};
    for (uint32_t byte = 0xC2; byte <= 0xF4; byte++) {
        uint8_t lo, hi;
        uint32_t left = trie_lead((uint8_t)byte, &lo, &hi);
        const struct expr *rest = expr_repeat(b, bytes_of(b, 0x80, 0xBF), left - 1, left - 1);
        expr_add(b, &l, expr_seq3(b, bytes_of(b, byte, byte), bytes_of(b, lo, hi), rest));
    }
    return expr_alt(b, l.items, l.n);
}

/* As literal(), in letters that are bytes. */
static const struct expr *word_of(struct build *b, const char *s)
{
    struct expr_list l = {0};
    const struct expr *mark = bytes_of(b, PROGRAM_SPECIAL, PROGRAM_SPECIAL);
    while (*s) {
        const char *close = special_end(s);
        struct expr_list name = {0};
        for (const char *end = close ? close : s + 1; s < end; s++)
            expr_add(b, &name, bytes_of(b, (uint8_t)*s, (uint8_t)*s));
        const struct expr *plain = expr_seq(b, name.items, name.n);
        expr_add(b, &l, close ? expr_alt2(b, plain, expr_seq3(b, mark, plain, mark)) : plain);
    }
    return expr_seq(b, l.items, l.n);
}

/* Free text that may have special tokens, but none of the words, however they are written. */
static const struct expr *special_text(struct tags *t, const char *const *words, size_t n)
{
    struct build *b = t->b;
    struct expr_list l = {0};
    const struct expr *character = expr_alt2(b, bytes_of(b, 0, 0x7F), wide_character(b));
    const struct expr *mark = bytes_of(b, PROGRAM_SPECIAL, PROGRAM_SPECIAL);
    const struct expr *special = expr_seq3(b, mark, expr_repeat(b, character, 1, EXPR_INF), mark);
    const struct expr *any = expr_repeat(b, bytes_of(b, 0, 0xFF), 0, EXPR_INF);
    for (size_t i = 0; i < n; i++)
        expr_add(b, &l, word_of(b, words[i]));
    const struct expr *texts = expr_repeat(b, expr_alt2(b, character, special), 0, EXPR_INF);
    const struct expr *with = expr_seq3(b, any, expr_alt(b, l.items, l.n), any);
    const struct fsm *all = fsm_of_chars(b, texts, "structural tag");
    const struct fsm *not_these = fsm_of_chars(b, with, "structural tag");
    return expr_fsm(b, build_ok(b) ? fsm_minus(b, all, not_these) : NULL, EXPR_RAW);
}

static const char *text_of(const json_t *v, const char *key)
{
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "";
}

/* The content of a tag. Ours beyond the peers' form: "function" and "index", the tool that is
 * called, for errors. */
static const struct expr *content_of(struct tags *t, const json_t *v, const char *until)
{
    const json_t *content = json_object_get(v, "content");
    const char *function = text_of(v, "function");
    char name[160];
    if (!*function || t->b->scope)
        return format(t, content, until);
    snprintf(name, sizeof name, "tools: entry %lld, function \"%.60s\"",
             (long long)json_integer_value(json_object_get(v, "index")), function);
    struct build_scope *scope = expr_scope_new(t->b, name);
    return expr_scope_end(t->b, scope, format(t, content, until));
}

/* begin, content, end */
static const struct expr *tag(struct tags *t, const json_t *v)
{
    const json_t *content = json_object_get(v, "content"), *end = json_object_get(v, "end");
    struct expr_list ends = {0};
    size_t i;
    json_t *one;
    const char *until =
        json_is_array(end) ? json_string_value(json_array_get(end, 0)) : json_string_value(end);
    if (!json_is_string(json_object_get(v, "begin")) || !content || !until)
        return wrong(t, "a tag needs \"begin\", \"content\" and \"end\"");
    json_array_foreach ((json_t *)end, i, one)
        expr_add(t->b, &ends, literal(t, json_string_value(one) ? json_string_value(one) : ""));
    const struct expr *last =
        json_is_array(end) ? expr_alt(t->b, ends.items, ends.n) : literal(t, until);
    const struct expr *inner = build_ok(t->b) ? content_of(t, v, until) : &expr_never;
    return expr_seq3(t->b, literal(t, text_of(v, "begin")), inner, last);
}

static const struct expr *any_of(struct tags *t, const json_t *list)
{
    struct expr_list l = {0};
    size_t i;
    json_t *v;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > TAGS_MAX)
        return wrong(t, "expected a list of 1 to 4096 parts");
    json_array_foreach ((json_t *)list, i, v)
        expr_add(t->b, &l, tag(t, v));
    return expr_alt(t->b, l.items, l.n);
}

/* Free text and tags by turns; a trigger in the text must be the beginning of a tag. Ours beyond
 * the peers' form: "special_tokens": true, the text may have special tokens of the vocabulary. */
static const struct expr *triggered(struct tags *t, const json_t *f)
{
    const json_t *triggers = json_object_get(f, "triggers"), *tags = json_object_get(f, "tags");
    size_t n = json_array_size(triggers), i;
    const char **words = build_alloc(t->b, n + 1, sizeof *words);
    json_t *v;
    if (!words || n == 0)
        return wrong(t, "\"triggers\" must be a list of strings");
    json_array_foreach ((json_t *)triggers, i, v)
        if (!(words[i] = json_string_value(v)) || !*words[i])
            return wrong(t, "\"triggers\" must be a list of strings that are not empty");
    json_array_foreach ((json_t *)tags, i, v) {
        size_t k = 0;
        const char *begin = text_of(v, "begin");
        while (k < n && strncmp(begin, words[k], strlen(words[k])) != 0)
            k++;
        if (k == n)
            return wrong(t, "a tag begins with none of the triggers");
    }
    bool specials = json_is_true(json_object_get(f, "special_tokens"));
    const struct expr *text = specials ? special_text(t, words, n) : text_until(t, words, n);
    const struct expr *one = any_of(t, tags);
    const struct expr *turn = expr_seq2(t->b, one, text);
    bool least = json_is_true(json_object_get(f, "at_least_one"));
    if (json_is_true(json_object_get(f, "stop_after_first"))) {
        const struct expr *x = expr_seq2(t->b, text, one);
        return least ? x : expr_alt2(t->b, x, text);
    }
    return expr_seq2(t->b, text, expr_repeat(t->b, turn, least, EXPR_INF));
}

static const struct expr *separated(struct tags *t, const json_t *f)
{
    const struct expr *one = any_of(t, json_object_get(f, "tags"));
    const struct expr *more = expr_seq2(t->b, literal(t, text_of(f, "separator")), one);
    bool only = json_is_true(json_object_get(f, "stop_after_first"));
    const struct expr *x = expr_seq2(t->b, one, expr_repeat(t->b, more, 0, only ? 0 : EXPR_INF));
    return json_is_true(json_object_get(f, "at_least_one")) ? x : expr_optional(t->b, x);
}

static const struct expr *list(struct tags *t, const json_t *f, const char *until)
{
    struct expr_list l = {0};
    bool is_or = !strcmp(text_of(f, "type"), "or");
    const json_t *elements = json_object_get(f, "elements");
    size_t i;
    json_t *v;
    if (!json_is_array(elements) || json_array_size(elements) == 0)
        return wrong(t, "\"elements\" must be a list of formats");
    json_array_foreach ((json_t *)elements, i, v) {
        bool last = is_or || i + 1 == json_array_size(elements);
        expr_add(t->b, &l, format(t, v, last ? until : ""));
    }
    return is_or ? expr_alt(t->b, l.items, l.n) : expr_seq(t->b, l.items, l.n);
}

/* Free text: to the end of the tag around it. */
static const struct expr *any_text(struct tags *t, const json_t *f, const char *until)
{
    const char *words[17];
    size_t n = 0, i;
    json_t *v;
    if (*until)
        words[n++] = until;
    json_array_foreach (json_object_get(f, "excludes"), i, v)
        if (json_is_string(v) && n < 17)
            words[n++] = json_string_value(v);
    return text_until(t, words, n);
}

/* Ours beyond the peers' form: "whitespace_pattern", what may come between JSON's tokens; "path",
 * where the schema stands in its tool's parameters, for errors. */
static const struct expr *json_text(struct tags *t, const json_t *f)
{
    const json_t *pattern = json_object_get(f, "whitespace_pattern");
    const struct expr *ws = t->compact ? &expr_empty : NULL;
    if (json_is_string(pattern))
        ws = schema_ws_pattern(t->b, json_string_value(pattern), json_string_length(pattern));
    return schema_expr(t->b, json_object_get(f, "json_schema"), ws,
                       json_string_value(json_object_get(f, "path")));
}

static const struct expr *one_format(struct tags *t, const json_t *f, const char *until)
{
    const char *type = text_of(f, "type"), *s;
    if (!strcmp(type, "const_string"))
        return literal(t, text_of(f, "value"));
    if (!strcmp(type, "any_text"))
        return any_text(t, f, until);
    if (!strcmp(type, "json_schema"))
        return json_text(t, f);
    if (!strcmp(type, "regex")) {
        s = text_of(f, "pattern");
        return regex_expr(t->b, &(struct regex_text){.s = s, .n = strlen(s), .where = "regex"},
                          EXPR_UTF8);
    }
    if (!strcmp(type, "grammar")) {
        s = text_of(f, "grammar");
        return ebnf_expr(t->b, s, strlen(s));
    }
    if (!strcmp(type, "sequence") || !strcmp(type, "or"))
        return list(t, f, until);
    if (!strcmp(type, "tag"))
        return tag(t, f);
    if (!strcmp(type, "triggered_tags"))
        return triggered(t, f);
    if (!strcmp(type, "tags_with_separator"))
        return separated(t, f);
    return expr_fail(t->b, Q_UNSUPPORTED,
                     "structural tag: format \"%.60s\" is not supported; expected const_string, "
                     "any_text, json_schema, regex, grammar, sequence, or, tag, triggered_tags and "
                     "tags_with_separator",
                     type);
}

static const struct expr *format(struct tags *t, const json_t *f, const char *until)
{
    if (++t->depth > EXPR_DEPTH_MAX / 4)
        return wrong(t, "nested too deeply");
    const struct expr *x = one_format(t, f, until);
    t->depth--;
    return x;
}

/* The older form to the newer one. */
static json_t *from_structures(const json_t *root)
{
    json_t *tags = json_array();
    size_t i;
    json_t *v;
    json_array_foreach (json_object_get(root, "structures"), i, v)
        json_array_append_new(
            tags, json_pack("{s:O?,s:{s:s,s:O?},s:O?}", "begin", json_object_get(v, "begin"),
                            "content", "type", "json_schema", "json_schema",
                            json_object_get(v, "schema"), "end", json_object_get(v, "end")));
    return json_pack("{s:s,s:O?,s:o}", "type", "triggered_tags", "triggers",
                     json_object_get(root, "triggers"), "tags", tags);
}

const struct expr *tags_expr(struct build *b, const json_t *root, bool compact)
{
    struct tags t = {.b = b, .compact = compact};
    const json_t *f = json_object_get(root, "format");
    json_t *made = NULL;
    if (!f && json_object_get(root, "structures"))
        f = made = from_structures(root);
    if (!f)
        return wrong(&t, "expected \"format\", or \"structures\" and \"triggers\"");
    const struct expr *x = format(&t, f, "");
    json_decref(made);
    return x;
}
