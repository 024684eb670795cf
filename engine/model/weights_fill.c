/* SPDX-License-Identifier: Apache-2.0 */
/* Dummy numbers are a hash of (tensor, row, column), so they do not depend on the number of threads
 * or on the layout: uniform with standard deviation 0.02, what training starts from, so that
 * activations stay finite over any depth. */
#include <string.h>
#include "engine/model/weights_quant.h"

#define DUMMY_SPREAD 0.03464f          /* 0.02 * sqrt(3): uniform in ±this */
#define FILL_STEP    ((size_t)1 << 20) /* bytes read between two looks at the page tables */
#define GOLDEN       0x9e3779b9u       /* 2^32 / golden ratio: spreads neighbouring columns */

static uint32_t mix(uint32_t h)
{
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) *
        0x846ca68bu; /* constants: a 32-bit mixer with low bias found by search, C. Wellons 2018 */
    return h ^ h >> 16;
}

static void dummy_row(float *out, uint32_t seed, uint32_t row, uint32_t n_col)
{
    uint32_t base = mix(seed * GOLDEN + mix(row));
    for (uint32_t c = 0; c < n_col; c++) {
        int32_t h = (int32_t)mix(base + c * GOLDEN);
        out[c] = (float)(h >> 8) * (DUMMY_SPREAD / (1 << 23));
    }
}

struct fill_job {
    const struct weight_filler *filler;
    const struct weight_source *source;
    const struct packed *dst;
    uint32_t group; /* as struct packed */
    bool as_it_is;  /* the checkpoint's integers are what is packed */
    struct pack_args pack;
};

static void pack_int4(const struct fill_job *j, const struct pack_args *a,
                      const struct kern_exec *x)
{
    const struct pack_int4_args q = {.dst = a->dst,
                                     .src = a->src,
                                     .src_dtype = a->src_dtype,
                                     .n_out = a->n_out,
                                     .n_in = a->n_in,
                                     .group = j->group,
                                     .row_start = a->row_start,
                                     .n_out_total = a->n_out_total};
    j->filler->kern->pack_int4(&q, x);
}

/* One call of pack, or of what packs small integers. */
static void pack(const struct fill_job *j, const struct pack_args *a, const struct kern_exec *x)
{
    if (j->group) {
        pack_int4(j, a, x);
        return;
    }
    if (a->dst_dtype != DT_I8) {
        j->filler->kern->pack(a, x);
        return;
    }
    const struct pack_quant_args q = {.dst = a->dst,
                                      .src = a->src,
                                      .src_dtype = a->src_dtype,
                                      .n_out = a->n_out,
                                      .n_in = a->n_in,
                                      .row_start = a->row_start,
                                      .n_out_total = a->n_out_total};
    j->filler->kern->pack_quant(&q, x);
}

/* Rows 0 … n - 1 of `rows` are outputs o … of the source. */
static void make_rows(float *rows, const struct weight_source *s, uint32_t o, uint32_t n)
{
    if (s->quant.q)
        weights_quant_rows(rows, s, o, n);
    else
        for (uint32_t i = 0; i < n; i++)
            dummy_row(rows + (size_t)i * s->cols, s->seed, o + i, s->cols);
}

/* Neighbouring rows of the source that are neighbours in the panels too. */
struct piece {
    uint32_t from, to; /* rows of the source */
    uint32_t output;   /* where the first one goes */
};

static uint32_t piece_count(const struct fill_job *j)
{
    const uint32_t start = j->pack.row_start, rows = j->source->rows;
    if (j->dst->gated)
        return (rows + KERN_TURN - 1) / KERN_TURN;
    return (start + rows + KERN_PANEL - 1) / KERN_PANEL - start / KERN_PANEL;
}

/* A panel, the first one perhaps from its middle on; a turn of gated weights. */
static struct piece piece_at(const struct fill_job *j, uint32_t i)
{
    const uint32_t start = j->pack.row_start, rows = j->source->rows;
    struct piece p = {
        .from = i * KERN_TURN, .to = (i + 1) * KERN_TURN, .output = start + 2 * i * KERN_TURN};
    if (!j->dst->gated) {
        const uint32_t o = (start / KERN_PANEL + i) * KERN_PANEL;
        p = (struct piece){.from = o > start ? o - start : 0,
                           .to = o + KERN_PANEL - start,
                           .output = o > start ? o : start};
    }
    p.to = p.to < rows ? p.to : rows;
    return p;
}

static void pack_piece(const struct fill_job *j, const struct piece *p, const void *rows,
                       enum dtype dtype)
{
    const struct kern_exec alone = {.nth = 1};
    struct pack_args a = j->pack;
    a.src = rows;
    a.src_dtype = dtype;
    a.row_start = p->output;
    a.n_out = p->to - p->from;
    pack(j, &a, &alone);
}

/* Rows are made a piece at a time, then packed. */
static void fill_made(const struct fill_job *j, uint32_t ith, uint32_t nth)
{
    const struct weight_source *s = j->source;
    float *rows = (float *)(void *)(j->filler->buffer.data + ith * j->filler->part_bytes);
    for (uint32_t i = ith; i < piece_count(j); i += nth) {
        const struct piece p = piece_at(j, i);
        if (j->as_it_is) {
            weights_quant_set(j->dst, p.output, s, p.from, p.to - p.from, rows);
            continue;
        }
        make_rows(rows, s, p.from, p.to - p.from);
        pack_piece(j, &p, rows, DT_F32);
    }
}

/* A thread's share of what the file holds, some pieces at a time: the pages that were read are let
 * go at once, so that source and result are never resident together. */
static void fill_read(const struct fill_job *j, uint32_t ith, uint32_t nth)
{
    const struct weight_source *s = j->source;
    const char *src = j->pack.src;
    const size_t row = (size_t)s->cols * (dtype_bits(s->dtype) / 8);
    const uint64_t n_piece = piece_count(j);
    const uint32_t stop = (uint32_t)(n_piece * (ith + 1) / nth);
    const uint32_t step =
        (uint32_t)(FILL_STEP / ((j->dst->gated ? KERN_TURN : KERN_PANEL) * row) + 1);
    for (uint32_t at = (uint32_t)(n_piece * ith / nth); at < stop; at += step) {
        const uint32_t end = at + step < stop ? at + step : stop;
        const size_t from = piece_at(j, at).from, n = piece_at(j, end - 1).to - from;
        tensor_want(src + from * row, n * row);
        for (uint32_t i = at; i < end; i++) {
            const struct piece p = piece_at(j, i);
            pack_piece(j, &p, src + p.from * row, s->dtype);
        }
        if (s->tensor->file)
            tensor_drop(src + from * row, n * row);
    }
}

static void fill_run(void *arg, uint32_t ith, uint32_t nth)
{
    const struct fill_job *j = arg;
    if (j->source->tensor)
        fill_read(j, ith, nth);
    else
        fill_made(j, ith, nth);
}

void weights_fill_matrix(const struct weight_filler *f, const struct packed *dst,
                         const struct weight_source *s, uint32_t row_start)
{
    struct fill_job j = {.filler = f,
                         .source = s,
                         .dst = dst,
                         .group = dst->group,
                         .as_it_is = s->quant.q && (dst->group || weights_quant_is_int8(s)),
                         .pack = {.dst = (void *)(uintptr_t)dst->data,
                                  .dst_dtype = dst->dtype,
                                  .src = s->tensor ? s->tensor->data : NULL,
                                  .src_dtype = s->dtype,
                                  .n_out = s->rows,
                                  .n_in = s->cols,
                                  .row_start = row_start,
                                  .n_out_total = dst->n_out}};
    if (f->team)
        team_run(f->team, fill_run, &j);
    else
        fill_run(&j, 0, 1);
}

static float load_f32(const void *src, enum dtype dtype, size_t i)
{
    float f;
    uint16_t h;
    if (dtype == DT_F32) {
        memcpy(&f, (const char *)src + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&h, (const char *)src + i * sizeof h, sizeof h);
    return dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

void weights_fill_vector(float *dst, const struct weight_source *s, bool one)
{
    if (!s->tensor && !one)
        dummy_row(dst, s->seed, 0, s->rows);
    else
        for (uint32_t i = 0; i < s->rows; i++)
            dst[i] = one && !s->tensor ? 1.0f : load_f32(s->tensor->data, s->dtype, i);
}

void weights_fill_turns(float *dst, const struct weight_source *s)
{
    for (uint32_t i = 0; i < s->rows; i++) {
        float *to = dst + 2 * (size_t)(i / KERN_TURN) * KERN_TURN + i % KERN_TURN;
        *to = s->tensor ? load_f32(s->tensor->data, s->dtype, i) : 0; /* no dummy model has one */
    }
}

void weights_fill_table(void *dst, enum dtype dtype, const struct weight_source *s)
{
    enum { STEP = 1024 };
    float part[STEP];
    uint16_t *half = dst;
    for (size_t r = 0; r < s->rows; r++)
        for (uint32_t c = 0; c < s->cols; c += STEP) {
            uint32_t n = s->cols - c < STEP ? s->cols - c : STEP;
            size_t at = r * s->cols + c;
            dummy_row(part, s->seed + c, (uint32_t)r, n);
            if (dtype == DT_F32)
                memcpy((float *)dst + at, part, n * sizeof *part);
            else
                for (uint32_t i = 0; i < n; i++)
                    half[at + i] = dtype == DT_F16 ? f32_to_f16(part[i]) : f32_to_bf16(part[i]);
        }
}
