/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/record/record.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ALIGN       8u
#define MAGIC_BYTES 8u

struct frame {
    uint32_t kind, n_byte;
    uint64_t sum;
};

/* A struct that changes is another RECORD_VERSION. */
static_assert(sizeof(struct step_seq) == 20 && sizeof(struct step_head) == 56 &&
                  sizeof(struct step_admit) == 296 && sizeof(struct step_limits) == 36 &&
                  sizeof(struct record_head) == 120 && sizeof(struct record_row) == 24 &&
                  sizeof(struct record_adapter) == 32 && sizeof(struct record_items) == 16 &&
                  sizeof(struct step_item) == 88,
              "the layout of RECORD_VERSION 3");

/* ---- rows ---- */

static uint64_t row_sum(const struct step_result *r, const struct step_row *row)
{
    const uint32_t numbers[] = {row->rank, row->n_top};
    XXH64_hash_t sum = XXH3_64bits(numbers, sizeof numbers);
    sum = XXH3_64bits_withSeed(&row->logprob, sizeof row->logprob, sum);
    sum = XXH3_64bits_withSeed(r->top_ids + row->top_start, row->n_top * sizeof *r->top_ids, sum);
    return XXH3_64bits_withSeed(r->top_logprobs + row->top_start,
                                row->n_top * sizeof *r->top_logprobs, sum);
}

static int by_place(const void *p, const void *q)
{
    const struct record_row *a = p, *b = q;
    const uint32_t a_prompt = a->flags & RECORD_PROMPT, b_prompt = b->flags & RECORD_PROMPT;
    if (a->slot != b->slot)
        return a->slot < b->slot ? -1 : 1;
    if (a_prompt != b_prompt)
        return a_prompt ? -1 : 1;
    return (a->position > b->position) - (a->position < b->position);
}

void record_rows(struct record_row *out, const struct step_result *result)
{
    const uint32_t n = result->head->n_row;
    for (uint32_t i = 0; i < n; i++) {
        const struct step_row *row = &result->rows[i];
        out[i] = (struct record_row){
            .slot = row->slot,
            .position = row->position,
            .token = row->token,
            .flags =
                (row->is_prompt ? RECORD_PROMPT : 0) | (row->is_rejected ? RECORD_REJECTED : 0),
            .sum = row_sum(result, row),
        };
    }
    if (n)
        qsort(out, n, sizeof *out, by_place);
}

/* ---- writing ---- */

static uint64_t padded(uint64_t n)
{
    return (n + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
}

static uint64_t frame_sum(const struct frame *f, const void *payload)
{
    const uint32_t numbers[] = {f->kind, f->n_byte};
    return XXH3_64bits_withSeed(payload, padded(f->n_byte), XXH3_64bits(numbers, sizeof numbers));
}

static void pad(struct buf *out)
{
    static const char zeros[ALIGN] = {0};
    buf_add(out, zeros, padded(out->len) - out->len);
}

/* The place of a frame's head, which end_frame fills. */
static size_t begin_frame(struct buf *out)
{
    static const struct frame none = {0};
    const size_t at = out->len;
    buf_add(out, &none, sizeof none);
    return at;
}

static void end_frame(struct buf *out, size_t at, enum record_kind kind)
{
    struct frame f = {.kind = (uint32_t)kind};
    const size_t n = out->len - at - sizeof f;
    pad(out);
    if (out->failed)
        return;
    f.n_byte = (uint32_t)n;
    f.sum = frame_sum(&f, out->data + at + sizeof f);
    memcpy(out->data + at, &f, sizeof f);
}

void record_begin(struct buf *out)
{
    buf_add(out, RECORD_MAGIC, MAGIC_BYTES);
}

void record_put(struct buf *out, enum record_kind kind, const void *payload, size_t n)
{
    const size_t at = begin_frame(out);
    buf_add(out, payload, n);
    end_frame(out, at, kind);
}

static void add_text(struct buf *out, const char *text)
{
    buf_add(out, text, strlen(text) + 1);
}

void record_put_head(struct buf *out, const struct record_head *head,
                     const struct record_texts *texts)
{
    const size_t at = begin_frame(out);
    buf_add(out, head, sizeof *head);
    add_text(out, texts->model);
    add_text(out, texts->weights_dir);
    for (uint32_t i = 0; i < head->n_option; i++)
        add_text(out, texts->options[i]);
    end_frame(out, at, RECORD_HEAD);
}

/* The pointers of parameters mean nothing in a step. */
static void clear_pointers(void *step, size_t n)
{
    struct step_view v;
    struct q_err ignored = Q_ERR_INIT;
    const struct step_head head = *(const struct step_head *)step;
    if (step_layout(&v, step, n, &head, &ignored))
        return;
    for (uint32_t i = 0; i < head.n_admit; i++) {
        struct sample_params *p = &v.admits[i].params;
        p->stop_ids = p->bias_ids = p->allowed_ids = p->bad_words = p->thinking = NULL;
        p->bias = NULL;
        p->grammar_data = NULL;
        p->grammar_after = p->reasoning_tags = NULL;
    }
}

void record_put_step(struct buf *out, const struct step_view *view,
                     const struct record_step *counts, const struct record_row *rows)
{
    const size_t at = begin_frame(out);
    buf_add(out, counts, sizeof *counts);
    buf_add(out, rows, counts->n_row * sizeof *rows);
    const size_t step_at = out->len;
    buf_add(out, view->head, counts->step_bytes);
    if (!out->failed)
        clear_pointers(out->data + step_at, counts->step_bytes);
    end_frame(out, at, RECORD_STEP);
}

void record_put_adapter(struct buf *out, const struct record_adapter *a, const char *dir)
{
    const size_t at = begin_frame(out);
    buf_add(out, a, sizeof *a);
    add_text(out, dir);
    end_frame(out, at, RECORD_ADAPTER);
}

void record_put_items(struct buf *out, const struct record_items *head,
                      const struct step_item *items, const unsigned char *store)
{
    const size_t at = begin_frame(out);
    buf_add(out, head, sizeof *head);
    buf_add(out, items, head->n_item * sizeof *items);
    for (uint32_t i = 0; i < head->n_item; i++) {
        buf_add(out, store + items[i].offset, items[i].n_byte);
        pad(out);
    }
    end_frame(out, at, RECORD_ITEMS);
}

/* ---- reading ---- */

static enum q_code corrupt(const struct record_reader *r, const char *what, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "at byte %zu: %s", r->at, what);
}

/* The next frame's payload. *payload NULL: the end, or a frame that is cut. */
static FALLIBLE next_frame(struct record_reader *r, struct frame *f, const unsigned char **payload,
                           struct q_err *e)
{
    *payload = NULL;
    if (r->at == r->n)
        return Q_OK;
    r->is_incomplete = true;
    if (r->n - r->at < sizeof *f)
        return Q_OK;
    memcpy(f, r->data + r->at, sizeof *f);
    if (f->kind < RECORD_HEAD || f->kind > RECORD_ITEMS || f->n_byte > RECORD_PAYLOAD_MAX)
        return corrupt(r, "no frame begins here", e);
    if (padded(f->n_byte) > r->n - r->at - sizeof *f)
        return Q_OK;
    if (f->sum != frame_sum(f, r->data + r->at + sizeof *f))
        return corrupt(r, "a frame's checksum does not match its bytes", e);
    r->is_incomplete = false;
    *payload = r->data + r->at + sizeof *f;
    return Q_OK;
}

static size_t after(const struct frame *f)
{
    return sizeof *f + (size_t)padded(f->n_byte);
}

static FALLIBLE take_text(const struct record_reader *r, const char **out,
                          const unsigned char **from, const unsigned char *end, struct q_err *e)
{
    const unsigned char *nul = memchr(*from, 0, (size_t)(end - *from));
    if (!nul)
        return corrupt(r, "a text of the head does not end", e);
    *out = (const char *)*from;
    *from = nul + 1;
    return Q_OK;
}

static FALLIBLE check_head(const struct record_reader *r, struct q_err *e)
{
    const struct record_head *h = &r->head;
    size_t step_bytes, result_bytes;
    if (h->version < RECORD_VERSION_MIN || h->version > RECORD_VERSION)
        return q_fail(e, Q_MISMATCH,
                      "the format has version %u, expected %u to %u: use the quire that "
                      "wrote it",
                      h->version, RECORD_VERSION_MIN, RECORD_VERSION);
    if (h->n_option > RECORD_OPTIONS_MAX || !h->vocab_size ||
        !memchr(h->fingerprint, 0, RECORD_NAME_MAX) || !memchr(h->program, 0, RECORD_NAME_MAX) ||
        h->continues > 1)
        return corrupt(r, "the head has impossible values", e);
    return step_bytes_max(&step_bytes, &result_bytes, &h->limits, e);
}

FALLIBLE record_open(struct record_reader *r, const void *data, size_t n, struct q_err *e)
{
    struct frame f;
    const unsigned char *at;
    enum q_code rc;
    *r = (struct record_reader){.data = data, .n = n};
    if (n < MAGIC_BYTES || memcmp(data, RECORD_MAGIC, MAGIC_BYTES) != 0)
        return q_fail(e, Q_CORRUPT, "not a file of --record");
    r->at = MAGIC_BYTES;
    if ((rc = next_frame(r, &f, &at, e)))
        return rc;
    if (!at || f.kind != RECORD_HEAD || f.n_byte < sizeof r->head)
        return corrupt(r, "the head is missing or cut", e);
    memcpy(&r->head, at, sizeof r->head);
    if ((rc = check_head(r, e)))
        return rc;
    const unsigned char *end = at + f.n_byte;
    at += sizeof r->head;
    if ((rc = take_text(r, &r->texts.model, &at, end, e)) ||
        (rc = take_text(r, &r->texts.weights_dir, &at, end, e)))
        return rc;
    for (uint32_t i = 0; i < r->head.n_option; i++)
        if ((rc = take_text(r, &r->texts.options[i], &at, end, e)))
            return rc;
    r->at += after(&f);
    return Q_OK;
}

/* Any other byte is no bool. */
static bool has_bools(const struct sample_params *p)
{
    const bool *const bools[] = {&p->ignore_eos, &p->pools, &p->raw_vector, &p->adjusted_logprobs};
    for (size_t i = 0; i < sizeof bools / sizeof *bools; i++) {
        unsigned char byte;
        memcpy(&byte, bools[i], 1);
        if (byte > 1)
            return false;
    }
    return true;
}

static bool all_below(const uint32_t *ids, uint32_t n, uint32_t limit)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= limit)
            return false;
    return true;
}

/* What a scheduler checks before a worker gets it: parameters, and ids that index logits. */
static FALLIBLE check_admits(const struct record_reader *r, const struct step_view *v,
                             struct q_err *e)
{
    const uint32_t *stop_ids = v->stop_ids, *bias_ids = v->bias_ids, *lists = v->lists;
    const float *bias = v->bias;
    struct q_err why = Q_ERR_INIT;
    for (uint32_t i = 0; i < v->head->n_admit; i++) {
        const struct step_admit *a = &v->admits[i];
        if (!has_bools(&a->params) || !all_below(stop_ids, a->n_stop_id, r->head.vocab_size))
            return corrupt(r, "an admission with impossible values", e);
        struct sample_params p = a->params;
        p.n_stop_id = 0; /* with eos ids there are more than of a request */
        p.bias_ids = bias_ids;
        p.bias = bias;
        p.n_bias = a->n_bias;
        p.allowed_ids = lists;
        p.n_allowed = a->n_allowed;
        p.bad_words = lists + a->n_allowed;
        p.n_bad = a->n_bad;
        p.thinking = lists + a->n_allowed + a->n_bad + a->n_grammar;
        p.n_thinking = a->n_thinking;
        if (sample_params_check(&p, r->head.vocab_size, &why))
            return corrupt(r, why.message, e);
        stop_ids += a->n_stop_id;
        bias_ids += a->n_bias;
        bias += a->n_bias;
        lists += step_admit_lists(a);
    }
    return Q_OK;
}

static FALLIBLE view_step(const struct record_reader *r, struct step_view *v,
                          const unsigned char *at, size_t n, struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    /* only read: step_view is also for those who fill a step */
    if (step_view(v, (void *)(uintptr_t)at, n, &r->head.limits, &why))
        return corrupt(r, why.message, e);
    return check_admits(r, v, e);
}

static FALLIBLE read_step(const struct record_reader *r, struct record_item *out,
                          const unsigned char *at, size_t n, struct q_err *e)
{
    if (n < sizeof out->counts)
        return corrupt(r, "a step without counts", e);
    memcpy(&out->counts, at, sizeof out->counts);
    const struct record_step *c = &out->counts;
    const uint64_t row_bytes = (uint64_t)c->n_row * sizeof *out->rows;
    if (c->n_row > r->head.limits.logit_rows_max || row_bytes > n - sizeof *c ||
        c->step_bytes != n - sizeof *c - row_bytes)
        return corrupt(r, "a step whose counts do not match its bytes", e);
    out->rows = (const struct record_row *)(const void *)(at + sizeof *c);
    for (uint32_t i = 0; i < c->n_row; i++)
        if (out->rows[i].slot >= r->head.limits.max_num_seqs)
            return corrupt(r, "a row whose slot is beyond max_num_seqs", e);
    return view_step(r, &out->view, at + sizeof *c + row_bytes, (size_t)c->step_bytes, e);
}

static FALLIBLE read_slot(const struct record_reader *r, struct record_item *out,
                          const unsigned char *at, size_t n, struct q_err *e)
{
    const enum q_code rc = view_step(r, &out->view, at, n, e);
    const struct step_head *h = out->view.head;
    if (!rc && (h->n_seq != 1 || h->n_admit != 1 || h->n_out || h->n_in))
        return corrupt(r, "a running sequence is not one admission", e);
    return rc;
}

static FALLIBLE read_adapter(const struct record_reader *r, struct record_item *out,
                             const unsigned char *at, size_t n, struct q_err *e)
{
    struct record_adapter *a = &out->adapter;
    if (n <= sizeof *a || at[n - 1])
        return corrupt(r, "the folder of an adapter is no text", e);
    memcpy(a, at, sizeof *a);
    out->dir = (const char *)at + sizeof *a;
    if (!a->number || a->is_dropped > 1 || !memchr(a->digest, 0, sizeof a->digest))
        return corrupt(r, "an adapter with impossible values", e);
    return Q_OK;
}

FALLIBLE record_read_items(struct record_table *out, const void *payload, size_t n,
                           const struct step_limits *l, struct q_err *e)
{
    const struct record_items *head = payload;
    const struct step_item_limits limits = {step_store_bytes(l), UINT32_MAX, l->max_model_len};
    const uint64_t table = n < sizeof *head ? 0 : head->n_item * sizeof *out->items;
    if (!table || table > n - sizeof *head || head->i_admit >= l->max_num_seqs ||
        head->offset % ALIGN || head->offset > limits.store_bytes ||
        table > limits.store_bytes - head->offset)
        return q_fail(e, Q_CORRUPT, "a table of items that is not in the store");
    *out = (struct record_table){
        .payload = payload,
        .n_payload = n,
        .head = *head,
        .items = (const void *)(head + 1),
    };
    out->contents = (const unsigned char *)(head + 1) + table;
    const enum q_code rc = step_items_check(out->items, head->n_item, &limits, e);
    uint64_t left = n - sizeof *head - table;
    for (uint32_t i = 0; i < head->n_item && !rc; i++) {
        const uint64_t n_one = padded(out->items[i].n_byte);
        if (n_one > left)
            return q_fail(e, Q_CORRUPT, "the contents of items are cut");
        left -= n_one;
    }
    return rc || !left ? rc : q_fail(e, Q_CORRUPT, "more contents than items");
}

void record_place(const struct record_table *t, unsigned char *store)
{
    const unsigned char *from = t->contents;
    for (uint32_t i = 0; i < t->head.n_item; i++) {
        const struct step_item *x = &t->items[i];
        memcpy(store + x->offset, from, x->n_byte);
        from += padded(x->n_byte);
    }
    memcpy(store + t->head.offset, t->items, t->head.n_item * sizeof *t->items);
}

static FALLIBLE read_items(const struct record_reader *r, struct record_item *out,
                           const unsigned char *at, size_t n, struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    return record_read_items(&out->table, at, n, &r->head.limits, &why) ? corrupt(r, why.message, e)
                                                                        : Q_OK;
}

FALLIBLE record_next(struct record_reader *r, struct record_item *out, bool *more, struct q_err *e)
{
    struct frame f;
    const unsigned char *at;
    enum q_code rc = next_frame(r, &f, &at, e);
    *more = false;
    if (rc || !at)
        return rc;
    *out = (struct record_item){.kind = (enum record_kind)f.kind, .reason = ""};
    switch (out->kind) {
    case RECORD_HEAD:
        return corrupt(r, "a second head", e);
    case RECORD_STEP:
        rc = read_step(r, out, at, f.n_byte, e);
        break;
    case RECORD_SLOT:
        rc = read_slot(r, out, at, f.n_byte, e);
        break;
    case RECORD_WORKER:
        break;
    case RECORD_ADAPTER:
        rc = read_adapter(r, out, at, f.n_byte, e);
        break;
    case RECORD_ITEMS:
        rc = read_items(r, out, at, f.n_byte, e);
        break;
    case RECORD_END:
        if (!f.n_byte || at[f.n_byte - 1])
            return corrupt(r, "the reason of the end is no text", e);
        out->reason = (const char *)at;
        break;
    }
    if (rc)
        return rc;
    r->at += after(&f);
    *more = true;
    return Q_OK;
}
