/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/mem.h"
#include "frontend/api/json.h"
#include "frontend/api/pool.h"

enum pool_type { TYPE_STR, TYPE_INT, TYPE_BOOL, TYPE_LIST, TYPE_OBJECT, TYPE_ANY };

#define EMBEDDINGS POOL_EMBEDDINGS
#define POOLING    POOL_POOLING
#define CLASSIFY   POOL_CLASSIFY
#define SCORE      POOL_SCORE
#define RERANK     POOL_RERANK
#define ALL        POOL_ALL
static const struct {
    const char *name;
    enum pool_type type;
    int forms;
} fields[POOL_FIELDS] = {
#define FIELD(name, type, forms) {#name, TYPE_##type, forms},
#include "frontend/api/pool_fields.def"
};
static const char names[] = ""
#define FIELD(name, type, forms) #name " "
#include "frontend/api/pool_fields.def"
    ;

const char *pool_field_name(enum pool_field field)
{
    return fields[field].name;
}

enum q_code pool_fail_at(struct pool_job *j, enum q_code rc, enum pool_field field)
{
    snprintf(j->param, sizeof j->param, "%s", fields[field].name);
    return rc;
}

/* ---- fields ---- */

static enum q_code check_type(struct pool_job *j, enum pool_field i, const json_t *v,
                              struct q_err *e)
{
    static const char *const expected[] = {
        "a string", "a whole number", "true or false", "an array", "an object", "",
    };
    const enum pool_type t = fields[i].type;
    if (t == TYPE_ANY || (t == TYPE_STR && json_is_string(v)) ||
        (t == TYPE_INT && json_is_integer(v)) || (t == TYPE_BOOL && json_is_boolean(v)) ||
        (t == TYPE_LIST && json_is_array(v)) || (t == TYPE_OBJECT && json_is_object(v)))
        return Q_OK;
    return pool_fail_at(
        j,
        q_fail(e, Q_INVALID, "%s: expected %s, got %s", fields[i].name, expected[t], json_kind(v)),
        i);
}

/* Fields of conversations do nothing to texts. */
static void note_idle(struct pool_job *j)
{
    static const enum pool_field of_messages[] = {
        POOL_add_generation_prompt,
        POOL_continue_final_message,
        POOL_chat_template,
        POOL_chat_template_kwargs,
    };
    for (size_t i = 0; i < sizeof of_messages / sizeof *of_messages; i++)
        if (!j->fields[POOL_messages] && j->fields[of_messages[i]])
            unknown_no_effect(&j->unknown, fields[of_messages[i]].name);
}

static enum q_code read_fields(struct pool_job *j, struct q_err *e)
{
    const char *name, *nearest = "";
    json_t *v;
    enum q_code rc;
    json_object_foreach (j->body, name, v) {
        int i = 0;
        while (i < POOL_FIELDS && strcmp(fields[i].name, name) != 0)
            i++;
        if (i == POOL_FIELDS || !(fields[i].forms & (int)j->form)) {
            const size_t n = unknown_nearest(&j->unknown, name, names, &nearest);
            unknown_note(&j->unknown, name, nearest, n);
            continue;
        }
        if (json_is_null(v))
            continue;
        if ((rc = check_type(j, (enum pool_field)i, v, e)))
            return rc;
        j->fields[i] = v;
    }
    note_idle(j);
    if ((rc = unknown_check(&j->unknown, j->app->options->strict_fields, e)))
        snprintf(j->param, sizeof j->param, "%.63s", j->unknown.first);
    return rc;
}

static const char *string_of(const struct pool_job *j, enum pool_field field, const char *absent)
{
    return j->fields[field] ? json_string_value(j->fields[field]) : absent;
}

/* One of the words of a field. */
static enum q_code check_word(struct pool_job *j, enum pool_field field, const char *words,
                              struct q_err *e)
{
    const char *is = string_of(j, field, NULL);
    if (!is || (*is && !strchr(is, ' ') && unknown_is_one_of(is, words)))
        return Q_OK;
    return pool_fail_at(j,
                        q_fail(e, Q_UNSUPPORTED, "%s: \"%.40s\" is not supported; accepted are: %s",
                               fields[field].name, is, words),
                        field);
}

/* Of prompt_name, or the folder's own. */
static enum q_code read_prompt(struct pool_job *j, struct q_err *e)
{
    const struct pooling *p = &j->app->served.pooling;
    const char *name = string_of(j, POOL_prompt_name, NULL), *known;
    const char *text = name ? json_string_value(json_object_get(p->prompts, name)) : p->prompt;
    struct buf all = BUF_INIT_MAX(256);
    json_t *v;
    enum q_code rc = Q_OK;
    j->prompt = "";
    if (j->fields[POOL_messages]) /* the chat template writes what is around the text */
        return name ? pool_fail_at(
                          j,
                          q_fail(e, Q_INVALID,
                                 "prompt_name: it is of input; messages have the prompt that "
                                 "the chat template writes"),
                          POOL_prompt_name)
                    : Q_OK;
    j->prompt = text ? text : "";
    if (p->excludes_prompt && *j->prompt)
        return pool_fail_at(
            j,
            q_fail(e, Q_UNSUPPORTED,
                   "prompt_name: the model's vectors leave out the tokens of \"%.60s\" "
                   "(include_prompt is false in its pooling's config.json), which is "
                   "not supported",
                   name ? name : ""),
            POOL_prompt_name);
    if (!name || text)
        return Q_OK;
    json_object_foreach (p->prompts, known, v)
        buf_printf(&all, "%s%s", all.len ? ", " : "", known);
    rc = p->prompts ? q_fail(e, Q_INVALID,
                             "prompt_name: \"%.60s\" is none of the model's prompts, which are %s",
                             name, buf_str(&all))
                    : q_fail(e, Q_INVALID,
                             "prompt_name: the model has no prompts (no "
                             "config_sentence_transformers.json with them)");
    buf_release(&all);
    return pool_fail_at(j, rc, POOL_prompt_name);
}

static enum q_code read_dimensions(struct pool_job *j, struct q_err *e)
{
    const struct pooling *p = &j->app->served.pooling;
    const json_int_t n = json_integer_value(j->fields[POOL_dimensions]);
    bool is_listed = !p->n_dim;
    if (!j->fields[POOL_dimensions] || n == p->n_out)
        return Q_OK;
    for (uint32_t i = 0; i < p->n_dim; i++)
        is_listed = is_listed || p->dims[i] == n;
    j->n_value = (uint32_t)n;
    if (n < 1 || n > p->n_out)
        return pool_fail_at(
            j,
            q_fail(e, Q_INVALID, "dimensions: expected 1 to %u, got %lld", p->n_out, (long long)n),
            POOL_dimensions);
    if (!p->is_matryoshka || p->makes != ARCHS_EMBEDS)
        return pool_fail_at(j,
                            q_fail(e, Q_INVALID,
                                   "dimensions: the model does not support fewer than its %u: its "
                                   "config.json has no is_matryoshka and no matryoshka_dimensions",
                                   p->n_out),
                            POOL_dimensions);
    if (!is_listed)
        return pool_fail_at(
            j,
            q_fail(e, Q_INVALID, "dimensions: %lld is not among the model's matryoshka_dimensions",
                   (long long)n),
            POOL_dimensions);
    return Q_OK;
}

/* Any of the names for the same; the last one given counts. */
static bool is_raw(const struct pool_job *j)
{
    static const enum pool_field flags[] = {POOL_normalize, POOL_activation, POOL_softmax,
                                            POOL_use_activation};
    bool raw = false;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (j->fields[flags[i]])
            raw = json_is_false(j->fields[flags[i]]);
    return raw;
}

static enum q_code read_settings(struct pool_job *j, struct q_err *e)
{
    const struct pooling *p = &j->app->served.pooling;
    const char *salt = string_of(j, POOL_cache_salt, "x");
    const json_int_t priority = json_integer_value(j->fields[POOL_priority]);
    enum q_code rc;
    if ((rc = check_word(j, POOL_encoding_format, POOL_ENCODING_WORDS, e)) ||
        (rc = check_word(j, POOL_embed_dtype, POOL_DTYPE_WORDS, e)) ||
        (rc = check_word(j, POOL_endianness, POOL_ENDIAN_WORDS, e)) ||
        (rc = check_word(j, POOL_truncation_side, "left right", e)) ||
        (rc = check_word(j, POOL_task, p->makes == ARCHS_EMBEDS ? "embed" : "classify", e)) ||
        (rc = read_dimensions(j, e)) || (rc = read_prompt(j, e)))
        return rc;
    if (!*salt || strlen(salt) > CACHE_SALT_MAX)
        return pool_fail_at(
            j, q_fail(e, Q_INVALID, "cache_salt: expected 1 to %d characters", CACHE_SALT_MAX),
            POOL_cache_salt);
    if (priority < INT32_MIN || priority > INT32_MAX)
        return pool_fail_at(j, q_fail(e, Q_INVALID, "priority: expected a number of 32 bits"),
                            POOL_priority);
    j->truncate = json_integer_value(j->fields[POOL_truncate_prompt_tokens]);
    if (j->fields[POOL_truncate_prompt_tokens] && (j->truncate < -1 || j->truncate == 0))
        return pool_fail_at(j,
                            q_fail(e, Q_INVALID,
                                   "truncate_prompt_tokens: expected -1 (the model's maximum) or a "
                                   "number from 1 on, got %lld",
                                   (long long)j->truncate),
                            POOL_truncate_prompt_tokens);
    j->values = pool_values_of(string_of(j, POOL_encoding_format, "float"),
                               string_of(j, POOL_embed_dtype, "float32"),
                               string_of(j, POOL_endianness, "native"));
    j->is_left = !strcmp(string_of(j, POOL_truncation_side, ""), "left");
    j->is_plain = j->fields[POOL_messages] ? !json_is_true(j->fields[POOL_add_special_tokens])
                                           : json_is_false(j->fields[POOL_add_special_tokens]);
    j->is_raw = is_raw(j);
    return Q_OK;
}

/* An answer in bytes needs a connection, and its header has a limit in every client. */
static enum q_code check_encoding(struct pool_job *j, struct q_err *e)
{
    if (pool_values_is_body(&j->values) && !j->app->server)
        return pool_fail_at(j,
                            q_fail(e, Q_UNSUPPORTED,
                                   "encoding_format: answers in a file are JSON; accepted are: "
                                   "float base64"),
                            POOL_encoding_format);
    if (j->values.encoding == POOL_BYTES && j->n_text > POOL_PLACES_MAX)
        return pool_fail_at(j,
                            q_fail(e, Q_INVALID,
                                   "encoding_format: bytes has a header with the place of each "
                                   "vector, for at most %u texts; bytes_only has none",
                                   POOL_PLACES_MAX),
                            POOL_encoding_format);
    return Q_OK;
}

/* ---- texts ---- */

enum q_code pool_make_texts(struct pool_job *j, size_t n, struct q_err *e)
{
    const size_t n_value = j->n_value ? j->n_value : j->app->served.pooling.n_out;
    if (n == 0)
        return q_fail(e, Q_INVALID, "expected at least one text");
    if (n > POOL_TEXTS_MAX || n * n_value > POOL_BYTES_MAX / sizeof(float))
        return q_fail(e, Q_TOO_LARGE,
                      "%zu texts with vectors of %zu values, expected at most %d texts and %zu MiB "
                      "of vectors in one request",
                      n, n_value, POOL_TEXTS_MAX, POOL_BYTES_MAX >> 20);
    j->texts = q_calloc(n, sizeof *j->texts);
    j->n_text = n;
    return j->texts ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for %zu texts", n);
}

enum q_code pool_take_text(struct pool_job *j, struct pool_text *t, const json_t *v,
                           struct q_err *e)
{
    if (!j->app->served.tokenizer)
        return q_fail(e, Q_UNSUPPORTED,
                      "this server has no tokenizer (--skip-tokenizer-init); send token ids");
    t->text = json_string_value(v);
    t->n_text = json_string_length(v);
    return Q_OK;
}

static enum q_code take_ids(struct pool_job *j, struct pool_text *t, const json_t *v,
                            struct q_err *e)
{
    const uint32_t vocab = j->app->served.config.vocab_size;
    enum q_code rc = Q_OK;
    size_t i;
    json_t *item;
    if (json_array_size(v) == 0)
        return q_fail(e, Q_INVALID, "a list of token ids is empty");
    if (j->fields[POOL_prompt_name])
        return q_fail(e, Q_INVALID, "prompt_name is of texts; token ids are taken as they are");
    json_array_foreach ((json_t *)v, i, item) {
        const json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= vocab)
            return q_fail(e, Q_INVALID, "entry %zu is no token id of the vocabulary (0 … %u)", i,
                          vocab - 1);
        if ((rc = token_list_add(&t->ids, (uint32_t)id, e)))
            return rc;
    }
    return rc;
}

static enum q_code take_one(struct pool_job *j, struct pool_text *t, const json_t *v,
                            struct q_err *e)
{
    if (json_is_string(v))
        return pool_take_text(j, t, v, e);
    if (json_is_array(v))
        return take_ids(j, t, v, e);
    return q_fail(e, Q_INVALID, "expected a string or an array of token ids, got %s", json_kind(v));
}

/* A string, strings, token ids, or lists of them. */
static enum q_code read_input(struct pool_job *j, struct q_err *e)
{
    const json_t *v = j->fields[POOL_input];
    const bool is_one = json_is_string(v) || json_is_integer(json_array_get(v, 0));
    enum q_code rc;
    if (!v)
        return q_fail(e, Q_INVALID, "the field is missing, expected input or messages");
    if (!is_one && !json_is_array(v))
        return q_fail(e, Q_INVALID,
                      "expected a string, an array of strings, of token ids, or of arrays of token "
                      "ids; got %s",
                      json_kind(v));
    if ((rc = pool_make_texts(j, is_one ? 1 : json_array_size(v), e)))
        return rc;
    for (size_t i = 0; i < j->n_text && !rc; i++)
        rc = take_one(j, &j->texts[i], is_one ? v : json_array_get(v, i), e);
    return rc;
}

FALLIBLE pool_read(struct pool_job *j, struct q_err *e)
{
    const struct app *a = j->app;
    enum q_code rc;
    if ((rc = json_body(&j->body, j->task.text.data, j->task.text.n, e)) ||
        (rc = read_fields(j, e)))
        return rc;
    if ((rc = served_model_check_name(&a->served, string_of(j, POOL_model, ""), e)))
        return pool_fail_at(j, rc, POOL_model);
    const char *id = string_of(j, POOL_request_id, NULL);
    if ((rc = reply_id_take(j->id, j->n_id_prefix, id, e)))
        return pool_fail_at(j, rc, POOL_request_id);
    const char *model = string_of(j, POOL_model, "");
    j->model = *model ? model : a->served.names[0];
    if ((rc = read_settings(j, e)))
        return rc;
    if (j->form == POOL_SCORE || j->form == POOL_RERANK)
        return pool_read_pairs(j, e);
    if (j->fields[POOL_messages])
        rc = pool_read_chat(j, e);
    else if (read_input(j, e))
        rc = pool_fail_at(j, q_wrap(e, "input"), POOL_input);
    return rc ? rc : check_encoding(j, e);
}
