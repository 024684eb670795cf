/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/json.h"

#include <stdbool.h>
#include <string.h>
#include "common/cpus.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/parse.h"

#define PIECES_A_TURN 8 /* about 100 us */

struct text {          /* to be read */
    const char *bytes; /* [n] */
    size_t n;
    const char *name; /* "the body", in messages */
};

/* Depth and value count of JSON text, or an upper bound on them where it is malformed (the parser
 * will say so). */
static enum q_code check_size(const struct text *t, struct q_err *e)
{
    size_t n_value = 1;
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < t->n; i++) {
        char c = t->bytes[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"')
            in_string = true;
        else if (c == '[' || c == '{')
            depth++;
        else if (c == ']' || c == '}')
            depth--;
        n_value += c == ',' || c == '[' || c == '{';
        if (depth > JSON_DEPTH_MAX)
            return q_fail(e, Q_TOO_LARGE, "%s is nested deeper than %d levels", t->name,
                          JSON_DEPTH_MAX);
        if (n_value > JSON_VALUES_MAX)
            return q_fail(e, Q_TOO_LARGE, "%s has more than %u values", t->name, JSON_VALUES_MAX);
    }
    return Q_OK;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The text with ".0" behind every integer of more than 64 bits, so that jansson takes it for a
 * number; what field it belongs to then says whether it may be so large. */
static void write_as_reals(struct buf *b, const char *text, size_t n)
{
    bool in_string = false;
    for (size_t i = 0; i < n;) {
        char c = text[i];
        size_t end = i + 1;
        if (in_string && c == '\\' && end < n)
            end++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && is_digit(c)) {
            bool whole =
                i == 0 || (text[i - 1] != '.' && (text[i - 1] | 0x20) != 'e' && text[i - 1] != '+');
            while (end < n && is_digit(text[end]))
                end++;
            whole = whole && (end == n || (text[end] != '.' && (text[end] | 0x20) != 'e'));
            buf_add(b, text + i, end - i);
            if (whole && parse_exceeds_i64(text + i, end - i))
                buf_add_str(b, ".0");
            i = end;
            continue;
        }
        buf_add(b, text + i, end - i);
        i = end;
    }
}

/* jansson refuses integers of more than 64 bits, which JSON has; *error is of the first try. */
static json_t *load_again(const struct text *t, size_t flags, json_error_t *error)
{
    struct buf b = BUF_INIT;
    json_t *v = NULL;
    if (json_error_code(error) == json_error_numeric_overflow) {
        write_as_reals(&b, t->bytes, t->n);
        if (!b.failed)
            v = json_read_bytes(buf_str(&b), b.len, flags, error);
    }
    buf_release(&b);
    return v;
}

struct reader { /* of a text, for jansson, which asks for pieces of a KiB */
    const struct text *text;
    size_t at, n_piece;
};

static size_t read_piece(void *out, size_t room, void *reader)
{
    struct reader *r = reader;
    const size_t left = r->text->n - r->at, n = room < left ? room : left;
    memcpy(out, r->text->bytes + r->at, n);
    r->at += n;
    if (++r->n_piece % PIECES_A_TURN == 0)
        cpus_yield();
    return n;
}

static FALLIBLE load_json(json_t **out, const struct text *t, size_t flags, struct q_err *e)
{
    json_error_t error;
    struct reader r = {.text = t};
    const uint64_t n_failure = mem_failure_count();
    enum q_code rc = check_size(t, e);
    *out = NULL;
    if (rc != Q_OK)
        return rc;
    *out = json_read_callback(read_piece, &r, flags, &error);
    if (!*out)
        *out = load_again(t, flags, &error);
    if (!*out && mem_check(n_failure, Q_OK, t->name, e))
        return e->code;
    if (!*out && json_error_code(&error) == json_error_duplicate_key)
        return q_fail(e, Q_INVALID, "%s has a key twice in one object: line %d, column %d: %s",
                      t->name, error.line, error.column, error.text);
    if (!*out)
        return q_fail(e, Q_INVALID, "%s is not valid JSON: line %d, column %d: %s", t->name,
                      error.line, error.column, error.text);
    return Q_OK;
}

FALLIBLE json_text(json_t **out, const char *text, size_t n, struct q_err *e)
{
    const struct text t = {text, n, "the text"};
    return load_json(out, &t, JSON_ALLOW_NUL | JSON_DECODE_ANY, e);
}

FALLIBLE json_text_unique(json_t **out, const char *text, size_t n, struct q_err *e)
{
    const struct text t = {text, n, "the text"};
    return load_json(out, &t, JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, e);
}

FALLIBLE json_body(json_t **out, const char *text, size_t n, struct q_err *e)
{
    const struct text t = {text, n, "the body"};
    json_t *v;
    enum q_code rc;
    *out = NULL;
    if (n == 0)
        return q_fail(e, Q_INVALID, "the request has no body; expected a JSON object");
    if ((rc = load_json(&v, &t, JSON_ALLOW_NUL, e)) != Q_OK)
        return rc;
    if (!json_is_object(v)) {
        json_decref(v);
        return q_fail(e, Q_INVALID, "the body must be a JSON object, got an array");
    }
    *out = v;
    return Q_OK;
}

static int add_piece(const char *data, size_t n, void *out)
{
    buf_add(out, data, n);
    return 0;
}

void json_add(struct buf *out, const json_t *v)
{
    if (json_dump_callback(v, add_piece, out, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        out->failed = Q_NO_MEMORY;
}
