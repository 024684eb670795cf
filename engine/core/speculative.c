/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/speculative.h"
#include <jansson.h>
#include <string.h>
#include "common/hub/hub.h"
#include "common/json_read.h"
#include "engine/sched/scheduler.h"

#define FLAG       "--speculative-config"
#define LOOKUP     5   /* vLLM's default */
#define LOOKUP_MAX 256 /* tokens; longer runs say no more */

static const char *const known[] = {"method",
                                    "model",
                                    "revision",
                                    "num_speculative_tokens",
                                    "prompt_lookup_max",
                                    "prompt_lookup_min",
                                    "draft_tensor_parallel_size"};

static FALLIBLE check_keys(const json_t *root, struct q_err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)root, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found = found || strcmp(key, known[i]) == 0;
        if (!found)
            return q_fail(e, Q_INVALID,
                          FLAG ": unknown member \"%s\"; accepted are method, model, revision, "
                               "num_speculative_tokens, prompt_lookup_max, prompt_lookup_min and "
                               "draft_tensor_parallel_size",
                          key);
    }
    return Q_OK;
}

/* *out stays as it is when the field is not there. */
static FALLIBLE get_text(const char **out, const json_t *root, const char *key, struct q_err *e)
{
    const json_t *value = json_object_get(root, key);
    if (value && !json_is_string(value))
        return q_fail(e, Q_INVALID, FLAG ": %s must be a string", key);
    if (value)
        *out = json_string_value(value);
    return Q_OK;
}

static FALLIBLE get_number(uint32_t *out, const json_t *root, const char *key, uint32_t max,
                           struct q_err *e)
{
    const json_t *value = json_object_get(root, key);
    json_int_t n = json_integer_value(value);
    if (!value)
        return Q_OK;
    if (!json_is_integer(value) || n < 1 || n > (json_int_t)max)
        return q_fail(e, Q_INVALID, FLAG ": %s must be an integer from 1 to %u", key, max);
    *out = (uint32_t)n;
    return Q_OK;
}

static FALLIBLE fill_ngram(struct speculation *s, const json_t *root, struct q_err *e)
{
    enum q_code rc;
    s->method = SPECULATE_NGRAM;
    if ((rc = get_number(&s->ngram_max, root, "prompt_lookup_max", LOOKUP_MAX, e)) ||
        (rc = get_number(&s->ngram_min, root, "prompt_lookup_min", LOOKUP_MAX, e)))
        return rc;
    if (!s->ngram_max)
        s->ngram_max = s->ngram_min ? s->ngram_min : LOOKUP;
    if (!s->ngram_min)
        s->ngram_min = s->ngram_max;
    if (s->ngram_min > s->ngram_max)
        return q_fail(e, Q_INVALID,
                      FLAG ": prompt_lookup_min %u is greater than prompt_lookup_max %u",
                      s->ngram_min, s->ngram_max);
    return Q_OK;
}

static FALLIBLE fill_settings(struct speculation *s, const json_t *root, struct q_err *e)
{
    const char *method = NULL, *model = NULL, *revision = NULL;
    enum q_code rc;
    if (!json_is_object(root))
        return q_fail(e, Q_INVALID,
                      FLAG " must be a JSON object, e.g. "
                           "{\"method\": \"ngram\", \"num_speculative_tokens\": 4}");
    if ((rc = check_keys(root, e)) || (rc = get_text(&method, root, "method", e)) ||
        (rc = get_text(&model, root, "model", e)) ||
        (rc = get_text(&revision, root, "revision", e)) ||
        (rc = get_number(&s->n_draft_token, root, "num_speculative_tokens",
                         SCHEDULER_DRAFT_TOKENS_MAX, e)))
        return rc;
    const json_t *n_rank = json_object_get(root, "draft_tensor_parallel_size");
    if (n_rank && !(json_is_integer(n_rank) && json_integer_value(n_rank) == 1))
        return q_fail(
            e, Q_INVALID,
            FLAG ": draft_tensor_parallel_size must be 1: tensor parallelism is not supported yet");
    if (!s->n_draft_token)
        return q_fail(e, Q_INVALID, FLAG ": num_speculative_tokens is missing (1 to %u)",
                      SCHEDULER_DRAFT_TOKENS_MAX);
    if (!method)
        method = !model || strcmp(model, "ngram") == 0 || strcmp(model, "[ngram]") == 0
                     ? "ngram"
                     : "draft_model";
    if (strcmp(method, "ngram") == 0)
        return fill_ngram(s, root, e);
    if (strcmp(method, "draft_model") != 0)
        return q_fail(e, Q_INVALID,
                      FLAG ": unknown method \"%.40s\"; accepted are ngram and draft_model",
                      method);
    if (!model)
        return q_fail(e, Q_INVALID,
                      FLAG
                      ": method draft_model requires the member model, a folder or a model id");
    s->method = SPECULATE_DRAFT;
    rc = hub_resolve(s->draft_dir, model, revision, e);
    return rc ? q_wrap(e, FLAG) : Q_OK;
}

FALLIBLE speculative_parse(struct speculation *out, const char *text, struct q_err *e)
{
    json_error_t where;
    struct speculation s = {.method = SPECULATE_NOT};
    *out = s;
    if (!*text)
        return Q_OK;
    json_t *root = json_read_string(text, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return q_fail(e, Q_INVALID, FLAG " is not valid JSON: %s (at character %d)", where.text,
                      where.position);
    enum q_code rc = fill_settings(&s, root, e);
    json_decref(root);
    if (!rc)
        *out = s;
    return rc;
}
