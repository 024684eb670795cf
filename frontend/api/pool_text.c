/* SPDX-License-Identifier: Apache-2.0 */
/* Texts to token ids. A text that is cut keeps its special tokens: of a pair ids of the longer text
 * are taken away first, as transformers does (longest_first). */
#include <string.h>
#include "common/mem.h"
#include "frontend/api/pool.h"

/* Tokens that a prompt may have; SIZE_MAX: it is not cut. */
static size_t limit_of(const struct pool_job *j)
{
    if (!j->truncate)
        return SIZE_MAX;
    return j->truncate < 0 ? j->max_model_len : (size_t)j->truncate;
}

/* Ids [from, from + n) of the list, in their order, are all that stays. */
static void keep(struct token_list *l, size_t n, bool is_left)
{
    if (l->n <= n)
        return;
    if (is_left)
        memmove(l->ids, l->ids + (l->n - n), n * sizeof *l->ids);
    l->n = n;
}

/* `whole` is special tokens, `plain`, special tokens: cut to `n` ids. */
static void cut_between(struct token_list *whole, const struct token_list *plain, size_t n,
                        bool is_left)
{
    const size_t n_special = whole->n - plain->n, n_kept = n > n_special ? n - n_special : 0;
    size_t before = 0;
    while (before < n_special &&
           memcmp(whole->ids + before, plain->ids, plain->n * sizeof *plain->ids) != 0)
        before++;
    uint32_t *from = whole->ids + before;
    const size_t n_after = n_special - before, n_cut = plain->n - n_kept;
    if (is_left)
        memmove(from, from + n_cut, n_kept * sizeof *from);
    memmove(from + n_kept, from + plain->n, n_after * sizeof *from);
    whole->n -= n_cut;
}

static enum q_code encode_one(struct pool_job *j, struct pool_text *t, size_t limit,
                              struct q_err *e)
{
    const struct tokenizer *tok = j->app->served.tokenizer;
    struct tokenizer_text text = {
        .data = t->text,
        .n = t->n_text,
        .content = t->content,
        .inserts = t->inserts,
        .n_insert = t->n_insert,
    };
    struct token_list plain = TOKEN_LIST_INIT;
    struct buf joined = BUF_INIT;
    enum q_code rc = Q_OK;
    if (*j->prompt) { /* of texts alone */
        buf_add_str(&joined, j->prompt);
        buf_add(&joined, t->text, t->n_text);
        rc = buf_check(&joined, "a text with its prompt", e);
        text.data = buf_str(&joined);
        text.n = joined.len;
    }
    if (!rc)
        rc = tokenizer_encode_prompt(tok, &text, !j->is_plain, &t->ids, e);
    if (!rc && t->ids.n > limit && t->n_insert)
        rc = q_fail(e, Q_INVALID,
                    "a conversation with items has %zu tokens and is not cut; leave out "
                    "truncate_prompt_tokens",
                    t->ids.n);
    else if (!rc && t->ids.n > limit &&
             !(rc = tokenizer_encode_prompt(tok, &text, false, &plain, e)))
        cut_between(&t->ids, &plain, limit, j->is_left);
    token_list_release(&plain);
    buf_release(&joined);
    return rc;
}

static enum q_code encode_pair(struct pool_job *j, struct pool_text *t, size_t limit,
                               struct q_err *e)
{
    const struct tokenizer *tok = j->app->served.tokenizer;
    struct token_list a = TOKEN_LIST_INIT, b = TOKEN_LIST_INIT;
    const size_t n_special = tokenizer_pair_special(tok);
    const size_t most = limit > n_special ? limit - n_special : 0;
    enum q_code rc;
    if ((rc = tokenizer_encode(tok, t->text, t->n_text, false, &a, e)) ||
        (rc = tokenizer_encode(tok, t->second_text, t->n_second_text, false, &b, e)))
        goto out;
    if (a.n + b.n > most) {
        const size_t half = most / 2;
        const size_t n_a = a.n <= half ? a.n : b.n <= most - half ? most - b.n : most - half;
        keep(&a, n_a, j->is_left);
        keep(&b, most - a.n, j->is_left);
    }
    rc = tokenizer_encode_pair(tok,
                               &(struct tokenizer_pair){
                                   .first = a.ids,
                                   .second = b.ids,
                                   .n_first = a.n,
                                   .n_second = b.n,
                               },
                               &t->ids, &t->second_at, e);
    if (!j->app->served.pooling.pair_types)
        t->second_at = 0;
out:
    token_list_release(&a);
    token_list_release(&b);
    return rc;
}

/* A text that has too many bytes is refused before it is encoded. */
static enum q_code check_bytes(struct pool_job *j, size_t i, struct q_err *e)
{
    const struct served_model *s = &j->app->served;
    const struct pool_text *t = &j->texts[i];
    const size_t n = t->n_text + t->n_second_text + strlen(j->prompt);
    if (!t->text || j->truncate || served_model_may_fit(s, n, j->max_model_len))
        return Q_OK;
    j->too_long = true;
    return q_fail(e, Q_INVALID,
                  "This model's maximum context length is %u tokens, but text %zu has at least %zu "
                  "(%zu bytes); shorten it, or set truncate_prompt_tokens to -1",
                  j->max_model_len, i, n / s->token_bytes_max, n);
}

FALLIBLE pool_encode(struct pool_job *j, struct q_err *e)
{
    const size_t limit = limit_of(j);
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < j->n_text && !rc; i++)
        rc = check_bytes(j, i, e);
    for (size_t i = 0; i < j->n_text && !rc; i++) {
        struct pool_text *t = &j->texts[i];
        if (t->text)
            rc = t->second_text ? encode_pair(j, t, limit, e) : encode_one(j, t, limit, e);
        else
            keep(&t->ids, limit, j->is_left);
        if (!rc && t->ids.n == 0)
            rc = q_fail(e, Q_INVALID, "text %zu has no tokens", i);
    }
    return rc;
}

FALLIBLE pool_check_lengths(struct pool_job *j, struct q_err *e)
{
    const uint32_t most = app_max_model_len(j->app);
    if (j->truncate > most)
        return pool_fail_at(
            j,
            q_fail(e, Q_INVALID,
                   "truncate_prompt_tokens: %lld exceeds the model's maximum length, %u",
                   (long long)j->truncate, most),
            POOL_truncate_prompt_tokens);
    for (size_t i = 0; i < j->n_text; i++)
        if (j->texts[i].ids.n > most) {
            j->too_long = true;
            return q_fail(e, Q_INVALID,
                          "This model's maximum context length is %u tokens, but text %zu has %zu; "
                          "shorten it, or set truncate_prompt_tokens to -1",
                          most, i, j->texts[i].ids.n);
        }
    return Q_OK;
}
