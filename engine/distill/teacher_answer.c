/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/teacher_answer.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/json_read.h"
#include "common/mem.h"

#define MOST  0.01       /* what rounding makes of a logarithm of 1; more is no probability */
#define LEAST (-65504.0) /* of an f16, in which it is stored; servers write -9999 for -inf */

/* ---- the question ---- */

static uint32_t last_row(const struct teacher_question *q)
{
    uint32_t i = q->n;
    while (i && q->labels[i - 1] < 0)
        i--;
    return i ? i - 1 : 0;
}

static uint32_t prompt_tokens(const struct teacher_question *q)
{
    const uint32_t n = last_row(q) + 2;
    return n < q->n ? n : q->n;
}

void teacher_question_write(struct buf *out, const struct teacher_question *q)
{
    const uint32_t n = prompt_tokens(q);
    buf_add_str(out, "{\"model\":");
    buf_add_json_str(out, q->model, strlen(q->model));
    buf_add_str(out, ",\"prompt\":[");
    for (uint32_t i = 0; i < n; i++)
        buf_printf(out, "%s%u", i ? "," : "", q->ids[i]);
    buf_printf(out, "],\"max_tokens\":1,\"temperature\":0,\"prompt_logprobs\":%u}", q->top_k);
}

/* ---- the answer ---- */

struct candidate {
    uint32_t id;
    float logprob;
};

static int by_logprob(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logprob != y->logprob)
        return x->logprob > y->logprob ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* "123": {"logprob": -1.5, …} */
static FALLIBLE read_candidate(struct candidate *c, const char *key, const json_t *value,
                               uint32_t row, struct q_err *e)
{
    const json_t *logprob = json_object_get(value, "logprob");
    char *end = NULL;
    errno = 0;
    const unsigned long id = strtoul(key, &end, 10);
    if (*key < '0' || *key > '9' || *end || errno || id >= UINT32_MAX)
        return q_fail(e, Q_CORRUPT, "prompt_logprobs[%u]: \"%.40s\" is no token id", row, key);
    if (!json_is_number(logprob) && !json_is_null(logprob))
        return q_fail(e, Q_CORRUPT, "prompt_logprobs[%u]: token %lu has no logprob", row, id);
    const double x = json_is_null(logprob) ? LEAST : json_number_value(logprob);
    if (x > MOST)
        return q_fail(e, Q_CORRUPT,
                      "prompt_logprobs[%u]: token %lu has %g as a logprob, expected at most 0", row,
                      id, x);
    c->id = (uint32_t)id;
    c->logprob = (float)(x > 0 ? 0 : x > LEAST ? x : LEAST);
    return Q_OK;
}

static FALLIBLE read_row(struct candidate *all, const json_t *row, uint32_t i, uint32_t top_k,
                         struct q_err *e)
{
    const char *key;
    json_t *value;
    uint32_t n = 0;
    if (!json_is_object(row))
        return q_fail(e, Q_CORRUPT, "prompt_logprobs[%u] is no object", i);
    json_object_foreach ((json_t *)(uintptr_t)row, key, value) {
        if (n == top_k + 1)
            return q_fail(e, Q_CORRUPT, "prompt_logprobs[%u] has %zu tokens, expected %u or %u", i,
                          json_object_size(row), top_k, top_k + 1);
        const enum q_code rc = read_candidate(&all[n++], key, value, i, e);
        if (rc)
            return rc;
    }
    if (n < top_k)
        return q_fail(e, Q_CORRUPT, "prompt_logprobs[%u] has %u tokens, expected %u or %u", i, n,
                      top_k, top_k + 1);
    qsort(all, n, sizeof *all, by_logprob);
    qsort(all, top_k, sizeof *all, by_id);
    for (uint32_t k = 1; k < top_k; k++)
        if (all[k].id == all[k - 1].id)
            return q_fail(e, Q_CORRUPT, "prompt_logprobs[%u] has token %u twice", i, all[k].id);
    return Q_OK;
}

static FALLIBLE read_list(const json_t *list, const struct teacher_question *q, uint32_t *ids,
                          float *logprobs, struct q_err *e)
{
    struct candidate *all = q_calloc((size_t)q->top_k + 1, sizeof *all);
    enum q_code rc = all ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for a row");
    for (uint32_t t = 0, at = 0; t < q->n && !rc; t++) {
        if (q->labels[t] < 0)
            continue;
        rc = read_row(all, json_array_get(list, t + 1), t + 1, q->top_k, e);
        for (uint32_t k = 0; k < q->top_k && !rc; k++, at++) {
            ids[at] = all[k].id;
            logprobs[at] = all[k].logprob;
        }
    }
    q_free(all);
    return rc;
}

FALLIBLE teacher_answer_read(const char *body, size_t n, const struct teacher_question *q,
                             uint32_t *ids, float *logprobs, struct q_err *e)
{
    json_error_t why;
    json_t *root = json_read_bytes(body, n, 0, &why);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *list = json_object_get(choice, "prompt_logprobs");
    enum q_code rc;
    if (!root)
        rc = q_fail(e, Q_CORRUPT, "the response is no JSON: %.120s", why.text);
    else if (!json_is_object(choice))
        rc = q_fail(e, Q_CORRUPT, "the response has no choices");
    else if (!json_is_array(list))
        rc = q_fail(e, Q_UNSUPPORTED,
                    "the response has no prompt_logprobs: the server must be quire or vLLM, or "
                    "another one with this field of /v1/completions");
    else if (json_array_size(list) != prompt_tokens(q))
        rc = q_fail(e, Q_CORRUPT, "prompt_logprobs has %zu elements for a prompt of %u tokens",
                    json_array_size(list), prompt_tokens(q));
    else
        rc = read_list(list, q, ids, logprobs, e);
    json_decref(root);
    return rc;
}

void teacher_answer_error(char *out, size_t size, const char *body, size_t n)
{
    json_t *root = json_read_bytes(body, n, 0, NULL);
    const json_t *error = json_object_get(root, "error");
    const char *text = json_string_value(json_object_get(error, "message"));
    text = text ? text : json_string_value(error);
    text = text ? text : json_string_value(json_object_get(root, "message"));
    text = text ? text : json_string_value(json_object_get(root, "detail"));
    if (text)
        snprintf(out, size, "%s", text);
    else
        snprintf(out, size, "%.*s", (int)(n < 200 ? n : 200), body);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
    json_decref(root);
}

FALLIBLE teacher_answer_model(char *out, size_t size, const char *body, size_t n, struct q_err *e)
{
    json_t *root = json_read_bytes(body, n, 0, NULL);
    const json_t *first = json_array_get(json_object_get(root, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id"));
    enum q_code rc = Q_OK;
    if (!id || strlen(id) >= size)
        rc = q_fail(e, Q_CORRUPT, "the list of models names none");
    else
        snprintf(out, size, "%s", id);
    json_decref(root);
    return rc;
}
