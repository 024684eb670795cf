/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the table contain the offset of the member in struct params; one loop over the body's
 * keys does the rest. A key without a row is noted (unknown.h). */
#include "frontend/api/params.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include "common/json_read.h"
#include "common/utf8.h"
#include "frontend/api/beam_tree.h"
#include "frontend/api/json.h"
#include "frontend/api/tenant.h"

enum kind {
    KIND_NUM,
    KIND_INT,
    KIND_BOOL,
    KIND_STR,
    KIND_LIST,
    KIND_OBJECT,
    KIND_ANY,
    KIND_NOT_YET,
    KIND_NEVER,
    KIND_NO_EFFECT,
    KIND_TOLD
};

struct row {
    const char *name;
    enum kind kind;
    uint32_t where;
    double min, max;      /* NUM */
    int64_t imin, imax;   /* INT */
    size_t offset;        /* in struct params */
    int field;            /* enum field, -1 = none */
    const char *harmless; /* NOT_YET: JSON text; NEVER: the reason; TOLD: the values */
};

#define CHAT     WHERE_CHAT
#define TEXT     WHERE_TEXT
#define BOTH     WHERE_BOTH
#define TOKENS   WHERE_TOKENS
#define DETOK    WHERE_DETOK
#define EVERY    WHERE_EVERY
#define AT(name) offsetof(struct params, name), FIELD_##name
static const struct row rows[] = {
#define NUM(name, where, min, max)     {#name, KIND_NUM, where, min, max, 0, 0, AT(name), NULL},
#define INT(name, where, min, max)     {#name, KIND_INT, where, 0, 0, min, max, AT(name), NULL},
#define BOOL(name, where)              {#name, KIND_BOOL, where, 0, 0, 0, 0, AT(name), NULL},
#define STR(name, where)               {#name, KIND_STR, where, 0, 0, 0, 0, AT(name), NULL},
#define LIST(name, where)              {#name, KIND_LIST, where, 0, 0, 0, 0, AT(name), NULL},
#define OBJECT(name, where)            {#name, KIND_OBJECT, where, 0, 0, 0, 0, AT(name), NULL},
#define ANY(name, where)               {#name, KIND_ANY, where, 0, 0, 0, 0, AT(name), NULL},
#define NOT_YET(name, where, harmless) {#name, KIND_NOT_YET, where, 0, 0, 0, 0, 0, -1, harmless},
#define NEVER(name, where, reason)     {#name, KIND_NEVER, where, 0, 0, 0, 0, 0, -1, reason},
#define NO_EFFECT(name, where)         {#name, KIND_NO_EFFECT, where, 0, 0, 0, 0, 0, -1, NULL},
#define TOLD(name, where, values)      {#name, KIND_TOLD, where, 0, 0, 0, 0, 0, -1, values},
#include "frontend/api/fields.def"
};
#define N_ROW (sizeof(rows) / sizeof(*rows))

static enum q_code fail_kind(const struct row *r, const json_t *v, const char *want,
                             struct q_err *e)
{
    return q_fail(e, Q_INVALID, "%s: expected %s, got %s", r->name, want, json_kind(v));
}

static enum q_code read_num(struct params *p, const struct row *r, const json_t *v, struct q_err *e)
{
    double x = json_number_value(v);
    if (!json_is_number(v))
        return fail_kind(r, v, "a number", e);
    if (!(x >= r->min && x <= r->max))
        return q_fail(e, Q_INVALID, "%s: %g is out of range, expected %g to %g", r->name, x, r->min,
                      r->max);
    memcpy((char *)p + r->offset, &x, sizeof x);
    return Q_OK;
}

static enum q_code read_int(struct params *p, const struct row *r, const json_t *v, struct q_err *e)
{
    int64_t x = json_integer_value(v);
    double real = json_real_value(v);
    if (json_is_real(v) && real == floor(real) && fabs(real) >= 9e15)
        return q_fail(e, Q_INVALID, "%s: %.17g is out of range, expected %lld to %lld", r->name,
                      real, (long long)r->imin, (long long)r->imax);
    if (json_is_real(v) && real == floor(real))
        x = (int64_t)real; /* 16.0, as some JSON libraries write whole numbers */
    else if (!json_is_integer(v))
        return fail_kind(r, v, "an integer", e);
    if (x < r->imin || x > r->imax)
        return q_fail(e, Q_INVALID, "%s: %lld is out of range, expected %lld to %lld", r->name,
                      (long long)x, (long long)r->imin, (long long)r->imax);
    memcpy((char *)p + r->offset, &x, sizeof x);
    return Q_OK;
}

static enum q_code refuse_not_yet(const struct row *r, const json_t *v, struct q_err *e)
{
    json_t *harmless = json_read_string(r->harmless, JSON_DECODE_ANY, NULL);
    bool same = json_is_number(v) && json_is_number(harmless)
                    ? json_number_value(v) == json_number_value(harmless)
                    : json_equal(v, harmless);
    json_decref(harmless);
    if (same)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED, "%s: this field is not supported%s%s", r->name,
                  strcmp(r->harmless, "null") ? "; the only accepted value is "
                                              : "; remove the field",
                  strcmp(r->harmless, "null") ? r->harmless : "");
}

static enum q_code read_told(struct params *p, const struct row *r, const json_t *v,
                             struct q_err *e)
{
    const char *value = json_string_value(v);
    if (!value)
        return fail_kind(r, v, "a string", e);
    if (!unknown_is_one_of(value, r->harmless))
        return q_fail(e, Q_INVALID, "%s: unknown value \"%.40s\"; accepted are %s", r->name, value,
                      r->harmless);
    if (strncmp(value, r->harmless, strlen(value)) != 0)
        unknown_no_effect(&p->unknown, r->name);
    return Q_OK;
}

static enum q_code read_field(struct params *p, const struct row *r, const json_t *v,
                              struct q_err *e)
{
    char *place = (char *)p + r->offset;
    switch (r->kind) {
    case KIND_NUM:
        return read_num(p, r, v, e);
    case KIND_INT:
        return read_int(p, r, v, e);
    case KIND_BOOL:
        if (!json_is_boolean(v))
            return fail_kind(r, v, "true or false", e);
        *(bool *)place = json_is_true(v);
        return Q_OK;
    case KIND_STR:
        if (!json_is_string(v))
            return fail_kind(r, v, "a string", e);
        *(const char **)(void *)place = json_string_value(v);
        return Q_OK;
    case KIND_LIST:
        if (!json_is_array(v))
            return fail_kind(r, v, "an array", e);
        break;
    case KIND_OBJECT:
        if (!json_is_object(v))
            return fail_kind(r, v, "an object", e);
        break;
    case KIND_ANY:
        break;
    case KIND_NOT_YET:
        return refuse_not_yet(r, v, e);
    case KIND_NEVER:
        return q_fail(e, Q_UNSUPPORTED, "%s: not supported: %s; remove the field", r->name,
                      r->harmless);
    case KIND_NO_EFFECT:
        return Q_OK;
    case KIND_TOLD:
        return read_told(p, r, v, e);
    }
    *(const json_t **)(void *)place = v;
    return Q_OK;
}

/* The row of a name for this endpoint, else of another endpoint (then *elsewhere is set). */
static const struct row *find_row(const char *name, uint32_t where, bool *elsewhere)
{
    const struct row *other = NULL;
    for (size_t i = 0; i < N_ROW; i++) {
        if (strcmp(rows[i].name, name) != 0)
            continue;
        if (rows[i].where & where)
            return &rows[i];
        other = &rows[i];
    }
    *elsewhere = other != NULL;
    return other;
}

static void note_unknown(struct params *p, const char *name, uint32_t where)
{
    char names[4096] = "";
    size_t n = 0;
    const char *nearest = "";
    bool look = p->unknown.n_looked < UNKNOWN_LOOK_MAX;
    for (size_t i = 0; look && i < N_ROW && n < sizeof names; i++)
        if (rows[i].where & where)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? " " : "", rows[i].name);
    size_t n_nearest = unknown_nearest(&p->unknown, name, names, &nearest);
    unknown_note(&p->unknown, name, nearest, n_nearest);
}

static enum q_code read_stream_options(struct params *p, struct q_err *e)
{
    const char *key;
    json_t *v;
    if (!p->has[FIELD_stream_options])
        return Q_OK;
    if (!p->stream && json_object_size(p->stream_options))
        return q_fail(e, Q_INVALID, "stream_options: only allowed with \"stream\": true");
    json_object_foreach ((json_t *)p->stream_options, key, v) {
        bool usage = !strcmp(key, "include_usage"), all = !strcmp(key, "continuous_usage_stats");
        if (!strcmp(key, "include_obfuscation") && json_is_true(v))
            return q_fail(e, Q_UNSUPPORTED, "stream_options: include_obfuscation: not supported");
        if (!usage && !all)
            continue;
        if (!json_is_boolean(v) && !json_is_null(v))
            return q_fail(e, Q_INVALID, "stream_options: %s: expected true or false, got %s", key,
                          json_kind(v));
        *(usage ? &p->include_usage : &p->continuous_usage) = json_is_true(v);
    }
    p->continuous_usage &= p->include_usage; /* as in vLLM */
    return Q_OK;
}

/* -1: all; values above the size of every vocabulary are kept and rejected later. */
uint32_t params_count_logprobs(int64_t n)
{
    return n < 0 ? PARAMS_ALL : n < PARAMS_ALL ? (uint32_t)n : PARAMS_ALL - 1;
}

/* chat: logprobs is a boolean and top_logprobs the number; completions: logprobs is the number. */
static enum q_code read_logprobs(struct params *p, enum params_where where, struct q_err *e)
{
    const json_t *v = p->logprobs;
    p->n_logprob = SAMPLE_NO_LOGPROBS;
    if (where == WHERE_TEXT && v) {
        json_int_t n = json_integer_value(v);
        if (!json_is_integer(v) || n < -1)
            return q_fail(e, Q_INVALID,
                          "logprobs: expected an integer of 0 or more, or -1 for all, got %s",
                          json_is_integer(v) ? "a negative number" : json_kind(v));
        p->n_logprob = params_count_logprobs(n);
    } else if (where == WHERE_CHAT) {
        if (v && !json_is_boolean(v))
            return q_fail(e, Q_INVALID, "logprobs: expected true or false, got %s", json_kind(v));
        if (json_is_true(v))
            p->n_logprob = params_count_logprobs(p->top_logprobs);
        else if (p->has[FIELD_top_logprobs] && p->top_logprobs != 0)
            return q_fail(e, Q_INVALID, "top_logprobs: requires \"logprobs\": true");
    }
    if (p->has[FIELD_prompt_logprobs] && p->stream)
        return q_fail(e, Q_INVALID, "prompt_logprobs: not supported with \"stream\": true");
    return Q_OK;
}

/* Fields without effect in beam search, which takes the most likely tokens of the whole
 * vocabulary. */
static enum q_code check_beam(const struct params *p, struct q_err *e)
{
    const struct {
        const char *name;
        bool given;
    } others[] = {
        {"top_n_sigma", p->top_n_sigma > 0},
        {"prompt_logprobs", p->has[FIELD_prompt_logprobs]},
        {"thinking_token_budget", p->has[FIELD_thinking_token_budget]},
        {"echo", p->echo && p->logprobs},
        {"best_of", p->has[FIELD_best_of] && p->best_of != p->n},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].given)
            return q_fail(e, Q_UNSUPPORTED, "%s: not supported together with use_beam_search%s",
                          others[i].name, strcmp(others[i].name, "echo") ? "" : " and logprobs");
    if (p->n > BEAM_WIDTH_MAX)
        return q_fail(e, Q_INVALID, "n: %lld beams, expected 1 to %d with use_beam_search",
                      (long long)p->n, BEAM_WIDTH_MAX);
    return Q_OK;
}

/* n, best_of, and beams */
static enum q_code check_choices(const struct params *p, struct q_err *e)
{
    const char *when = json_string_value(p->early_stopping);
    if (p->has[FIELD_early_stopping] && !json_is_boolean(p->early_stopping) &&
        !(when && !strcmp(when, "never")))
        return q_fail(e, Q_INVALID, "early_stopping: expected true, false or \"never\", got %s",
                      when ? "another string" : json_kind(p->early_stopping));
    if (p->has[FIELD_best_of] && p->best_of < p->n)
        return q_fail(e, Q_INVALID, "best_of: %lld is less than n (%lld)", (long long)p->best_of,
                      (long long)p->n);
    if (p->stream && p->best_of > p->n)
        return q_fail(e, Q_INVALID,
                      "best_of: values above n are not supported with \"stream\": true, because "
                      "the best answers are only known at the end");
    if (p->use_beam_search)
        return check_beam(p, e);
    if (p->length_penalty != 1 || p->has[FIELD_early_stopping])
        return q_fail(e, Q_INVALID, "%s: only allowed with \"use_beam_search\": true",
                      p->length_penalty != 1 ? "length_penalty" : "early_stopping");
    return Q_OK;
}

static enum q_code check_prompt_fields(const struct params *p, struct q_err *e)
{
    const char *side = p->truncation_side;
    size_t n_salt = p->cache_salt ? utf8_count(p->cache_salt, strlen(p->cache_salt)) : 1;
    if (p->has[FIELD_truncate_prompt_tokens] && p->truncate_prompt_tokens == 0)
        return q_fail(e, Q_INVALID,
                      "truncate_prompt_tokens: 0 leaves no prompt; expected 1 or more, or -1 for "
                      "as many as fit");
    if (side && strcmp(side, "left") != 0 && strcmp(side, "right") != 0)
        return q_fail(e, Q_INVALID,
                      "truncation_side: unknown value \"%.40s\"; accepted are \"left\" (removes "
                      "the beginning) and \"right\"",
                      side);
    if (n_salt < 1 || n_salt > CACHE_SALT_MAX)
        return q_fail(e, Q_INVALID, "cache_salt: %zu characters, expected 1 to %d", n_salt,
                      CACHE_SALT_MAX);
    return Q_OK;
}

static enum q_code check_together(struct params *p, enum params_where where, struct q_err *e)
{
    enum q_code rc;
    if ((rc = read_stream_options(p, e)) || (rc = read_logprobs(p, where, e)))
        return rc;
    if ((rc = check_choices(p, e)) || (rc = check_prompt_fields(p, e)))
        return rc;
    if (p->has[FIELD_spaces_between_special_tokens] && !p->spaces_between_special_tokens &&
        !p->skip_special_tokens)
        return q_fail(e, Q_UNSUPPORTED,
                      "spaces_between_special_tokens: false is not supported together with "
                      "\"skip_special_tokens\": false");
    if (p->add_generation_prompt && p->continue_final_message) {
        if (p->has[FIELD_add_generation_prompt])
            return q_fail(
                e, Q_INVALID,
                "continue_final_message: cannot be true together with add_generation_prompt");
        p->add_generation_prompt = false;
    }
    return Q_OK;
}

/* The message starts with "field: "; note the field. */
void params_note_field(struct params *p, const struct q_err *e)
{
    size_t n = strcspn(e->message, ":");
    p->param[0] = 0;
    if (e->message[n] && n < sizeof p->param) {
        memcpy(p->param, e->message, n);
        p->param[n] = 0;
    }
}

FALLIBLE params_read(struct params *p, const json_t *body, enum params_where where, struct q_err *e)
{
    const char *key;
    json_t *v;
    enum q_code rc = Q_OK;
    memset(p, 0, sizeof *p);
    p->n = 1;
    p->length_penalty = 1;
    p->skip_special_tokens = p->add_generation_prompt = p->parallel_tool_calls = true;
    p->include_reasoning = p->detokenize = true;
    p->enable_prefix_caching = true;
    p->add_special_tokens = where != WHERE_CHAT;
    json_object_foreach ((json_t *)body, key, v) {
        bool elsewhere = false;
        const struct row *r = find_row(key, where, &elsewhere);
        if (json_is_null(v))
            continue;
        if (!r) {
            note_unknown(p, key, where);
            continue;
        }
        if (elsewhere && where >= WHERE_TOKENS) { /* the body of a chat is accepted too */
            unknown_no_effect(&p->unknown, key);
            continue;
        }
        if (elsewhere)
            rc = q_fail(e, Q_INVALID, "%s: this endpoint does not accept this field", key);
        else
            rc = read_field(p, r, v, e);
        if (rc != Q_OK)
            break;
        if (r->field >= 0)
            p->has[r->field] = true;
    }
    if (rc == Q_OK)
        rc = check_together(p, where, e);
    unknown_members(&p->unknown, body);
    if (rc != Q_OK)
        params_note_field(p, e);
    return rc;
}
