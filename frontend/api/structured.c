/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/structured.h"
#include <string.h>
#include "frontend/api/json.h"

struct ask { /* a field that requests a grammar */
    const char *field;
    uint32_t kind;
    const json_t *value; /* JSON, or a string that is the source itself */
    const char *text;    /* the source, if there is no value */
};

static int add_piece(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0;
}

/* spaces: the pattern of white space in JSON that the request asks for, NULL: none. */
static FALLIBLE take_grammar(const struct ask *a, const char *spaces, struct sample_params *s,
                             struct params_ids *ids, struct q_err *e)
{
    bool spaced = spaces && a->kind == STRUCTURED_JSON;
    if (s->grammar)
        return q_fail(e, Q_INVALID,
                      "%s: conflicts with another field for structured output; only one is allowed",
                      a->field);
    buf_reset(&ids->grammar);
    if (spaced) {
        json_t *pattern = json_string(spaces);
        json_dump_callback(pattern, add_piece, &ids->grammar, JSON_ENCODE_ANY);
        json_decref(pattern);
    }
    if (a->text)
        buf_add_str(&ids->grammar, a->text);
    else if (json_is_string(a->value))
        buf_add(&ids->grammar, json_string_value(a->value), json_string_length(a->value));
    else
        json_dump_callback(a->value, add_piece, &ids->grammar,
                           JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (ids->grammar.len > STRUCTURED_BYTES)
        return q_fail(e, Q_INVALID, "%s: %zu bytes, expected at most %zu", a->field,
                      ids->grammar.len, STRUCTURED_BYTES);
    if (ids->grammar.len == 0)
        return q_fail(e, Q_INVALID, "%s: is empty", a->field);
    s->grammar = a->kind | (spaced ? STRUCTURED_SPACED : 0);
    s->grammar_data = ids->grammar.data;
    s->n_grammar = (uint32_t)ids->grammar.len;
    return buf_check(&ids->grammar, a->field, e);
}

/* The requested pattern of white space in JSON; NULL: none. */
static const char *spaces_of(const struct params *p)
{
    const json_t *v = json_object_get(p->structured_outputs, "whitespace_pattern");
    return json_is_string(v) ? json_string_value(v) : p->guided_whitespace_pattern;
}

/* response_format of OpenAI; {"type": "json_object", "schema": …} is an extension of other
 * servers. */
static FALLIBLE read_format(const struct params *p, struct sample_params *s, struct params_ids *ids,
                            struct q_err *e)
{
    const json_t *f = p->response_format;
    const char *type = json_string_value(json_object_get(f, "type"));
    struct ask a = {.field = "response_format", .kind = STRUCTURED_JSON};
    if (!type)
        return q_fail(e, Q_INVALID, "response_format: \"type\" is missing");
    if (!strcmp(type, "text"))
        return Q_OK;
    if (!strcmp(type, "json_object")) {
        a.value = json_object_get(f, "schema");
        if (!a.value)
            a.text = "{\"type\":\"object\"}";
    } else if (!strcmp(type, "json_schema")) {
        const json_t *outer = json_object_get(f, "json_schema");
        a.value = json_object_get(outer, "schema");
        if (!json_is_object(a.value) && !json_is_boolean(a.value))
            return q_fail(e, Q_INVALID,
                          "response_format: \"json_schema\" must be an object with a \"schema\"");
    } else if (!strcmp(type, "structural_tag")) {
        a.kind = STRUCTURED_TAGS;
        a.value = f;
    } else {
        return q_fail(e, Q_UNSUPPORTED,
                      "response_format: unknown type \"%.60s\"; accepted are text, json_object, "
                      "json_schema and structural_tag",
                      type);
    }
    return take_grammar(&a, spaces_of(p), s, ids, e);
}

/* vLLM's structured_outputs: one of its keys. */
static FALLIBLE read_outputs(const struct params *p, struct sample_params *s,
                             struct params_ids *ids, struct q_err *e)
{
    static const struct {
        const char *key;
        uint32_t kind;
    } keys[] = {
        {"json", STRUCTURED_JSON},    {"json_object", STRUCTURED_JSON},
        {"regex", STRUCTURED_REGEX},  {"choice", STRUCTURED_CHOICE},
        {"grammar", STRUCTURED_EBNF}, {"structural_tag", STRUCTURED_TAGS},
    };
    const char *key;
    json_t *v;
    bool compact = json_is_true(json_object_get(p->structured_outputs, "disable_any_whitespace"));
    json_object_foreach ((json_t *)p->structured_outputs, key, v) {
        struct ask a = {.field = "structured_outputs"};
        size_t i = 0, n = sizeof keys / sizeof *keys;
        if (json_is_null(v) || json_is_false(v) || !strcmp(key, "disable_any_whitespace") ||
            !strcmp(key, "disable_fallback") || !strcmp(key, "whitespace_pattern"))
            continue;
        while (i < n && strcmp(keys[i].key, key) != 0)
            i++;
        if (i == n)
            return q_fail(e, Q_UNSUPPORTED,
                          "structured_outputs: \"%.60s\" is not supported; accepted are json, "
                          "json_object, regex, choice, grammar, structural_tag, "
                          "disable_any_whitespace and whitespace_pattern",
                          key);
        a.kind = keys[i].kind | (compact ? STRUCTURED_COMPACT : 0);
        a.value = v;
        if (!strcmp(key, "json_object"))
            a.text = "{\"type\":\"object\"}";
        enum q_code rc = take_grammar(&a, spaces_of(p), s, ids, e);
        if (rc != Q_OK)
            return rc;
    }
    return Q_OK;
}

FALLIBLE structured_read(const struct params *p, struct sample_params *s, struct params_ids *ids,
                         struct q_err *e)
{
    const struct ask asks[] = {
        {"guided_json", STRUCTURED_JSON, p->guided_json, NULL},
        {"guided_regex", STRUCTURED_REGEX, NULL, p->guided_regex},
        {"guided_choice", STRUCTURED_CHOICE, p->guided_choice, NULL},
        {"guided_grammar", STRUCTURED_EBNF, NULL, p->guided_grammar},
        {"structural_tag", STRUCTURED_TAGS, p->structural_tag, NULL},
        {"json_schema", STRUCTURED_JSON, p->json_schema, NULL},
        {"regex", STRUCTURED_REGEX, NULL, p->regex},
        {"ebnf", STRUCTURED_EBNF, NULL, p->ebnf},
        {"grammar", STRUCTURED_EBNF, NULL, p->grammar},
    };
    enum q_code rc = Q_OK;
    if (p->response_format)
        rc = read_format(p, s, ids, e);
    if (rc == Q_OK && p->structured_outputs)
        rc = read_outputs(p, s, ids, e);
    for (size_t i = 0; rc == Q_OK && i < sizeof asks / sizeof *asks; i++)
        if (asks[i].value || asks[i].text)
            rc = take_grammar(&asks[i], spaces_of(p), s, ids, e);
    if (rc == Q_OK && s->grammar && p->use_beam_search)
        return q_fail(e, Q_UNSUPPORTED,
                      "use_beam_search: not supported together with structured output");
    return rc;
}

void structured_calls(const struct buf *tags, struct sample_params *s)
{
    if (!tags->len)
        return;
    s->grammar = STRUCTURED_TAGS;
    s->grammar_data = tags->data;
    s->n_grammar = (uint32_t)tags->len;
}
