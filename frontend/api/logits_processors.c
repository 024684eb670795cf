/* SPDX-License-Identifier: Apache-2.0 */
/* Exclusion of tokens: allowed_token_ids, bad_words, and the built-in processors named by
 * logits_processors. vLLM imports and runs the Python code that a request names, if the operator
 * allows it; here names are looked up in processors.def. */
#include <stddef.h>
#include <string.h>
#include "common/mem.h"
#include "frontend/api/json.h"
#include "frontend/api/params.h"

enum arg_kind { ARG_COUNT, ARG_NUMBER, ARG_IDS };

static const struct arg {
    const char *processor, *name;
    enum arg_kind kind;
    size_t offset;
    double min, max;
} args[] = {
#define PROCESSOR(name)
#define ARG(processor, name, kind, member, min, max) \
    {#processor, #name, ARG_##kind, offsetof(struct sample_params, member), min, max},
#include "frontend/api/processors.def"
};
#define N_ARG (sizeof(args) / sizeof(*args))

static enum q_code token_id(const char *field, size_t i, const json_t *v, uint32_t vocab_size,
                            uint32_t *id, struct q_err *e)
{
    json_int_t x = json_integer_value(v);
    if (!json_is_integer(v) || x < 0 || x >= (vocab_size ? vocab_size : UINT32_MAX))
        return q_fail(e, Q_INVALID, "%s: entry %zu is not a token id below %u", field, i,
                      vocab_size);
    *id = (uint32_t)x;
    return Q_OK;
}

static enum q_code read_allowed(const struct params *p, const struct params_context *c,
                                struct params_ids *ids, struct q_err *e)
{
    size_t i;
    json_t *v;
    uint32_t id;
    enum q_code rc;
    if (!p->has[FIELD_allowed_token_ids])
        return Q_OK;
    size_t n = json_array_size(p->allowed_token_ids);
    if (n == 0 || n > SAMPLE_ALLOWED_MAX)
        return q_fail(e, Q_INVALID, "allowed_token_ids: %zu entries, expected 1 to %d", n,
                      SAMPLE_ALLOWED_MAX);
    json_array_foreach ((json_t *)p->allowed_token_ids, i, v) {
        if ((rc = token_id("allowed_token_ids", i, v, c->vocab_size, &id, e)) ||
            (rc = token_list_add(&ids->allowed, id, e)))
            return rc;
    }
    return Q_OK;
}

/* Add a forbidden sequence. */
static enum q_code add_bad(struct params_ids *ids, const uint32_t *sequence, size_t n,
                           struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (n + 1 > SAMPLE_BAD_MAX - ids->bad_words.n)
        return q_fail(e, Q_INVALID,
                      "bad_words: the sequences exceed the limit of %d tokens in total (their "
                      "tokens plus one per sequence)",
                      SAMPLE_BAD_MAX);
    rc = token_list_add(&ids->bad_words, (uint32_t)n, e);
    for (size_t i = 0; rc == Q_OK && i < n; i++)
        rc = token_list_add(&ids->bad_words, sequence[i], e);
    return rc;
}

static enum q_code suppress(const json_t *list, const struct params_context *c,
                            struct params_ids *ids, struct q_err *e)
{
    size_t i;
    json_t *v;
    uint32_t id;
    enum q_code rc;
    if (!json_is_array(list))
        return q_fail(e, Q_INVALID,
                      "logits_processors: suppress_tokens: token_ids: expected an array, got %s",
                      json_kind(list));
    json_array_foreach ((json_t *)list, i, v) {
        if ((rc = token_id("logits_processors: suppress_tokens: token_ids", i, v, c->vocab_size,
                           &id, e)) ||
            (rc = add_bad(ids, &id, 1, e)))
            return rc;
    }
    return Q_OK;
}

static enum q_code set_arg(const struct arg *a, const json_t *v, const struct params_context *c,
                           struct sample_params *s, struct params_ids *ids, struct q_err *e)
{
    char *place = (char *)s + a->offset;
    double x = json_number_value(v);
    if (a->kind == ARG_IDS)
        return suppress(v, c, ids, e);
    if (!(a->kind == ARG_COUNT ? json_is_integer(v) : json_is_number(v)) ||
        !(x >= a->min && x <= a->max))
        return q_fail(e, Q_INVALID, "logits_processors: %s: %s: expected %s from %g to %g",
                      a->processor, a->name, a->kind == ARG_COUNT ? "an integer" : "a number",
                      a->min, a->max);
    if (a->kind == ARG_COUNT)
        *(uint32_t *)(void *)place = (uint32_t)x;
    else
        *(float *)(void *)place = (float)x;
    return Q_OK;
}

/* "no_repeat_ngram(ngram_size, window_size), …" */
static enum q_code fail_unknown(const char *name, struct q_err *e)
{
    char known[160];
    size_t n = 0;
    known[0] = 0;
    for (size_t i = 0; i < N_ARG && n < sizeof known; i++) {
        bool first = i == 0 || strcmp(args[i].processor, args[i - 1].processor) != 0;
        bool last = i + 1 == N_ARG || strcmp(args[i].processor, args[i + 1].processor) != 0;
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s%s%s%s", first && i ? ", " : "",
                              first ? args[i].processor : "", first ? "(" : ", ", args[i].name,
                              last ? ")" : "");
    }
    return q_fail(e, Q_INVALID, "logits_processors: unknown processor \"%.60s\"; accepted are %s",
                  name, known);
}

/* A constructor is a name, or {"qualname": …, "args": […], "kwargs": {…}} as in vLLM. */
static enum q_code read_processor(const json_t *v, const struct params_context *c,
                                  struct sample_params *s, struct params_ids *ids, struct q_err *e)
{
    const json_t *qualname = json_object_get(v, "qualname");
    const char *name = json_string_value(json_is_string(v) ? v
                                         : qualname        ? qualname
                                                           : json_object_get(v, "name"));
    const json_t *list = json_object_get(v, "args"), *named = json_object_get(v, "kwargs");
    size_t n_arg = 0, n_named = 0;
    if (!name)
        return q_fail(e, Q_INVALID,
                      "logits_processors: expected names, or objects with \"qualname\", \"args\" "
                      "and \"kwargs\"; got %s",
                      json_kind(v));
    for (size_t i = 0; i < N_ARG; i++) {
        if (strcmp(args[i].processor, name) != 0)
            continue;
        const json_t *by_name = json_object_get(named, args[i].name);
        const json_t *given = by_name ? by_name : json_array_get(list, n_arg);
        if (!given && n_arg == 0)
            return q_fail(e, Q_INVALID, "logits_processors: %s: the argument %s is missing", name,
                          args[i].name);
        enum q_code rc = given ? set_arg(&args[i], given, c, s, ids, e) : Q_OK;
        if (rc != Q_OK)
            return rc;
        n_named += by_name != NULL;
        n_arg++;
    }
    if (n_arg == 0)
        return fail_unknown(name, e);
    if (n_arg < json_array_size(list) || n_named < json_object_size(named))
        return q_fail(e, Q_INVALID, "logits_processors: %s: unknown or too many arguments", name);
    return Q_OK;
}

FALLIBLE params_masks(const struct params *p, const struct params_context *c,
                      struct sample_params *s, struct params_ids *ids, struct q_err *e)
{
    size_t i;
    json_t *v;
    ids->allowed.n = ids->bad_words.n = 0;
    enum q_code rc = read_allowed(p, c, ids, e);
    s->no_repeat_ngram = (uint32_t)p->no_repeat_ngram_size;
    s->top_n_sigma = p->top_n_sigma > 0 ? (float)p->top_n_sigma : 0;
    json_array_foreach ((json_t *)p->logits_processors, i, v) {
        if (rc == Q_OK)
            rc = read_processor(v, c, s, ids, e);
    }
    s->allowed_ids = ids->allowed.ids;
    s->n_allowed = (uint32_t)ids->allowed.n;
    s->bad_words = ids->bad_words.ids;
    s->n_bad = (uint32_t)ids->bad_words.n;
    return rc;
}

static enum q_code encode(const struct tokenizer *t, const char *space, const char *word,
                          struct token_list *out, struct q_err *e)
{
    struct buf text = BUF_INIT;
    buf_add_str(&text, space);
    buf_add_str(&text, word);
    enum q_code rc = buf_check(&text, "bad_words", e);
    out->n = 0;
    if (rc == Q_OK)
        rc = tokenizer_encode(t, buf_str(&text), text.len, false, out, e);
    buf_release(&text);
    return rc;
}

static enum q_code add_word(const struct tokenizer *t, size_t i, const json_t *v,
                            struct params_ids *ids, struct q_err *e)
{
    struct token_list plain = TOKEN_LIST_INIT, spaced = TOKEN_LIST_INIT;
    const char *word = json_string_value(v);
    enum q_code rc;
    if (word)
        word += strspn(word, " \t\n\v\f\r");
    if (!word || !*word)
        return q_fail(e, Q_INVALID, "bad_words: entry %zu: expected a word, got %s", i,
                      word ? "an empty string" : json_kind(v));
    if ((rc = encode(t, "", word, &plain, e)) || (rc = encode(t, " ", word, &spaced, e)) ||
        (rc = plain.n ? add_bad(ids, plain.ids, plain.n, e) : Q_OK))
        goto out;
    if (spaced.n && spaced.n == plain.n && spaced.ids[0] != plain.ids[0])
        rc = add_bad(ids, spaced.ids, spaced.n, e);
out:
    token_list_release(&plain);
    token_list_release(&spaced);
    return rc;
}

FALLIBLE params_bad_words(struct params *p, const struct tokenizer *t, struct sample_params *s,
                          struct params_ids *ids, struct q_err *e)
{
    size_t i;
    json_t *v;
    enum q_code rc = Q_OK;
    if (json_array_size(p->bad_words) && !t)
        rc = q_fail(e, Q_UNSUPPORTED,
                    "bad_words: requires a tokenizer, but this server runs with "
                    "--skip-tokenizer-init; use the logits processor suppress_tokens");
    json_array_foreach ((json_t *)p->bad_words, i, v) {
        if (rc == Q_OK)
            rc = add_word(t, i, v, ids, e);
    }
    s->bad_words = ids->bad_words.ids;
    s->n_bad = (uint32_t)ids->bad_words.n;
    if (rc != Q_OK)
        snprintf(p->param, sizeof p->param, "bad_words");
    return rc;
}

void params_ids_release(struct params_ids *ids)
{
    q_free(ids->bias_ids);
    q_free(ids->bias);
    ids->bias_ids = NULL;
    ids->bias = NULL;
    token_list_release(&ids->allowed);
    token_list_release(&ids->bad_words);
    buf_release(&ids->grammar);
}
