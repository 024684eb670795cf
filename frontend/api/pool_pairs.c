/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of /score and /rerank, as clients of several APIs send them: strings, {"text": …} of Jina
 * and Cohere (whose other members say nothing about the text), and vLLM's {"content": [parts]}. All
 * become strings; parts are joined by newlines, as those of a chat message are. */
#include <string.h>
#include "common/mem.h"
#include "frontend/api/json.h"
#include "frontend/api/pool.h"

#define ACCEPTED                                                                      \
    "accepted are a string, {\"text\": …} and {\"content\": [{\"type\": \"text\", " \
    "\"text\": …}]}"

struct side {      /* one text, or several */
    json_t *texts; /* [n] strings; the job's */
    size_t n;
};

/* ---- one text ---- */

/* The text of a content part; NULL: it is none, and e says why. */
static const json_t *part_text(const json_t *part, size_t i, struct q_err *e)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    if (type && !strcmp(type, "text") && json_is_string(text))
        return text;
    if (type && strcmp(type, "text") != 0)
        (void)q_fail(e, Q_UNSUPPORTED, "content part %zu has the type \"%.40s\"; " ACCEPTED, i,
                     type);
    else
        (void)q_fail(e, Q_INVALID, "content part %zu has no %s; " ACCEPTED, i,
                     type ? "text" : "type");
    return NULL;
}

/* *out: a new string. */
static enum q_code join_parts(json_t **out, const json_t *parts, struct q_err *e)
{
    struct buf joined = BUF_INIT;
    json_t *part;
    size_t i;
    enum q_code rc = Q_OK;
    if (!json_is_array(parts) || !json_array_size(parts))
        return q_fail(e, Q_INVALID, "content is %s; " ACCEPTED,
                      json_is_array(parts) ? "empty" : json_kind(parts));
    json_array_foreach ((json_t *)parts, i, part) {
        const json_t *text = part_text(part, i, e);
        if (!text) {
            rc = e->code;
            break;
        }
        if (i)
            buf_add_char(&joined, '\n');
        buf_add(&joined, json_string_value(text), json_string_length(text));
    }
    if (!rc && !(rc = buf_check(&joined, "a text of several parts", e)) &&
        !(*out = json_stringn_nocheck(buf_str(&joined), joined.len)))
        rc = q_fail(e, Q_NO_MEMORY, "out of memory");
    buf_release(&joined);
    return rc;
}

/* *out: a string, to be released. */
static enum q_code read_text(json_t **out, json_t *item, struct q_err *e)
{
    json_t *text = json_object_get(item, "text"), *content = json_object_get(item, "content");
    *out = NULL;
    if (json_is_string(item)) {
        *out = json_incref(item);
        return Q_OK;
    }
    if (!json_is_object(item))
        return q_fail(e, Q_INVALID, "expected a text, got %s; " ACCEPTED, json_kind(item));
    if (!text == !content)
        return q_fail(e, Q_INVALID, "has %s text %s content; " ACCEPTED, text ? "both" : "neither",
                      text ? "and" : "nor");
    if (content)
        return join_parts(out, content, e);
    if (!json_is_string(text))
        return q_fail(e, Q_INVALID, "text is %s; " ACCEPTED, json_kind(text));
    *out = json_incref(text);
    return Q_OK;
}

/* ---- the two sides ---- */

static enum q_code read_side(struct side *s, const json_t *v, struct q_err *e)
{
    const bool is_list = json_is_array(v);
    s->n = is_list ? json_array_size(v) : 1;
    if (!v)
        return q_fail(e, Q_INVALID, "the field is missing");
    if (!s->n)
        return q_fail(e, Q_INVALID, "expected at least one text");
    if (!(s->texts = json_array()))
        return q_fail(e, Q_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < s->n; i++) {
        json_t *text;
        if (read_text(&text, is_list ? json_array_get(v, i) : (json_t *)v, e))
            return is_list ? q_wrap(e, "entry %zu", i) : e->code;
        if (json_array_append_new(s->texts, text))
            return q_fail(e, Q_NO_MEMORY, "out of memory for %zu texts", s->n);
    }
    return Q_OK;
}

static const json_t *side_at(const struct side *s, size_t i)
{
    return json_array_get(s->texts, s->n == 1 ? 0 : i);
}

static enum q_code add_pairs(struct pool_job *j, const struct side *a, const struct side *b,
                             struct q_err *e)
{
    enum q_code rc = pool_make_texts(j, b->n, e);
    for (size_t i = 0; i < b->n && !rc; i++) {
        const json_t *second = side_at(b, i);
        rc = pool_take_text(j, &j->texts[i], side_at(a, i), e);
        j->texts[i].second_text = json_string_value(second);
        j->texts[i].n_second_text = json_string_length(second);
    }
    return rc;
}

static enum q_code add_each(struct pool_job *j, const struct side *a, const struct side *b,
                            struct q_err *e)
{
    enum q_code rc = pool_make_texts(j, a->n + b->n, e);
    for (size_t i = 0; i < a->n + b->n && !rc; i++)
        rc = pool_take_text(j, &j->texts[i], i < a->n ? side_at(a, i) : side_at(b, i - a->n), e);
    return rc;
}

static enum q_code read_field(struct pool_job *j, struct side *s, json_t **keep,
                              enum pool_field field, struct q_err *e)
{
    enum q_code rc = read_side(s, j->fields[field], e);
    *keep = s->texts;
    return rc ? pool_fail_at(j, q_wrap(e, "%s", pool_field_name(field)), field) : Q_OK;
}

FALLIBLE pool_read_pairs(struct pool_job *j, struct q_err *e)
{
    static const enum pool_field firsts[] = {POOL_text_1, POOL_data_1, POOL_queries, POOL_query};
    static const enum pool_field seconds[] = {POOL_text_2, POOL_data_2, POOL_items, POOL_documents};
    enum pool_field first = j->form == POOL_RERANK ? POOL_query : POOL_text_1;
    enum pool_field second = j->form == POOL_RERANK ? POOL_documents : POOL_text_2;
    struct side a = {.n = 0}, b = {.n = 0};
    enum q_code rc;
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++)
        first = j->fields[firsts[i]] ? firsts[i] : first;
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        second = j->fields[seconds[i]] ? seconds[i] : second;
    if ((rc = read_field(j, &a, &j->sides[0], first, e)) ||
        (rc = read_field(j, &b, &j->sides[1], second, e)))
        return rc;
    if (a.n != 1 && (a.n != b.n || j->form == POOL_RERANK))
        return pool_fail_at(j,
                            q_fail(e, Q_INVALID, "%s: %zu texts for the %zu of %s, expected 1%s",
                                   pool_field_name(first), a.n, b.n, pool_field_name(second),
                                   j->form == POOL_RERANK ? "" : " or as many"),
                            first);
    j->n_first = a.n;
    j->n_second = b.n;
    j->is_paired = j->app->served.pooling.makes == ARCHS_CLASSIFIES;
    if (j->is_paired ? add_pairs(j, &a, &b, e) : add_each(j, &a, &b, e))
        return pool_fail_at(j, q_wrap(e, "%s", pool_field_name(second)), second);
    return Q_OK;
}
