/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/tune.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"

#define BLOCK_BYTES  ((1u << 20) - 48) /* of random numbers; rows that follow each other differ */
#define SAMPLE_ROWS  6u
#define HOPELESS     1.5f /* times the best so far, in a first run */
#define X_SCALE      0.0078125f
#define ROW_MULTIPLE 64u /* elements, as the rows of the device executor */

struct bench {
    const struct tuner *t;
    const struct device_tuning *what;
    struct device_tuned *out;
    struct tune_table table;
    int64_t start_ms;
    bool is_ready; /* the following buffers are allocated */
    void *x, *y;
    float *bias;
    struct quant_row *rows;
    void *host; /* BLOCK_BYTES, or a sample */
    size_t host_bytes;
    float *own; /* our kernel's sample, on the host */
    struct device_event *from, *to;
};

/* One product at one number of rows. */
struct trial {
    const struct device_product *p;
    struct lt_shape shape;
    uint32_t bucket, n_row;
    uint32_t n_col; /* of y */
    float best_ms;
    struct lt_choice best;
};

static void note(struct device_tuned *out, const char *text)
{
    const size_t n = strlen(out->note);
    snprintf(out->note + n, sizeof out->note - n, "%s%s", n ? "; " : "", text);
}

/* ---- shapes ---- */
static bool kind_of(enum lt_kind *out, const struct device_product *p)
{
    if (p->w->group || p->x_dtype != p->w->dtype)
        return false;
    switch (p->x_dtype) {
    case DT_BF16:
        *out = LT_KIND_BF16;
        return true;
    case DT_F16:
        *out = LT_KIND_F16;
        return true;
    case DT_I8:
        *out = LT_KIND_I8;
        return true;
    case DT_F8_E4M3:
        *out = LT_KIND_E4M3;
        return true;
    default:
        return false;
    }
}

static bool shape_of(struct lt_shape *s, const struct device_product *p)
{
    *s = (struct lt_shape){
        .n_out = p->w->n_out,
        .n_in = p->w->n_in,
        .target = p->y_dtype == DT_F32 ? LT_TO_Y : LT_TO_SUMS,
        .has_bias = p->has_bias,
        .accumulate = p->accumulate,
        .gated = p->w->gated != 0,
    };
    if (p->w->blocks || !kind_of(&s->kind, p))
        return false;
    lt_shape_settle(s);
    return true;
}

static size_t x_stride(const struct device_product *p)
{
    return ((size_t)p->w->n_in + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE;
}

static bool is_bytes(const struct device_product *p)
{
    return p->x_dtype == DT_I8 || p->x_dtype == DT_F8_E4M3;
}

static size_t x_bytes(const struct device_product *p)
{
    return p->n_row_max * x_stride(p) * (is_bytes(p) ? 1 : 2);
}

static uint32_t columns(const struct device_product *p)
{
    return p->w->gated ? p->w->n_out / 2 : p->w->n_out;
}

static size_t y_width(const struct device_product *p)
{
    return p->y_dtype == DT_F32 ? 4 : 2;
}

/* ---- memory ---- */
static enum q_code make_buffers(struct bench *b, struct q_err *e)
{
    const struct device_table *t = b->t->link->t;
    struct device *d = b->t->link->d;
    size_t x = 0, y = 0, row = 0, n_row = 0, n_out = 0;
    enum q_code rc;
    void *rows, *bias;
    for (uint32_t i = 0; i < b->what->n; i++) {
        const struct device_product *p = &b->what->products[i];
        const size_t its_row = columns(p) * sizeof(float),
                     its_y = p->n_row_max * columns(p) * y_width(p);
        x = x_bytes(p) > x ? x_bytes(p) : x;
        y = its_y > y ? its_y : y;
        row = its_row > row ? its_row : row;
        n_row = p->n_row_max > n_row ? p->n_row_max : n_row;
        n_out = p->w->n_out > n_out ? p->w->n_out : n_out;
    }
    b->host_bytes = SAMPLE_ROWS * row > BLOCK_BYTES ? SAMPLE_ROWS * row : BLOCK_BYTES;
    b->own = q_alloc(SAMPLE_ROWS * row);
    if (!b->own)
        return q_fail(e, Q_NO_MEMORY, "tuning: out of memory for a sample of rows");
    if ((rc = t->alloc(d, &b->x, x, "inputs of timed products", e)) ||
        (rc = t->alloc(d, &b->y, y, "outputs of timed products", e)) ||
        (rc = t->alloc(d, &rows, n_row * sizeof *b->rows, "scales of timed products", e)))
        return rc;
    b->rows = rows;
    if ((rc = t->alloc(d, &bias, n_out * sizeof *b->bias, "bias of timed products", e)))
        return rc;
    b->bias = bias;
    if ((rc = t->host_alloc(d, &b->host, b->host_bytes, "a sample of products", e)) ||
        (rc = t->event_new(d, &b->from, e)))
        return rc;
    return t->event_new(d, &b->to, e);
}

static void release(struct bench *b)
{
    const struct device_table *t = b->t->link->t;
    struct device *d = b->t->link->d;
    t->event_free(b->from);
    t->event_free(b->to);
    t->release(d, b->x);
    t->release(d, b->y);
    t->release(d, b->rows);
    t->release(d, b->bias);
    t->host_free(d, b->host);
    q_free(b->own);
    b->is_ready = false;
}

/* ---- numbers ---- */
static uint32_t random_word(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8 ^ *state << 13;
}

/* A block of the host's memory with numbers between 0.5 and 2 of either sign, or all int8. e4m3: up
 * to 240, no NaN. */
static void fill_block(struct bench *b, enum dtype dtype)
{
    uint16_t *to = b->host;
    uint32_t state = 1;
    for (size_t i = 0; i < BLOCK_BYTES / sizeof *to; i++) {
        const uint32_t r = random_word(&state);
        to[i] = (uint16_t)(dtype == DT_I8        ? r
                           : dtype == DT_F8_E4M3 ? r & 0xf7f7
                           : dtype == DT_BF16    ? (r & 0x80ff) | 0x3f00
                                                 : (r & 0x87ff) | 0x3800);
    }
}

static void spread(struct bench *b, void *to, size_t n)
{
    const struct device_link *l = b->t->link;
    for (size_t at = 0; at < n; at += BLOCK_BYTES)
        l->t->copy(l->s, (char *)to + at, b->host, n - at < BLOCK_BYTES ? n - at : BLOCK_BYTES);
}

/* Inputs for all buckets of one product. */
static enum q_code fill_inputs(struct bench *b, const struct device_product *p, struct q_err *e)
{
    const struct device_link *l = b->t->link;
    enum q_code rc;
    fill_block(b, p->x_dtype);
    spread(b, b->x, x_bytes(p));
    if ((rc = l->t->sync(l->s, e)))
        return rc;
    fill_block(b, DT_BF16); /* as f32 they are of that size too */
    spread(b, b->bias, p->w->n_out * sizeof *b->bias);
    if ((rc = l->t->sync(l->s, e)))
        return rc;
    struct quant_row *rows = b->host;
    for (size_t i = 0; i < BLOCK_BYTES / sizeof *rows; i++)
        rows[i] = (struct quant_row){.scale = X_SCALE * (float)(1 + i % 7)};
    spread(b, b->rows, p->n_row_max * sizeof *rows);
    return l->t->sync(l->s, e);
}

/* ---- a run ---- */
static void launch(const struct bench *b, const struct trial *r)
{
    const struct device_product *p = r->p;
    const struct kern_table *k = b->t->link->t->kern(b->t->link->d);
    const float *bias = p->has_bias ? b->bias : NULL;
    if (is_bytes(p)) {
        const struct linear_fp8_args a = {
            {
                .y = b->y,
                .y_dtype = p->y_dtype,
                .x = b->x,
                .rows = b->rows,
                .w = *p->w,
                .bias = bias,
                .n_row = r->n_row,
                .x_stride = x_stride(p),
                .y_stride = r->n_col,
                .accumulate = p->accumulate,
            },
        };
        if (p->x_dtype == DT_I8)
            k->linear_int8(&a.by, b->what->x);
        else
            k->linear_fp8(&a, b->what->x);
        return;
    }
    const struct linear_args a = {
        .y = b->y,
        .y_dtype = p->y_dtype,
        .x = b->x,
        .x_dtype = p->x_dtype,
        .w = *p->w,
        .bias = bias,
        .n_row = r->n_row,
        .x_stride = x_stride(p),
        .y_stride = r->n_col,
        .accumulate = p->accumulate,
    };
    k->linear(&a, b->what->x);
}

static enum q_code time_runs(const struct bench *b, const struct trial *r, uint32_t n, float *ms,
                             struct q_err *e)
{
    const struct device_link *l = b->t->link;
    l->t->event_record(b->from, l->s);
    for (uint32_t i = 0; i < n; i++)
        launch(b, r);
    l->t->event_record(b->to, l->s);
    enum q_code rc = l->t->event_wait(b->to, e);
    *ms = rc ? 0 : l->t->event_ms(b->from, b->to) / (float)n;
    return rc;
}

static uint32_t timed_runs(const struct bench *b)
{
    return b->t->n_run ? b->t->n_run : TUNE_RUNS;
}

static uint32_t sample_row(uint32_t i, uint32_t n_row)
{
    const uint32_t rows[SAMPLE_ROWS] = {0, 1, n_row / 3, n_row / 2 + 1, n_row - 2, n_row - 1};
    return rows[i];
}

/* Run once onto zeros and bring the sample to b->host. */
static enum q_code run_once(const struct bench *b, const struct trial *r, struct q_err *e)
{
    const struct device_link *l = b->t->link;
    const size_t row = r->n_col * y_width(r->p);
    l->t->fill(l->s, b->y, 0, r->n_row * row);
    launch(b, r);
    for (uint32_t i = 0; i < SAMPLE_ROWS; i++)
        l->t->copy(l->s, (char *)b->host + i * row,
                   (const char *)b->y + sample_row(i, r->n_row) * row, row);
    enum q_code rc = l->t->sync(l->s, e);
    return rc ? rc : l->t->check(l->d, e);
}

static float value(const void *rows, enum dtype dtype, size_t i)
{
    const uint16_t *h = rows;
    return dtype == DT_F32   ? ((const float *)rows)[i]
           : dtype == DT_F16 ? f16_to_f32(h[i])
                             : bf16_to_f32(h[i]);
}

/* The rounding error, relative to the row's largest value: integer sums are exact, float sums
 * differ by their order, e4m3 sums by the precision of the tensor cores (Hopper: about 14 bits); a
 * 16-bit y may be rounded the other way. */
static float tolerance(const struct device_product *p)
{
    const float sums = p->x_dtype == DT_I8        ? 0x1p-20f
                       : p->x_dtype == DT_F8_E4M3 ? 0x1p-6f
                                                  : 0x1p-10f;
    const float y = p->y_dtype == DT_F32 ? 0 : p->y_dtype == DT_F16 ? 0x1p-9f : 0x1p-7f;
    return sums > y ? sums : y;
}

/* Is the sample in b->host the one in b->own? */
static bool agrees(const struct bench *b, const struct trial *r)
{
    for (uint32_t i = 0; i < SAMPLE_ROWS; i++) {
        const float *own = b->own + (size_t)i * r->n_col;
        float most = 0;
        for (uint32_t c = 0; c < r->n_col; c++)
            most = fabsf(own[c]) > most ? fabsf(own[c]) : most;
        for (uint32_t c = 0; c < r->n_col; c++) {
            const float got = value(b->host, r->p->y_dtype, (size_t)i * r->n_col + c);
            if (!(fabsf(got - own[c]) <= most * tolerance(r->p)))
                return false;
        }
    }
    return true;
}

static enum q_code run_own(struct bench *b, struct trial *r, struct q_err *e)
{
    static const struct lt_choice own = {.is_own = true};
    enum q_code rc;
    lt_set_trial(b->t->lt, &own);
    r->best = own;
    if ((rc = run_once(b, r, e)))
        return rc;
    for (size_t i = 0; i < (size_t)SAMPLE_ROWS * r->n_col; i++)
        b->own[i] = value(b->host, r->p->y_dtype, i);
    return time_runs(b, r, timed_runs(b), &r->best_ms, e);
}

static enum q_code run_candidate(struct bench *b, struct trial *r, const struct lt_choice *c,
                                 struct q_err *e)
{
    struct lt *lt = b->t->lt;
    const uint64_t n_run = lt_n_run(lt), n_refused = lt_n_refused(lt);
    float ms;
    enum q_code rc;
    lt_set_trial(lt, c);
    if ((rc = run_once(b, r, e)))
        return rc;
    if (lt_n_run(lt) == n_run || lt_n_refused(lt) != n_refused)
        return Q_OK; /* our own kernel did it */
    if (!agrees(b, r)) {
        b->out->n_wrong++;
        return Q_OK;
    }
    if ((rc = time_runs(b, r, 1, &ms, e)) || ms > HOPELESS * r->best_ms ||
        (rc = time_runs(b, r, timed_runs(b), &ms, e)))
        return rc;
    if (ms < r->best_ms * (r->best.is_own ? TUNE_GAIN : 1)) {
        r->best_ms = ms;
        r->best = *c;
    }
    return Q_OK;
}

static enum q_code choose_algorithm(struct bench *b, struct trial *r, struct q_err *e)
{
    struct lt_choice found[LT_CANDIDATES_MAX];
    enum q_code rc = run_own(b, r, e);
    const uint32_t n = rc ? 0 : lt_candidates(b->t->lt, &r->shape, r->n_row, found);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = run_candidate(b, r, &found[i], e);
    lt_set_trial(b->t->lt, NULL);
    if (rc)
        return rc;
    lt_keep(b->t->lt, &r->shape, r->bucket, &r->best);
    b->out->n_made++;
    b->out->n_library += !r->best.is_own;
    const struct tune_entry x = {.shape = r->shape, .bucket = r->bucket, .choice = r->best};
    struct q_err why = Q_ERR_INIT;
    if (tune_add(&b->table, &x, &why)) /* it is chosen again at the next start */
        note(b->out, why.message);
    return Q_OK;
}

/* True if this bucket has no choice yet; a choice on disk is used. */
static bool is_open(struct bench *b, const struct trial *r)
{
    const struct tune_entry *x = tune_find(&b->table, &r->shape, r->bucket);
    if (!x)
        return true;
    lt_keep(b->t->lt, &r->shape, r->bucket, &x->choice);
    b->out->n_kept++;
    b->out->n_library += !x->choice.is_own;
    return false;
}

static enum q_code tune_product(struct bench *b, const struct device_product *p, struct q_err *e)
{
    struct trial r = {.p = p, .n_col = columns(p)};
    bool is_filled = false;
    enum q_code rc = Q_OK;
    if (p->n_row_max < LT_ROWS_MIN || !shape_of(&r.shape, p))
        return Q_OK;
    const uint32_t last = lt_bucket(p->n_row_max);
    for (r.bucket = 0; r.bucket <= last && !rc; r.bucket++) {
        const uint32_t n = lt_bucket_rows(r.bucket);
        r.n_row = n < p->n_row_max ? n : p->n_row_max;
        if (!is_open(b, &r) || clock_ms() - b->start_ms > TUNE_MS_MAX)
            continue;
        if (!b->is_ready && (rc = make_buffers(b, e)))
            break;
        b->is_ready = true;
        if (!is_filled && (rc = fill_inputs(b, p, e)))
            break;
        is_filled = true;
        rc = choose_algorithm(b, &r, e);
    }
    return rc;
}

static void read_file(struct bench *b)
{
    struct q_err e = Q_ERR_INIT;
    if (!b->t->dir)
        return;
    const enum q_code rc = tune_load(&b->table, &b->t->card, b->t->dir, &e);
    if (rc && rc != Q_NOT_FOUND)
        note(b->out, e.message);
}

enum q_code tune_products(const struct tuner *t, const struct device_tuning *what,
                          struct device_tuned *out, struct q_err *e)
{
    struct bench b = {.t = t, .what = what, .out = out, .start_ms = clock_ms()};
    struct q_err why = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    *out = (struct device_tuned){0};
    read_file(&b);
    for (uint32_t i = 0; i < what->n && !rc; i++)
        rc = tune_product(&b, &what->products[i], e);
    lt_set_trial(t->lt, NULL);
    if (rc == Q_NO_MEMORY) { /* earlier choices are kept */
        note(out, e->message);
        q_err_reset(e);
        rc = Q_OK;
    }
    release(&b);
    if (!rc && out->n_made && t->dir && tune_save(&b.table, &t->card, t->dir, &why))
        note(out, why.message);
    tune_table_release(&b.table);
    return rc;
}
