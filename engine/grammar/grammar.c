/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/grammar.h"
#include <jansson.h>
#include <string.h>
#include "common/json_read.h"
#include "common/mem.h"
#include "common/utf8.h"
#include "engine/grammar/source/reasoning_prefix.h"
#include "engine/grammar/source/ebnf.h"
#include "engine/grammar/automaton/program.h"
#include "engine/grammar/source/regex.h"
#include "engine/grammar/source/schema.h"
#include "engine/grammar/source/tags.h"

static json_t *parse(struct build *b, const char *source, size_t n, const char *what)
{
    json_error_t error;
    size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *v = json_read_bytes(source, n, flags, &error);
    if (!v && json_error_code(&error) == json_error_numeric_overflow) /* limits beyond 64 bits */
        v = json_read_bytes(source, n, flags | JSON_DECODE_INT_AS_REAL, &error);
    if (!v)
        expr_fail(b, Q_INVALID, "the %s is not JSON: %.100s (line %d, column %d)", what, error.text,
                  error.line, error.column);
    return v;
}

static const struct expr *choices(struct build *b, const json_t *v)
{
    struct expr_list l = {0};
    size_t i;
    json_t *item;
    if (!json_is_array(v) || json_array_size(v) == 0)
        return expr_fail(b, Q_INVALID, "expected a list of one or more strings");
    json_array_foreach ((json_t *)v, i, item) {
        if (!json_is_string(item) || json_string_length(item) == 0)
            return expr_fail(b, Q_INVALID, "entry %zu is not a string, or is empty", i);
        expr_add(b, &l, expr_bytes(b, json_string_value(item), json_string_length(item)));
    }
    return expr_alt(b, l.items, l.n);
}

static const struct expr *schema(struct build *b, uint32_t kind, const char *source, size_t n)
{
    json_error_t error;
    const struct expr *ws = kind & GRAMMAR_COMPACT ? &expr_empty : NULL, *x = &expr_never;
    if (kind & GRAMMAR_SPACED) {
        json_t *pattern =
            json_read_bytes(source, n, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &error);
        ws = json_is_string(pattern)
                 ? schema_ws_pattern(b, json_string_value(pattern), json_string_length(pattern))
                 : expr_fail(b, Q_INVALID, "expected a JSON string before the schema");
        json_decref(pattern);
        source += pattern ? error.position : 0;
        n -= pattern ? (size_t)error.position : 0;
    }
    json_t *v = build_ok(b) ? parse(b, source, n, "schema") : NULL;
    if (v)
        x = schema_expr(b, v, ws, NULL);
    json_decref(v);
    return x;
}

static const struct expr *build_source(struct build *b, uint32_t kind, const char *source, size_t n)
{
    bool compact = kind & GRAMMAR_COMPACT;
    const struct expr *x = &expr_never;
    json_t *v = NULL;
    switch (kind & ~(GRAMMAR_COMPACT | GRAMMAR_SPACED)) {
    case GRAMMAR_JSON:
        x = schema(b, kind, source, n);
        break;
    case GRAMMAR_REGEX:
        x = regex_expr(b, &(struct regex_text){.s = source, .n = n, .where = "regex"}, EXPR_UTF8);
        break;
    case GRAMMAR_CHOICE:
        if ((v = parse(b, source, n, "list of choices")))
            x = choices(b, v);
        break;
    case GRAMMAR_EBNF:
        x = ebnf_expr(b, source, n);
        break;
    case GRAMMAR_TAGS:
        if ((v = parse(b, source, n, "structural tag")))
            x = tags_expr(b, v, compact);
        break;
    default:
        expr_fail(b, Q_UNSUPPORTED, "grammar: kind %u is unknown to this engine", kind);
    }
    json_decref(v);
    return x;
}

static const struct expr *with_before(struct build *b, const struct grammar_source *s,
                                      const struct expr *x)
{
    const struct expr *before =
        expr_named(b, "",
                   s->n_after ? reasoning_prefix_expr(b, s->after, s->n_after)
                              : reasoning_prefix_tags_expr(b, s->tags, s->n_tags));
    if (build_ok(b))
        b->before = before->rule + 1;
    return expr_seq2(b, s->n_after ? before : expr_optional(b, before), x);
}

static FALLIBLE compile(uint32_t **words, uint32_t *n_word, const struct grammar_source *source,
                        struct build *b, struct q_err *e)
{
    uint32_t start = expr_rule_new(b, "root");
    const struct expr *x = build_source(b, source->kind, source->text, source->n);
    if (source->n_after || source->n_tags)
        x = with_before(b, source, x);
    if (build_ok(b))
        b->rules[start].body = x;
    enum q_code rc = program_emit(words, n_word, b, start, e);
    build_release(b);
    return rc;
}

FALLIBLE grammar_compile(uint32_t **words, uint32_t *n_word, const struct grammar_source *source,
                         struct q_err *e)
{
    const uint64_t n_failure = mem_failure_count();
    struct grammar_source copy = *source;
    enum q_code rc = Q_OK;
    bool lean = false, again = true;
    if (source->n > GRAMMAR_SOURCE_MAX)
        return q_fail(e, Q_TOO_LARGE, "the grammar has %zu bytes, the limit is %zu", source->n,
                      GRAMMAR_SOURCE_MAX);
    if (!utf8_valid(source->text, source->n))
        return q_fail(e, Q_INVALID, "the grammar is not UTF-8");
    char *text = q_strndup(source->text, source->n); /* with an end, for messages */
    if (!text)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a grammar");
    copy.text = text;
    for (; again; lean = true) { /* twice at most; the first failure is the one that counts */
        struct build b;
        struct q_err err = Q_ERR_INIT;
        build_init(&b);
        b.lean = lean;
        b.stop = source->stop;
        b.try_max = source->try_max;
        size_t n_counted = source->n < EXPR_WORK_BYTES ? source->n : EXPR_WORK_BYTES;
        b.work_max = source->work_max ? source->work_max
                                      : EXPR_WORK_MAX + (uint64_t)EXPR_WORK_BYTE * n_counted;
        rc = compile(words, n_word, &copy, &b, &err);
        again = rc == Q_TOO_LARGE && b.is_rich && !lean;
        if (!lean || rc == Q_OK || rc == Q_TIMEOUT || rc == Q_CANCELLED)
            *e = err;
    }
    q_free(text);
    if (e->code == Q_TIMEOUT || e->code == Q_CANCELLED)
        return e->code;
    /* What lacked memory may have become another grammar, or an error of the source. */
    if (mem_check(n_failure, e->code, "a grammar", e) == Q_NO_MEMORY && rc == Q_OK) {
        q_free(*words);
        *words = NULL;
    }
    return e->code;
}
