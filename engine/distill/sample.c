/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/sample.h"
#include <string.h>
#include "common/chat/json.h"
#include "common/mem.h"
#include "engine/distill/sample_chat.h"

#define LABEL_IGNORED (-100) /* torch's ignore_index */

void sample_release(struct sample *s)
{
    q_free(s->ids);
    q_free(s->labels);
    *s = (struct sample){.ids = NULL};
}

uint32_t sample_count_labels(const int32_t *labels, uint32_t n)
{
    uint32_t n_counted = 0;
    for (uint32_t i = 1; i < n; i++)
        n_counted += labels[i] >= 0;
    return n_counted;
}

static enum q_code allocate(struct sample *s, size_t n, struct q_err *e)
{
    s->ids = q_alloc(n * sizeof *s->ids);
    s->labels = q_alloc(n * sizeof *s->labels);
    if (!s->ids || !s->labels)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a sample of %zu tokens", n);
    s->n = (uint32_t)n;
    return Q_OK;
}

/* ---- input_ids ---- */

static enum q_code get_array(const json_t **out, const json_t *line, const char *key,
                             struct q_err *e)
{
    const json_t *v = json_object_get(line, key);
    *out = json_is_null(v) ? NULL : v;
    if (*out && !json_is_array(*out))
        return q_fail(e, Q_INVALID, "%s: expected an array, got %s", key, json_kind(*out));
    return Q_OK;
}

static enum q_code check_length(const json_t *v, const char *key, size_t n, struct q_err *e)
{
    if (!v || json_array_size(v) == n)
        return Q_OK;
    return q_fail(e, Q_INVALID, "%s has %zu entries, input_ids %zu; expected as many", key,
                  json_array_size(v), n);
}

/* Positions before the padding at the end. */
static enum q_code masked_length(size_t *n, const json_t *mask, struct q_err *e)
{
    size_t end = json_array_size(mask);
    for (size_t i = 0; i < end; i++) {
        const json_t *v = json_array_get(mask, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1)
            return q_fail(e, Q_INVALID, "attention_mask[%zu]: expected 0 or 1, got %s", i,
                          json_is_integer(v) ? "another number" : json_kind(v));
        if (json_integer_value(v) == 0)
            *n = i < *n ? i : *n;
        else if (*n < i)
            return q_fail(e, Q_INVALID,
                          "attention_mask[%zu] is 1 behind a 0; expected padding at the end only",
                          i);
    }
    return Q_OK;
}

static enum q_code read_id(uint32_t *out, const json_t *v, size_t i, uint32_t vocab_size,
                           struct q_err *e)
{
    const json_int_t id = json_integer_value(v);
    if (!json_is_integer(v))
        return q_fail(e, Q_INVALID, "input_ids[%zu]: expected a token id, got %s", i, json_kind(v));
    if (id < 0 || id >= vocab_size)
        return q_fail(e, Q_INVALID, "input_ids[%zu] is %lld, expected 0 to %u", i, (long long)id,
                      vocab_size - 1);
    *out = (uint32_t)id;
    return Q_OK;
}

static enum q_code read_label(int32_t *out, const json_t *v, size_t i, uint32_t vocab_size,
                              struct q_err *e)
{
    const json_int_t id = json_integer_value(v);
    if (!json_is_integer(v))
        return q_fail(e, Q_INVALID, "labels[%zu]: expected a token id, got %s", i, json_kind(v));
    if (id != LABEL_IGNORED && (id < 0 || id >= vocab_size))
        return q_fail(e, Q_INVALID, "labels[%zu] is %lld, expected 0 to %u, or -100", i,
                      (long long)id, vocab_size - 1);
    *out = id == LABEL_IGNORED ? SAMPLE_NOT_COUNTED : (int32_t)id;
    return Q_OK;
}

static enum q_code read_ids(struct sample *out, const struct sample_source *source,
                            const json_t *line, struct q_err *e)
{
    const json_t *ids, *labels, *mask;
    enum q_code rc;
    if ((rc = get_array(&ids, line, "input_ids", e)) ||
        (rc = get_array(&labels, line, "labels", e)) ||
        (rc = get_array(&mask, line, "attention_mask", e)))
        return rc;
    size_t n = json_array_size(ids);
    if ((rc = check_length(labels, "labels", n, e)) ||
        (rc = check_length(mask, "attention_mask", n, e)) || (rc = masked_length(&n, mask, e)))
        return rc;
    if (n == 0)
        return q_fail(e, Q_INVALID, "input_ids has no token%s",
                      mask ? " that attention_mask leaves" : "");
    if ((rc = allocate(out, n, e)))
        return rc;
    for (size_t i = 0; i < n && !rc; i++) {
        rc = read_id(&out->ids[i], json_array_get(ids, i), i, source->vocab_size, e);
        out->labels[i] = (int32_t)out->ids[i];
        if (!rc && labels)
            rc = read_label(&out->labels[i], json_array_get(labels, i), i, source->vocab_size, e);
    }
    return rc;
}

/* ---- text ---- */

/* A vocabulary of the model that is smaller than the tokenizer's is a mistake that shows here. */
static enum q_code check_ids(const struct token_list *ids, uint32_t vocab_size, struct q_err *e)
{
    for (size_t i = 0; i < ids->n; i++)
        if (ids->ids[i] >= vocab_size)
            return q_fail(e, Q_INVALID, "the tokenizer gives token %u, the model has %u tokens",
                          ids->ids[i], vocab_size);
    return Q_OK;
}

static enum q_code read_text(struct sample *out, const struct sample_source *source,
                             const json_t *line, struct q_err *e)
{
    const json_t *text = json_object_get(line, "text");
    struct token_list ids = TOKEN_LIST_INIT;
    enum q_code rc;
    if (!json_is_string(text))
        return q_fail(e, Q_INVALID, "text: expected a string, got %s", json_kind(text));
    rc = tokenizer_encode(source->tokenizer, json_string_value(text), json_string_length(text),
                          true, &ids, e);
    if (!rc && source->eos != TOKEN_NONE && (ids.n == 0 || ids.ids[ids.n - 1] != source->eos))
        rc = token_list_add(&ids, source->eos, e);
    if (!rc && ids.n == 0)
        rc = q_fail(e, Q_INVALID, "text is empty");
    if (!rc && !(rc = check_ids(&ids, source->vocab_size, e)) && !(rc = allocate(out, ids.n, e)))
        for (size_t i = 0; i < ids.n; i++)
            out->labels[i] = (int32_t)(out->ids[i] = ids.ids[i]);
    token_list_release(&ids);
    return rc;
}

/* ---- messages ---- */

static enum q_code read_messages(struct sample *out, const struct sample_source *source,
                                 const json_t *line, struct q_err *e)
{
    struct sample_tokens t = {.ids = TOKEN_LIST_INIT};
    enum q_code rc = sample_chat_read(&t, source, line, e);
    if (!rc && t.ids.n == 0)
        rc = q_fail(e, Q_INVALID, "messages: the chat template writes nothing");
    if (!rc && !(rc = check_ids(&t.ids, source->vocab_size, e)) &&
        !(rc = allocate(out, t.ids.n, e)))
        for (size_t i = 0; i < t.ids.n; i++) {
            out->ids[i] = t.ids.ids[i];
            out->labels[i] = SAMPLE_NOT_COUNTED;
        }
    for (size_t k = 0; k < t.counted.n && !rc; k++)
        for (size_t i = t.counted.at[k].start; i < t.counted.at[k].end; i++)
            out->labels[i] = (int32_t)out->ids[i];
    token_list_release(&t.ids);
    ranges_release(&t.counted);
    return rc;
}

/* ---- a line ---- */

static const struct line_kind {
    const char *key;
    enum q_code (*read)(struct sample *out, const struct sample_source *source, const json_t *line,
                        struct q_err *e);
    bool needs_tokenizer;
} line_kinds[] = {
    {"input_ids", read_ids, false},
    {"text", read_text, true},
    {"messages", read_messages, true},
};

static enum q_code kind_of(const struct line_kind **out, const json_t *line, struct q_err *e)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof line_kinds / sizeof *line_kinds; i++) {
        const json_t *v = json_object_get(line, line_kinds[i].key);
        if (!v || json_is_null(v))
            continue;
        if (*out)
            return q_fail(e, Q_INVALID,
                          "it has %s and %s; expected one of input_ids, text and messages",
                          (*out)->key, line_kinds[i].key);
        *out = &line_kinds[i];
    }
    return *out ? Q_OK
                : q_fail(e, Q_INVALID,
                         "it has no input_ids, text or messages; expected one of them");
}

enum q_code sample_read(struct sample *out, const struct sample_source *source, const char *line,
                        size_t n, bool *needs_tokenizer, struct q_err *e)
{
    const struct line_kind *kind;
    json_t *root = NULL;
    *out = (struct sample){.ids = NULL};
    *needs_tokenizer = false;
    enum q_code rc = json_text_unique(&root, line, n, e);
    if (!rc && !json_is_object(root))
        rc = q_fail(e, Q_INVALID, "expected a JSON object, got %s", json_kind(root));
    if (!rc && !(rc = kind_of(&kind, root, e))) {
        *needs_tokenizer = kind->needs_tokenizer && !source->tokenizer;
        if (!*needs_tokenizer)
            rc = kind->read(out, source, root, e);
    }
    json_decref(root);
    if (!rc && !*needs_tokenizer && out->n > source->seq_len) {
        out->n = source->seq_len;
        out->truncated = true;
    }
    if (rc)
        sample_release(out);
    else if (out->n)
        out->n_counted = sample_count_labels(out->labels, out->n);
    return rc;
}
