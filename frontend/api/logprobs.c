/* SPDX-License-Identifier: Apache-2.0 */
/* Logprobs in three formats: OpenAI's for chat, OpenAI's older one for completions, and vLLM's
 * prompt_logprobs. A row of the wire has the token itself first, then the alternatives, most likely
 * first. */
#include <string.h>
#include "common/mem.h"
#include "common/utf8.h"
#include "frontend/api/job_internal.h"
#include "frontend/api/json.h"

/* The token's bytes, whose text has ill-formed parts replaced by buf_add_json_str. What fails here
 * is a failure of `out`: a name is never shorter than it is. */
static void token_bytes(const struct choice *c, uint32_t id, struct buf *out)
{
    struct q_err e = Q_ERR_INIT;
    const struct tokenizer *t = c->job->app->served.tokenizer;
    const enum q_code rc = t ? tokenizer_token_bytes(t, id, out, &e) : Q_OK;
    if (rc)
        out->failed = rc;
}

/* The name of a token: its text, or "token_id:N". */
static void add_name(const struct choice *c, uint32_t id, const struct buf *bytes, struct buf *out)
{
    buf_take_failure(out, bytes);
    if (c->job->params.return_tokens_as_token_ids || !c->job->app->served.tokenizer)
        buf_printf(out, "\"token_id:%d\"", (int)id);
    else
        buf_add_json_str(out, buf_str(bytes), bytes->len);
}

static void add_bytes(const struct buf *bytes, struct buf *out)
{
    buf_add_char(out, '[');
    for (size_t i = 0; i < bytes->len; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)bytes->data[i]);
    buf_add_char(out, ']');
}

static void add_chat_entry(const struct choice *c, uint32_t id, float logprob, struct buf *out)
{
    struct buf bytes = BUF_INIT;
    token_bytes(c, id, &bytes);
    buf_add_str(out, "{\"token\":");
    add_name(c, id, &bytes, out);
    buf_add_str(out, ",\"logprob\":");
    json_add_logprob(out, logprob);
    buf_add_str(out, ",\"bytes\":");
    add_bytes(&bytes, out);
    buf_release(&bytes);
}

static void add_chat(struct choice *c, const struct logprob_rows *r, uint32_t i_row, uint32_t id)
{
    const uint32_t *ids = r->ids + (size_t)i_row * r->n;
    const float *values = r->logprobs + (size_t)i_row * r->n;
    if (c->items.len)
        buf_add_char(&c->items, ',');
    add_chat_entry(c, id, values[0], &c->items);
    buf_add_str(&c->items, ",\"top_logprobs\":[");
    for (uint32_t i = 1; i < r->n && i <= c->job->sampling.n_logprob; i++) {
        if (i > 1)
            buf_add_char(&c->items, ',');
        add_chat_entry(c, ids[i], values[i], &c->items);
        buf_add_char(&c->items, '}');
    }
    buf_add_str(&c->items, "]}");
}

/* The distinct names of one row: different tokens may have the same text, but a JSON key must be
 * unique. Open addressing; a slot contains an entry's number + 1. */
#define NAMES_FEW 64u
struct names {
    uint32_t few[NAMES_FEW], *slots, n_slot; /* a power of two, at least twice the entries */
};

static bool names_init(struct names *s, uint32_t n)
{
    for (s->n_slot = NAMES_FEW; s->n_slot < 2 * n;)
        s->n_slot *= 2;
    memset(s->few, 0, sizeof s->few);
    s->slots = s->n_slot == NAMES_FEW ? s->few : q_calloc(s->n_slot, sizeof *s->slots);
    return s->slots;
}

static void names_release(struct names *s)
{
    if (s->slots != s->few)
        q_free(s->slots);
}

/* Add entry i with the text `bytes`; false if the name exists already. */
static bool names_add(struct names *s, struct choice *c, const uint32_t *ids, uint32_t i,
                      const struct buf *bytes)
{
    bool by_text = c->job->app->served.tokenizer && !c->job->params.return_tokens_as_token_ids;
    struct buf other = BUF_INIT;
    uint64_t h = UINT64_C(14695981039346656037) ^ (by_text ? 0 : ids[i]);
    for (size_t k = 0; by_text && k < bytes->len; k++)
        h = (h ^ (unsigned char)bytes->data[k]) * UINT64_C(1099511628211); /* FNV-1a */
    h *= UINT64_C(0x9e3779b97f4a7c15);
    uint32_t at = (uint32_t)(h >> 32) & (s->n_slot - 1);
    bool seen = false;
    while (s->slots[at] && !seen) {
        uint32_t id = ids[s->slots[at] - 1];
        buf_reset(&other);
        if (by_text)
            token_bytes(c, id, &other);
        buf_take_failure(&c->tops, &other); /* two names may be the same then */
        seen = id == ids[i] || (by_text && other.len == bytes->len &&
                                !memcmp(buf_str(&other), buf_str(bytes), other.len));
        at = (at + 1) & (s->n_slot - 1);
    }
    if (!seen)
        s->slots[at] = i + 1;
    buf_release(&other);
    return !seen;
}

/* {"name":logprob,…} of the n first entries */
static void add_tops(struct choice *c, const uint32_t *ids, const float *values, uint32_t n)
{
    struct buf bytes = BUF_INIT;
    struct names names;
    uint32_t n_out = 0;
    if (!names_init(&names, n)) {
        c->tops.failed = Q_NO_MEMORY;
        return;
    }
    buf_add_char(&c->tops, '{');
    for (uint32_t i = 0; i < n; i++) {
        buf_reset(&bytes);
        token_bytes(c, ids[i], &bytes);
        buf_take_failure(&c->tops, &bytes); /* also where the name counts as seen */
        if (!names_add(&names, c, ids, i, &bytes))
            continue;
        buf_add_str(&c->tops, n_out++ ? "," : "");
        add_name(c, ids[i], &bytes, &c->tops);
        buf_add_char(&c->tops, ':');
        json_add_logprob(&c->tops, values[i]);
    }
    buf_add_char(&c->tops, '}');
    names_release(&names);
    buf_release(&bytes);
}

/* Append a token in the older format; r NULL: without logprob (the first one of the prompt). */
static void add_text(struct choice *c, const struct logprob_rows *r, uint32_t i_row, uint32_t id)
{
    struct buf bytes = BUF_INIT;
    const char *comma = c->items.len ? "," : "";
    token_bytes(c, id, &bytes);
    buf_add_str(&c->items, comma);
    add_name(c, id, &bytes, &c->items);
    buf_printf(&c->offsets, "%s%zu", comma, c->n_char);
    c->n_char += utf8_count(buf_str(&bytes), bytes.len);
    buf_add_str(&c->values, comma);
    buf_add_str(&c->tops, comma);
    if (!r) {
        buf_add_str(&c->values, "null");
        buf_add_str(&c->tops, "null");
        buf_release(&bytes);
        return;
    }
    const uint32_t *ids = r->ids + (size_t)i_row * r->n;
    const float *values = r->logprobs + (size_t)i_row * r->n;
    json_add_logprob(&c->values, values[0]);
    add_tops(c, ids, values,
             r->n <= c->job->sampling.n_logprob ? r->n : c->job->sampling.n_logprob + 1);
    buf_release(&bytes);
}

void logprobs_token(struct choice *c, const struct logprob_rows *r, uint32_t i_row, uint32_t id)
{
    if (c->job->chat)
        add_chat(c, r, i_row, id);
    else
        add_text(c, r, i_row, id);
}

void logprobs_first(struct choice *c)
{
    add_text(c, NULL, 0, c->prompt->ids.ids[0]);
}

static void add_prompt_row(struct choice *c, const struct logprob_rows *r, uint32_t i_row,
                           uint32_t n_alternative)
{
    const uint32_t *ids = r->ids + (size_t)i_row * r->n;
    const float *values = r->logprobs + (size_t)i_row * r->n;
    struct buf bytes = BUF_INIT, *out = &c->prompt_rows;
    buf_add_str(out, ",{");
    for (uint32_t i = 0, n = 0; i < r->n && i <= n_alternative; i++) {
        if (i && ids[i] == ids[0])
            continue; /* the token itself is one of the most likely: included already */
        buf_reset(&bytes);
        token_bytes(c, ids[i], &bytes);
        buf_printf(out, "%s\"%u\":{\"logprob\":", n++ ? "," : "", ids[i]);
        json_add_logprob(out, values[i]);
        buf_printf(out, ",\"rank\":%u,\"decoded_token\":", i ? i : r->ranks[i_row]);
        add_name(c, ids[i], &bytes, out);
        buf_add_char(out, '}');
    }
    buf_add_char(out, '}');
    buf_release(&bytes);
}

void logprobs_prompt(struct choice *c, const struct logprob_rows *r)
{
    const struct params *p = &c->job->params;
    const struct token_list *prompt = prompt_ids(c->prompt);
    uint32_t n_before =
        c->generation.n_prompt_row - r->n_row; /* the link counted these rows already */
    for (uint32_t i = 0; i < r->n_row; i++) {
        uint32_t position = n_before + i + 1;
        if (position >= prompt->n)
            break;
        if (p->has[FIELD_prompt_logprobs] && prompt->ids[position] > INT32_MAX)
            buf_add_str(&c->prompt_rows, ",null"); /* a placeholder is no token */
        else if (p->has[FIELD_prompt_logprobs])
            add_prompt_row(c, r, i, (uint32_t)p->prompt_logprobs);
        if (p->echo && c->job->logprobs)
            add_text(c, r->ranks[i] ? r : NULL, i, prompt->ids[position]);
    }
}
