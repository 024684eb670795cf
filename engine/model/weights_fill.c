/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices are packed by all threads at once, in one run over all of them: pieces of about a
 * megabyte are taken from a counter, so that a thread that is slower (a busy or a smaller core)
 * does fewer and nobody waits at the end of a matrix. A piece is whole panels of the result, so no
 * two threads write one.
 *
 * Dummy numbers are a hash of (tensor, row, column), so they do not depend on the number of threads
 * or on the layout: uniform with standard deviation 0.02, what training starts from, so that
 * activations stay finite over any depth. */
#include <stdatomic.h>
#include <string.h>
#include "engine/model/weights_quant.h"

#define DUMMY_SPREAD 0.03464f          /* 0.02 * sqrt(3): uniform in ±this */
#define FILL_STEP    ((size_t)1 << 20) /* bytes that a thread takes at a time */
#define GOLDEN       0x9e3779b9u       /* 2^32 / golden ratio: spreads neighbouring columns */

static uint32_t mix(uint32_t h)
{
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) *
        0x846ca68bu; /* constants: a 32-bit mixer with low bias found by search, C. Wellons 2018 */
    return h ^ h >> 16;
}

/* Columns first … first + n_col - 1 of a row. */
static void dummy_part(float *out, uint32_t seed, uint32_t row, uint32_t first, uint32_t n_col)
{
    uint32_t base = mix(seed * GOLDEN + mix(row));
    for (uint32_t c = 0; c < n_col; c++) {
        int32_t h = (int32_t)mix(base + (first + c) * GOLDEN);
        out[c] = (float)(h >> 8) * (DUMMY_SPREAD / (1 << 23));
    }
}

/* Some outputs of one source, on their way into one packed matrix. */
struct fill_job {
    const struct weight_filler *filler;
    const struct weight_source *source;
    const struct packed *dst;
    uint32_t start; /* the output of dst that the source begins at; gated: 0 or KERN_TURN */
    float *rows;    /* this thread's buffer */
};

static void pack_int4(const struct fill_job *j, const struct pack_args *a)
{
    const struct kern_exec alone = {.nth = 1};
    const struct pack_int4_args q = {.dst = a->dst,
                                     .src = a->src,
                                     .src_dtype = a->src_dtype,
                                     .n_out = a->n_out,
                                     .n_in = a->n_in,
                                     .group = j->dst->group,
                                     .row_start = a->row_start,
                                     .n_out_total = a->n_out_total};
    j->filler->kern->pack_int4(&q, &alone);
}

/* n rows at `src` into outputs `at` … of dst. */
static void pack(const struct fill_job *j, const void *src, enum dtype src_dtype, uint32_t at,
                 uint32_t n)
{
    const struct kern_exec alone = {.nth = 1};
    const struct pack_args a = {.dst = (void *)(uintptr_t)j->dst->data,
                                .dst_dtype = j->dst->dtype,
                                .src = src,
                                .src_dtype = src_dtype,
                                .n_out = n,
                                .n_in = j->source->cols,
                                .row_start = at,
                                .n_out_total = j->dst->n_out};
    if (j->dst->group) {
        pack_int4(j, &a);
        return;
    }
    if (a.dst_dtype != DT_I8) {
        j->filler->kern->pack(&a, &alone);
        return;
    }
    const struct pack_quant_args q = {.dst = a.dst,
                                      .src = a.src,
                                      .src_dtype = a.src_dtype,
                                      .n_out = a.n_out,
                                      .n_in = a.n_in,
                                      .row_start = a.row_start,
                                      .n_out_total = a.n_out_total};
    j->filler->kern->pack_quant(&q, &alone);
}

void weights_make_rows(float *rows, const struct weight_source *s, uint32_t o, uint32_t n)
{
    if (s->quant.q)
        weights_quant_rows(rows, s, o, n);
    else
        for (uint32_t i = 0; i < n; i++)
            dummy_part(rows + (size_t)i * s->cols, s->seed, o + i, 0, s->cols);
}

/* Neighbouring rows of the source that are neighbours in one panel too. */
struct piece {
    uint32_t to;     /* one past the last */
    uint32_t output; /* where the first one goes */
};

static struct piece piece_from(const struct fill_job *j, uint32_t row, uint32_t end)
{
    struct piece p = {.output = j->start + row};
    uint32_t left = KERN_PANEL - p.output % KERN_PANEL;
    if (j->dst->gated) {
        p.output = j->start + row + row / KERN_TURN * KERN_TURN;
        left = KERN_TURN - row % KERN_TURN;
    }
    p.to = row + left < end ? row + left : end;
    return p;
}

/* Rows from … end - 1 of the source: made a piece at a time, then packed. */
static void fill_made(const struct fill_job *j, uint32_t from, uint32_t end)
{
    const struct weight_source *s = j->source;
    const bool as_it_is = s->quant.q && (j->dst->group || weights_quant_is_int8(s));
    for (struct piece p; from < end; from = p.to) {
        p = piece_from(j, from, end);
        if (as_it_is) { /* the checkpoint's integers are what is packed */
            weights_quant_set(j->dst, p.output, s, from, p.to - from, j->rows);
            continue;
        }
        weights_make_rows(j->rows, s, from, p.to - from);
        pack(j, j->rows, DT_F32, p.output, p.to - from);
    }
}

/* The same from what the file holds. The pages that were read are let go at once, so that source
 * and result are never resident together. */
static void fill_read(const struct fill_job *j, uint32_t from, uint32_t end)
{
    const struct weight_source *s = j->source;
    const size_t row = (size_t)s->cols * (dtype_bits(s->dtype) / 8), n = (end - from) * row;
    const char *src = (const char *)s->tensor->data + from * row;
    tensor_want(src, n);
    for (uint32_t r = from; r < end;) {
        const struct piece p = piece_from(j, r, end);
        pack(j, src + (r - from) * row, s->dtype, p.output, p.to - r);
        r = p.to;
    }
    if (s->tensor->file)
        tensor_drop(src, n);
}

struct fill_work {
    const struct weight_filler *filler;
    const struct weight_matrix *matrices;
    uint32_t n_matrix;
    atomic_uint_fast64_t next, done; /* piece; bytes of sources */
};

static uint32_t panels_of(const struct weight_matrix *m)
{
    return (m->dst.n_out + KERN_PANEL - 1) / KERN_PANEL;
}

/* Panels that are taken at a time: about FILL_STEP of the sources, and at least one. */
static uint32_t piece_panels(const struct weight_matrix *m)
{
    const size_t panel = (size_t)KERN_PANEL * m->dst.n_in * (dtype_bits(m->parts[0].dtype) / 8);
    return (uint32_t)(FILL_STEP / (panel + 1) + 1);
}

struct panels {
    uint32_t begin, end;
};

/* The rows of a source whose outputs lie in these panels. */
static struct panels rows_in(const struct fill_job *j, struct panels p)
{
    const uint32_t rows = j->source->rows, width = KERN_PANEL / (j->dst->gated ? 2 : 1);
    const uint32_t before = j->dst->gated ? 0 : j->start;
    struct panels r = {p.begin * width, p.end * width};
    r.begin = r.begin > before ? r.begin - before : 0;
    r.end = r.end > before ? r.end - before : 0;
    r.end = r.end < rows ? r.end : rows;
    return r;
}

/* Panels of a matrix, whatever sources they come from. */
static void fill_panels(struct fill_work *w, const struct weight_matrix *m, uint32_t ith,
                        struct panels p)
{
    const struct weight_filler *f = w->filler;
    struct fill_job j = {.filler = f, .dst = &m->dst};
    uint64_t bytes = 0;
    j.rows = f->part_bytes ? (float *)(void *)(f->buffer.data + ith * f->part_bytes) : NULL;
    for (uint32_t i = 0; i < m->n_part; i++) {
        j.source = &m->parts[i];
        const struct panels rows = rows_in(&j, p);
        if (rows.begin < rows.end && j.source->tensor)
            fill_read(&j, rows.begin, rows.end);
        else if (rows.begin < rows.end)
            fill_made(&j, rows.begin, rows.end);
        if (rows.begin < rows.end)
            bytes +=
                (uint64_t)(rows.end - rows.begin) * m->dst.n_in * (dtype_bits(j.source->dtype) / 8);
        j.start += m->dst.gated ? KERN_TURN : j.source->rows;
    }
    bytes += atomic_fetch_add(&w->done, bytes);
    if (ith == 0 && f->progress)
        f->progress(f->progress_ctx, bytes);
}

/* Pieces as they come: whoever is faster does more of them. */
static void fill_taken(struct fill_work *w, uint32_t ith)
{
    uint64_t before = 0; /* pieces of matrices before m */
    const struct weight_matrix *m = w->matrices, *end = m + w->n_matrix;
    for (uint64_t i; i = atomic_fetch_add(&w->next, 1), true;) {
        uint64_t n = 0;
        for (; m < end; m++, before += n) {
            n = (panels_of(m) + piece_panels(m) - 1) / piece_panels(m);
            if (i < before + n)
                break;
        }
        if (m == end)
            return;
        struct panels p = {.begin = (uint32_t)(i - before) * piece_panels(m)};
        p.end = p.begin + piece_panels(m);
        fill_panels(w, m, ith, p);
    }
}

/* Each thread the panels that it will multiply with (tiling/split.h): it touches them first, so
 * their memory is that of its node. */
static void fill_own(struct fill_work *w, uint32_t ith, uint32_t nth)
{
    for (uint32_t i = 0; i < w->n_matrix; i++) {
        const struct weight_matrix *m = &w->matrices[i];
        const uint64_t n = panels_of(m);
        const uint32_t stop = (uint32_t)(n * (ith + 1) / nth), step = piece_panels(m);
        for (uint32_t at = (uint32_t)(n * ith / nth); at < stop; at += step)
            fill_panels(w, m, ith, (struct panels){at, at + step < stop ? at + step : stop});
    }
}

static void fill_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct fill_work *w = arg;
    if (w->filler->by_owner)
        fill_own(w, ith, nth);
    else
        fill_taken(w, ith);
}

void weights_fill(const struct weight_filler *f, const struct weight_matrix *m, uint32_t n)
{
    struct fill_work w = {.filler = f, .matrices = m, .n_matrix = n};
    if (f->team)
        team_run(f->team, fill_run, &w);
    else
        fill_run(&w, 0, 1);
    if (f->progress)
        f->progress(f->progress_ctx, atomic_load(&w.done));
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
        dummy_part(dst, s->seed, 0, 0, s->rows);
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

struct table_job {
    void *dst;
    enum dtype dtype;
    const struct weight_source *source;
    uint32_t first;
};

static void table_row(const struct table_job *j, size_t r)
{
    enum { STEP = 1024 };
    const struct weight_source *s = j->source;
    float part[STEP];
    uint16_t *half = j->dst;
    for (uint32_t c = 0; c < s->cols; c += STEP) {
        const uint32_t n = s->cols - c < STEP ? s->cols - c : STEP;
        const size_t at = r * s->cols + c;
        dummy_part(part, s->seed, j->first + (uint32_t)r, c, n);
        if (j->dtype == DT_F32)
            memcpy((float *)j->dst + at, part, n * sizeof *part);
        else
            for (uint32_t i = 0; i < n; i++)
                half[at + i] = j->dtype == DT_F16 ? f32_to_f16(part[i]) : f32_to_bf16(part[i]);
    }
}

static void table_run(void *arg, uint32_t ith, uint32_t nth)
{
    const struct table_job *j = arg;
    const uint64_t n = j->source->rows;
    for (uint64_t r = n * ith / nth; r < n * (ith + 1) / nth; r++)
        table_row(j, r);
}

void weights_fill_table(const struct weight_filler *f, void *dst, enum dtype dtype,
                        const struct weight_source *s, uint32_t first)
{
    struct table_job j = {dst, dtype, s, first};
    if (f->team)
        team_run(f->team, table_run, &j);
    else
        table_run(&j, 0, 1);
}
