/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/form.h"
#include "common/json_read.h"

/* The source's JSON, as the engine reads it. */
static json_t *parse(const char *source, size_t n, const char *what, struct q_err *e)
{
    json_error_t error;
    size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *v = json_read_bytes(source, n, flags, &error);
    if (!v && json_error_code(&error) == json_error_numeric_overflow)
        v = json_read_bytes(source, n, flags | JSON_DECODE_INT_AS_REAL, &error);
    if (!v && q_fail(e, Q_INVALID, "the %s is not valid JSON: %.100s (line %d, column %d)", what,
                     error.text, error.line, error.column))
        return NULL;
    return v;
}

static json_t *schema_format(const struct form *f, struct q_err *e)
{
    json_error_t error;
    const char *source = f->text;
    json_t *spaces = NULL, *schema;
    size_t n = f->n, at = 0;
    if (f->kind & FORM_SPACED) { /* the pattern stands before the schema */
        spaces = json_read_bytes(source, n, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &error);
        at = spaces ? (size_t)error.position : 0;
    } else if (f->kind & FORM_COMPACT) {
        spaces = json_string("");
    }
    schema = parse(source + at, n - at, "schema", e);
    if (!schema) {
        json_decref(spaces);
        return NULL;
    }
    return json_pack("{s:s,s:o,s:o*}", "type", "json_schema", "json_schema", schema,
                     "whitespace_pattern", spaces);
}

static json_t *choice_format(const struct form *f, struct q_err *e)
{
    json_t *list = parse(f->text, f->n, "list of choices", e), *v, *elements = json_array();
    size_t i;
    json_array_foreach (list, i, v)
        if (json_string_length(v))
            json_array_append_new(elements,
                                  json_pack("{s:s,s:O}", "type", "const_string", "value", v));
    bool good = json_array_size(list) && json_array_size(elements) == json_array_size(list);
    if (list && !good &&
        q_fail(e, Q_INVALID, "guided_choice: expected a list of one or more non-empty strings"))
        good = false;
    json_decref(list);
    if (good)
        return json_pack("{s:s,s:o}", "type", "or", "elements", elements);
    json_decref(elements);
    return NULL;
}

static json_t *tag_of(const struct form *f, struct q_err *e)
{
    switch (f->kind & ~(FORM_COMPACT | FORM_SPACED)) {
    case FORM_JSON:
        return schema_format(f, e);
    case FORM_CHOICE:
        return choice_format(f, e);
    case FORM_REGEX:
        return json_pack("{s:s,s:s%}", "type", "regex", "pattern", f->text, f->n);
    default:
        return json_pack("{s:s,s:s%}", "type", "grammar", "grammar", f->text, f->n);
    }
}

bool form_binds(const struct form *f)
{
    uint32_t kind = f->kind & ~(FORM_COMPACT | FORM_SPACED);
    return kind != FORM_NONE && kind != FORM_TAGS;
}

FALLIBLE form_tag(json_t **out, const struct form *f, struct q_err *e)
{
    q_err_reset(e);
    *out = tag_of(f, e);
    if (*out)
        return Q_OK;
    return e->code ? e->code : q_fail(e, Q_NO_MEMORY, "out of memory for the answer's grammar");
}
