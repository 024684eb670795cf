/* SPDX-License-Identifier: Apache-2.0 */
/* Rows are always copied to a buffer of the step, [n_row_max, hidden_size]: a row of a batch is
 * then where it is whatever the ring does, and the buffer is what a device gets. What a copy costs
 * is nothing beside a layer.
 *
 * Items of one row never go on behind a step, so only models with larger ones have a ring.
 * RING_ITEMS of the largest are kept: as many sequences may be in the middle of an item without
 * computing one twice. An item is found by the hash of its contents. Of an item that the whole team
 * computes, no more is computed than a step needs: images take long. */
#include "engine/worker/items.h"
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include "common/log.h"
#include "common/mem.h"

#define RING_ITEMS 4u

struct kept { /* rows of an item in the ring */
    uint64_t hash[4];
    uint32_t first, n;         /* rows; n 0: nothing */
    struct modality_span done; /* of an item that a team computes: which of them are there */
};
struct item_rows { /* an item's rows in the batch */
    const struct step_item *item;
    uint32_t row;      /* of the batch, of its first row here */
    uint32_t from, n;  /* rows of the item */
    struct kept *kept; /* where they are, or are to be kept; NULL: not in the ring */
    bool is_there;     /* kept->… has them */
    bool has_failed;
};
struct items {
    struct items_args a;
    uint32_t n_largest; /* rows of the largest item */
    float *rows;        /* [n_row_max, hidden_size] of the step */
    float *ring;        /* [n_ring, hidden_size] */
    uint32_t n_ring, ring_at;
    struct kept kept[RING_ITEMS * 2]; /* the oldest is overwritten */
    uint32_t kept_at;
    float *scratch;         /* [n_scratch, n_largest, hidden_size] */
    const float **row_of;   /* [n_row_max] */
    uint32_t *ids;          /* [n_row_max] of an item's rows */
    struct item_rows *seen; /* [n_row_max] */
    uint32_t n_seen;
    atomic_uint next_seen;
    atomic_ullong n_computed;
    uint64_t n_kept;
    void *memory; /* rows, ring, scratch: one mapping, pages when they are touched */
    size_t memory_bytes;
};

static uint32_t largest_item(const struct modalities *m)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < m->n; i++) {
        struct quire_item item;
        modality_largest(m, i, &item);
        n = item.n_token > n ? item.n_token : n;
    }
    return n;
}

static uint32_t ring_rows(uint32_t n_largest)
{
    return n_largest > 1 ? RING_ITEMS * n_largest : 0;
}

/* A thread's largest item; of items that the team computes together there is one at a time. */
static uint32_t n_scratch(const struct items_args *a)
{
    for (uint32_t i = 0; i < a->modalities->n; i++)
        if (!modality_is_of_team(a->modalities, i))
            return team_size(a->team);
    return 1;
}

static uint64_t floats_of(const struct items_args *a)
{
    const uint32_t n_largest = largest_item(a->modalities);
    return ((uint64_t)a->n_row_max + ring_rows(n_largest) + (uint64_t)n_scratch(a) * n_largest) *
           a->hidden_size;
}

uint64_t items_bytes(const struct items_args *a)
{
    return floats_of(a) * sizeof(float) +
           a->n_row_max * (sizeof(struct item_rows) + sizeof(const float *) + sizeof(uint32_t));
}

FALLIBLE items_new(struct items **out, const struct items_args *a, struct q_err *e)
{
    struct items *x = q_calloc(1, sizeof *x);
    if (!x)
        return q_fail(e, Q_NO_MEMORY, "items: out of memory");
    x->a = *a;
    x->n_largest = largest_item(a->modalities);
    x->n_ring = ring_rows(x->n_largest);
    x->memory_bytes = floats_of(a) * sizeof(float);
    x->memory = mmap(NULL, x->memory_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (x->memory == MAP_FAILED)
        x->memory = NULL;
    x->row_of = q_calloc(a->n_row_max, sizeof *x->row_of);
    x->seen = q_calloc(a->n_row_max, sizeof *x->seen);
    x->ids = q_calloc(a->n_row_max, sizeof *x->ids);
    if (!x->memory || !x->row_of || !x->seen || !x->ids) {
        items_free(x);
        return q_fail(e, Q_NO_MEMORY, "items: out of memory for %zu bytes of rows",
                      x->memory_bytes);
    }
    x->rows = x->memory;
    x->ring = x->rows + (size_t)a->n_row_max * a->hidden_size;
    x->scratch = x->ring + (size_t)x->n_ring * a->hidden_size;
    *out = x;
    return Q_OK;
}

void items_free(struct items *x)
{
    if (!x)
        return;
    if (x->memory)
        munmap(x->memory, x->memory_bytes);
    q_free(x->row_of);
    q_free(x->seen);
    q_free(x->ids);
    q_free(x);
}

void items_forget(struct items *x)
{
    memset(x->kept, 0, sizeof x->kept);
}

void items_stats(const struct items *x, struct items_stats *out)
{
    out->n_computed = atomic_load(&x->n_computed);
    out->n_kept = x->n_kept;
}

/* ---- the ring ---- */

static struct kept *find_kept(struct items *x, const struct step_item *item)
{
    for (size_t i = 0; i < sizeof x->kept / sizeof *x->kept; i++)
        if (x->kept[i].n == item->n_token &&
            !memcmp(x->kept[i].hash, item->hash, sizeof item->hash))
            return &x->kept[i];
    return NULL;
}

/* Room for an item; entries that lie there are gone. Those of this step stay: NULL if they are in
 * the way. */
static struct kept *make_room(struct items *x, const struct step_item *item, uint32_t n_seen)
{
    if (item->n_token > x->n_ring)
        return NULL;
    const uint32_t first = item->n_token > x->n_ring - x->ring_at ? 0 : x->ring_at;
    struct kept *to = &x->kept[x->kept_at];
    for (uint32_t i = 0; i < n_seen; i++) {
        const struct kept *k = x->seen[i].kept;
        if (k && (k == to || (k->first < first + item->n_token && first < k->first + k->n)))
            return NULL;
    }
    for (size_t i = 0; i < sizeof x->kept / sizeof *x->kept; i++)
        if (x->kept[i].first < first + item->n_token && first < x->kept[i].first + x->kept[i].n)
            x->kept[i].n = 0;
    *to = (struct kept){.first = first, .n = item->n_token};
    memcpy(to->hash, item->hash, sizeof to->hash);
    x->ring_at = first + item->n_token;
    x->kept_at = (x->kept_at + 1) % (uint32_t)(sizeof x->kept / sizeof *x->kept);
    return to;
}

/* ---- a step ---- */

/* The rows of one sequence: positions start … start + n - 1 are rows `row` … of the batch. */
static void find_rows(struct items *x, const struct slot *slot, const struct attention_seq *q)
{
    const uint32_t end = q->start + q->n_query;
    for (uint32_t i = step_items_from(slot->items, slot->n_item, q->start);
         i < slot->n_item && slot->items[i].position < end; i++) {
        const struct step_item *item = &slot->items[i];
        const uint32_t from = q->start > item->position ? q->start - item->position : 0;
        const uint32_t left = end - (item->position + from), rest = item->n_token - from;
        Q_ASSERT(x->n_seen < x->a.n_row_max);
        x->seen[x->n_seen++] = (struct item_rows){
            .item = item,
            .row = q->row + (item->position + from - q->start),
            .from = from,
            .n = rest < left ? rest : left,
        };
    }
}

/* From the ring first, before anything there is overwritten; then room for those that go on. */
static void use_ring(struct items *x)
{
    for (uint32_t i = 0; i < x->n_seen && x->n_ring; i++) {
        struct item_rows *p = &x->seen[i];
        p->kept = p->n < p->item->n_token ? find_kept(x, p->item) : NULL;
        p->is_there = p->kept != NULL;
        x->n_kept += p->is_there;
    }
    for (uint32_t i = 0; i < x->n_seen && x->n_ring; i++) {
        struct item_rows *p = &x->seen[i];
        if (!p->kept && p->from + p->n < p->item->n_token)
            p->kept = make_room(x, p->item, x->n_seen);
    }
}

static struct quire_item item_of(const struct items *x, const struct step_item *s)
{
    struct quire_item item = {
        .index = s->index,
        .dtype = (enum quire_dtype)s->dtype,
        .n_dim = s->n_dim,
        .data = x->a.store + s->offset,
        .n_byte = s->n_byte,
        .n_token = s->n_token,
    };
    memcpy(item.dims, s->dims, sizeof item.dims);
    return item;
}

static FALLIBLE compute_item(struct items *x, const struct step_item *s, float *to, struct q_err *e)
{
    const struct quire_item item = item_of(x, s);
    const struct quire_rows out = {to, s->n_token, x->a.hidden_size, x->a.hidden_size};
    atomic_fetch_add_explicit(&x->n_computed, 1, memory_order_relaxed);
    if (s->n_token > x->n_largest)
        return q_fail(e, Q_INVALID, "%s[%u]: %u rows, more than the largest item has (%u)",
                      x->a.modalities->rows[s->modality].name, s->index, s->n_token, x->n_largest);
    return modality_embed(x->a.modalities, s->modality, &item, &out, e);
}

static void fill_nan(float *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        rows[i] = NAN;
}

static void forget_item(const struct items *x, struct item_rows *p, float *here)
{
    p->has_failed = true;
    if (p->kept)
        p->kept->n = 0;
    fill_nan(here, (size_t)p->n * x->a.hidden_size);
}

static void compute_one(struct items *x, struct item_rows *p, uint32_t ith)
{
    const size_t n_col = x->a.hidden_size;
    struct q_err ignored = Q_ERR_INIT; /* write_note finds it again */
    float *here = x->rows + p->row * n_col;
    float *whole = p->n == p->item->n_token ? here
                   : p->kept                ? x->ring + p->kept->first * n_col
                                            : x->scratch + (size_t)ith * x->n_largest * n_col;
    if (!p->is_there && compute_item(x, p->item, whole, &ignored))
        forget_item(x, p, here);
    else if (whole != here)
        memcpy(here, whole + p->from * n_col, p->n * n_col * sizeof *whole);
}

/* By the team: of the rows that the step has, those that are not in the ring. */
static void compute_part(struct items *x, struct item_rows *p)
{
    const size_t n_col = x->a.hidden_size;
    const struct quire_item item = item_of(x, p->item);
    struct modality_span want = {p->from, p->from + p->n}, none = {0, 0};
    struct modality_span *done = p->kept ? &p->kept->done : &none;
    float *here = x->rows + p->row * n_col;
    float *whole = p->n == item.n_token ? here
                   : p->kept            ? x->ring + p->kept->first * n_col
                                        : x->scratch;
    const struct quire_rows out = {whole, item.n_token, (uint32_t)n_col, n_col};
    Q_ASSERT(item.n_token <= x->n_largest);
    if (want.first < done->first || want.first > done->end) /* not the chunk behind the last one */
        *done = (struct modality_span){want.first, want.first};
    if (want.end > done->end) {
        want.first = done->end;
        want = modality_embed_part(x->a.modalities, p->item->modality, &item, want, &out);
        done->end = want.end;
        done->first = want.first < done->first ? want.first : done->first;
        atomic_fetch_add_explicit(&x->n_computed, 1, memory_order_relaxed);
    }
    if (whole != here)
        memcpy(here, whole + p->from * n_col, p->n * n_col * sizeof *whole);
}

/* Every thread: items as threads come for them. */
static void compute_rows(void *arg, uint32_t ith, uint32_t nth)
{
    struct items *x = arg;
    (void)nth;
    for (uint32_t i;
         (i = atomic_fetch_add_explicit(&x->next_seen, 1, memory_order_relaxed)) < x->n_seen;)
        if (!modality_is_of_team(x->a.modalities, x->seen[i].item->modality))
            compute_one(x, &x->seen[i], ith);
}

/* Items that a team computes, one after the other; true: there are others too. */
static bool compute_of_team(struct items *x)
{
    bool others = false;
    for (uint32_t i = 0; i < x->n_seen; i++)
        if (modality_is_of_team(x->a.modalities, x->seen[i].item->modality))
            compute_part(x, &x->seen[i]);
        else
            others = true;
    return others;
}

/* The first item of a sequence that failed is computed once more, for its message: so a message
 * does not depend on which thread came first, and threads share no text. */
static void write_note(struct items *x, const struct item_rows *p, uint32_t slot,
                       struct step_note *note)
{
    struct q_err e = Q_ERR_INIT;
    const struct modality *m = &x->a.modalities->rows[p->item->modality];
    if (compute_item(x, p->item, x->scratch, &e) == Q_OK)
        q_fail_text(&e, Q_INVALID, "%s[%u]: its rows could not be computed, and then they could",
                    m->name, p->item->index);
    step_note_set(note, slot, p->item->position, e.message);
    log_error("the rows of an item could not be computed: %s", note->text);
}

/* seen is in the order of the batch's sequences. */
static uint32_t write_notes(struct items *x, const struct slots *s, const struct step_view *v,
                            struct step_note *notes)
{
    const struct batch *b = &s->batch;
    uint32_t n = 0, i_seen = 0;
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const uint32_t end = b->seqs[i].row + b->seqs[i].n_query;
        bool failed = false;
        for (; i_seen < x->n_seen && x->seen[i_seen].row < end; i_seen++) {
            if (x->seen[i_seen].has_failed && !failed)
                write_note(x, &x->seen[i_seen], v->seqs[i].slot, &notes[n++]);
            failed |= x->seen[i_seen].has_failed;
        }
    }
    return n;
}

/* Where the batch finds the item's rows; those that are tokens get their ids. */
static void name_rows(const struct items *x, struct slots *s, const struct item_rows *p)
{
    const struct quire_item item = item_of(x, p->item);
    modality_tokens(x->a.modalities, p->item->modality, &item, p->from, p->n, x->ids);
    for (uint32_t j = 0; j < p->n; j++) {
        const uint32_t row = p->row + j;
        const bool is_row = x->ids[j] == MODALITY_ROW;
        x->row_of[row] = is_row ? x->rows + (size_t)row * x->a.hidden_size : NULL;
        s->token_ids[row] = is_row ? 0 : x->ids[j];
    }
}

uint32_t items_step(struct items *x, struct slots *s, const struct step_view *v,
                    struct step_note *notes)
{
    struct batch *b = &s->batch;
    b->item_rows = NULL;
    x->n_seen = 0;
    for (uint32_t i = 0; i < b->n_seq; i++)
        find_rows(x, &s->slots[v->seqs[i].slot], &b->seqs[i]);
    if (!x->n_seen)
        return 0;
    use_ring(x);
    memset(x->row_of, 0, b->n_token * sizeof *x->row_of);
    for (uint32_t i = 0; i < x->n_seen; i++)
        name_rows(x, s, &x->seen[i]);
    atomic_store_explicit(&x->next_seen, 0, memory_order_relaxed);
    if (compute_of_team(x))
        team_run(x->a.team, compute_rows, x);
    b->item_rows = x->row_of;
    return write_notes(x, s, v, notes);
}
