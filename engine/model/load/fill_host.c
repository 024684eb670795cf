/* SPDX-License-Identifier: Apache-2.0 */
/* All threads fill rows together, in two runs over the plan: first vectors, tables and orders of
 * inputs, then the matrices, which read them. Threads take pieces of about a megabyte from a
 * counter, so that a slower thread (a busy or a smaller core) takes fewer of them and no thread
 * waits at the end of a row. A piece is whole units of a row (panels of a matrix, rows of a
 * table), so no two threads write the same unit.
 *
 * Dummy numbers are a hash of (tensor, row, column), so they depend neither on the number of
 * threads nor on the layout: uniform with standard deviation 0.02, the value that training starts
 * from, so that activations stay finite over any depth. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include "engine/model/load/fill.h"
#include "engine/model/load/weight_codes.h"
#include "engine/model/load/weight_gguf.h"
#include "engine/model/load/weight_quant.h"

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
    const struct filler *filler;
    const struct weight_source *source;
    const struct packed *dst;
    uint32_t first; /* output of the whole matrix that is the first of dst */
    uint32_t start; /* the whole matrix's that the source begins at; gated: 0 or
                       KERN_GATE_INTERLEAVE */
    float *rows;    /* this thread's buffer */
};

static void pack_int4(const struct fill_job *j, const struct pack_args *a)
{
    const struct kern_exec alone = {.nth = 1};
    const struct pack_int4_args q = {
        .dst = a->dst,
        .src = a->src,
        .src_dtype = a->src_dtype,
        .n_out = a->n_out,
        .n_in = a->n_in,
        .group = j->dst->group,
        .row_start = a->row_start,
        .n_out_total = a->n_out_total,
    };
    j->filler->kern->pack_int4(&q, &alone);
}

/* n rows at `src` into outputs `at` … of dst. */
static void pack(const struct fill_job *j, const void *src, enum dtype src_dtype, uint32_t at,
                 uint32_t n)
{
    const struct kern_exec alone = {.nth = 1};
    const struct pack_args a = {
        .dst = (void *)(uintptr_t)j->dst->data,
        .dst_dtype = j->dst->dtype,
        .src = src,
        .src_dtype = src_dtype,
        .n_out = n,
        .n_in = j->source->cols,
        .row_start = at,
        .n_out_total = j->dst->n_out,
    };
    if (j->dst->group) {
        pack_int4(j, &a);
        return;
    }
    if (a.dst_dtype != DT_I8) {
        j->filler->kern->pack(&a, &alone);
        return;
    }
    const struct pack_int8_args q = {
        .dst = a.dst,
        .src = a.src,
        .src_dtype = a.src_dtype,
        .n_out = a.n_out,
        .n_in = a.n_in,
        .row_start = a.row_start,
        .n_out_total = a.n_out_total,
    };
    j->filler->kern->pack_int8(&q, &alone);
}

/* A dummy table's numbers are those of its type, also where a head is made of it without it. */
static void round_dummy(float *row, const struct weight_source *s)
{
    for (uint32_t c = 0; s->spec && s->spec->slot == W_EMBED && c < s->cols; c++)
        row[c] = s->dtype == DT_BF16  ? bf16_to_f32(f32_to_bf16(row[c]))
                 : s->dtype == DT_F16 ? f16_to_f32(f32_to_f16(row[c]))
                                      : row[c];
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

/* Rows that the tensor has as columns, from its column o on, a step apart; a line of it at a
 * time. */
static void turn_rows(float *rows, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const size_t first = weight_source_first(s) + o, step = weight_source_step(s);
    for (uint32_t c = 0; c < s->cols; c++)
        for (uint32_t i = 0; i < n; i++)
            rows[(size_t)i * s->cols + c] =
                load_f32(s->tensor->data, s->dtype, first + (size_t)c * s->stored_rows + i * step);
}

/* As torch.nn.functional.normalize: a row of zeros stays one. */
static void make_unit(float *row, uint32_t n)
{
    double sum = 0;
    for (uint32_t c = 0; c < n; c++)
        sum += (double)row[c] * row[c];
    const double length = fmax(sqrt(sum), 1e-12);
    for (uint32_t c = 0; c < n; c++)
        row[c] = (float)(row[c] / length);
}

static void copy_rows(float *rows, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const size_t first = weight_source_first(s) + (size_t)o * s->cols;
    for (size_t i = 0; i < (size_t)n * s->cols; i++)
        rows[i] = load_f32(s->tensor->data, s->dtype, first + i);
}

/* Heads are filled up with zeros: rows are made one after the other, columns of all rows and then
 * moved to their places, the last one first. */
static void make_padded(float *rows, const struct weight_source *s, uint32_t o, uint32_t n)
{
    const struct weight_pad *p = &s->pad;
    struct weight_source plain = *s;
    plain.pad.head = 0;
    if (!p->of_cols) {
        plain.rows = s->rows / p->head * p->stored;
        for (uint32_t i = 0; i < n; i++, rows += s->cols) {
            const uint32_t head = (o + i) / p->head, in_head = (o + i) % p->head;
            if (in_head < p->stored)
                fill_make_rows(rows, &plain, head * p->stored + in_head, 1);
            else
                memset(rows, 0, s->cols * sizeof *rows);
        }
        return;
    }
    plain.cols = s->cols / p->head * p->stored;
    fill_make_rows(rows, &plain, o, n);
    for (size_t i = n * (size_t)(s->cols / p->head); i-- > 0;) {
        memmove(rows + i * p->head, rows + i * p->stored, p->stored * sizeof *rows);
        memset(rows + i * p->head + p->stored, 0, (p->head - p->stored) * sizeof *rows);
    }
}

void fill_make_rows(float *rows, const struct weight_source *s, uint32_t o, uint32_t n)
{
    if (s->pad.head) {
        make_padded(rows, s, o, n);
        return;
    }
    if (s->quant.q) {
        weight_quant_rows(rows, s, o, n);
    } else if (s->tensor && s->transposed) {
        turn_rows(rows, s, o, n);
    } else if (s->tensor) {
        copy_rows(rows, s, o, n);
    } else {
        for (uint32_t i = 0; i < n; i++) {
            dummy_part(rows + (size_t)i * s->cols, s->seed, o + i, 0, s->cols);
            round_dummy(rows + (size_t)i * s->cols, s);
        }
    }
    for (uint32_t i = 0; i < n && s->unit; i++)
        make_unit(rows + (size_t)i * s->cols, s->cols);
    for (size_t i = 0; i < (size_t)n * s->cols && s->by; i++)
        rows[i] *= load_f32(s->by->data, s->by->dtype, o + i / s->cols);
}

/* Neighbouring rows of the source that are neighbours in one panel too. */
struct piece {
    uint32_t to;     /* one past the last */
    uint32_t output; /* where the first one goes */
};

static struct piece piece_from(const struct fill_job *j, uint32_t row, uint32_t end)
{
    struct piece p = {.output = j->start + row - j->first};
    uint32_t left = KERN_PANEL - p.output % KERN_PANEL;
    if (j->dst->gated) {
        p.output += row / KERN_GATE_INTERLEAVE * KERN_GATE_INTERLEAVE;
        left = KERN_GATE_INTERLEAVE - row % KERN_GATE_INTERLEAVE;
    }
    p.to = row + left < end ? row + left : end;
    return p;
}

/* Rows from … end - 1 of the source, neighbours in its tensor: made a piece at a time, then packed.
 */
static void fill_made(const struct fill_job *j, uint32_t from, uint32_t end)
{
    const struct weight_source *s = j->source;
    const bool as_it_is = s->quant.q && !s->unit && !s->by && !weight_quant_is_made(s) &&
                          (j->dst->group || weight_quant_is_int8(s));
    for (struct piece p; from < end; from = p.to) {
        const uint32_t row = weight_source_row(s, from);
        p = piece_from(j, from, end);
        if (j->dst->codes.kind) {
            weight_codes_set(j->dst, p.output, s, row, p.to - from, j->rows);
            continue;
        }
        if (as_it_is) { /* the checkpoint's integers are what is packed */
            weight_quant_set(j->dst, p.output, s, row, p.to - from, j->rows);
            continue;
        }
        fill_make_rows(j->rows, s, row, p.to - from);
        pack(j, j->rows, DT_F32, p.output, p.to - from);
    }
}

/* The same from what the file holds. The pages that were read are let go at once, so that source
 * and result are never resident together. */
static void fill_read(const struct fill_job *j, uint32_t from, uint32_t end)
{
    const struct weight_source *s = j->source;
    const size_t row = (size_t)s->cols * (dtype_bits(s->dtype) / 8), n = (end - from) * row;
    const char *src = (const char *)s->tensor->data +
                      weight_source_first(s) * (dtype_bits(s->dtype) / 8) +
                      weight_source_row(s, from) * row;
    tensor_want(src, n);
    for (uint32_t r = from; r < end;) {
        const struct piece p = piece_from(j, r, end);
        pack(j, src + (r - from) * row, s->dtype, p.output, p.to - r);
        r = p.to;
    }
    if (s->tensor->file)
        tensor_drop(src, n);
}

/* ---- vectors and tables ---- */

/* Interleaved with another part's; no dummy model has such. */
static void fill_interleaved(float *dst, const struct weight_source *s)
{
    for (uint32_t i = 0; i < s->rows; i++) {
        float *to = dst + 2 * (size_t)(i / KERN_GATE_INTERLEAVE) * KERN_GATE_INTERLEAVE +
                    i % KERN_GATE_INTERLEAVE;
        *to = s->tensor ? load_f32(s->tensor->data, s->dtype,
                                   weight_source_first(s) + weight_source_row(s, i))
                        : 0;
    }
}

/* A tensor for each head. */
static void fill_heads(float *dst, const struct weight_source *s)
{
    const uint32_t n = s->rows / s->n_head;
    for (uint32_t h = 0; h < s->n_head; h++) {
        const struct tensor *t = weight_source_head(s, h);
        for (uint32_t i = 0; i < n; i++)
            dst[(size_t)h * n + i] = load_f32(t->data, s->dtype, i) + s->plus;
    }
}

void fill_vector_part(float *dst, const struct weight_source *s, enum load_kind kind)
{
    if (s->n_head) {
        fill_heads(dst, s);
        return;
    }
    for (uint32_t i = 0, to; i < s->rows; i = to) {
        const uint32_t run = weight_source_run(s, i), row = weight_source_row(s, i);
        const size_t at = weight_source_first(s) + row;
        to = s->rows - i < run ? s->rows : i + run;
        if (!s->tensor && kind != KIND_NORM && !arch_is_made(s->spec))
            dummy_part(dst + i, s->seed, 0, row, to - i);
        else
            for (uint32_t k = 0; k < to - i; k++)
                dst[i + k] = s->tensor ? load_f32(s->tensor->data, s->dtype, at + k) + s->plus
                                       : weight_source_made(s, i + k);
    }
    for (uint32_t i = 0; i < s->rows && s->by; i++)
        dst[i] *= load_f32(s->by->data, s->by->dtype, i);
}

void fill_vector(float *to, const struct load_plan *p, const struct load_row *r)
{
    const struct weight_source *s = load_plan_sources(p, r);
    for (uint32_t i = 0; i < r->n_source; i++) {
        if (s[i].present && r->form.gated)
            fill_interleaved(to + i * KERN_GATE_INTERLEAVE, &s[i]);
        else if (s[i].present)
            fill_vector_part(to, &s[i], r->kind);
        to += r->form.gated ? 0 : s[i].rows;
    }
}

static void dummy_row(void *to, const struct weight_source *s, uint32_t row)
{
    enum { STEP = 1024 };
    float part[STEP];
    uint16_t *half = to;
    for (uint32_t c = 0; c < s->cols; c += STEP) {
        const uint32_t n = s->cols - c < STEP ? s->cols - c : STEP;
        dummy_part(part, s->seed, row, c, n);
        if (s->dtype == DT_F32)
            memcpy((float *)to + c, part, n * sizeof *part);
        else
            for (uint32_t i = 0; i < n; i++)
                half[c + i] = s->dtype == DT_F16 ? f32_to_f16(part[i]) : f32_to_bf16(part[i]);
    }
}

void fill_table_rows(void *to, const struct weight_source *s, uint32_t from, uint32_t n)
{
    const size_t row = (size_t)s->cols * (dtype_bits(s->dtype) / 8);
    if (s->quant.q) {
        for (uint32_t i = 0; i < n; i++)
            weight_gguf_table_row((char *)to + i * row, s, from + i);
        return;
    }
    if (!s->tensor) {
        for (uint32_t i = 0; i < n; i++)
            dummy_row((char *)to + i * row, s, from + i);
        return;
    }
    const char *src = (const char *)s->tensor->data + from * row;
    tensor_want(src, n * row);
    memcpy(to, src, n * row);
    if (s->tensor->file)
        tensor_drop(src, n * row);
}

void fill_table_floats(float *to, const struct weight_source *s, uint32_t from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, to += s->cols) {
        const size_t at = (size_t)weight_source_row(s, from + i) * s->cols;
        if (s->quant.q)
            weight_quant_rows(to, s, weight_source_row(s, from + i), 1);
        else if (!s->tensor)
            dummy_part(to, s->seed, from + i, 0, s->cols);
        for (uint32_t c = 0; s->tensor && c < s->cols; c++)
            to[c] = load_f32(s->tensor->data, s->dtype, at + c);
    }
}

/* ---- units of a row: panels, rows of a table, or the row as a whole ---- */

enum run { RUN_FIRST, RUN_MATRICES, RUN_COUNT }; /* the second reads what the first wrote */

struct fill_work {
    const struct filler *filler;
    const struct load_plan *plan;
    enum run run;
    atomic_uint_fast64_t next, done; /* piece; bytes of sources */
    uint64_t total, told;
};

/* That this run fills: 0 of what another one does, or none. */
static uint32_t n_unit(const struct filler *f, const struct load_row *r, enum run run)
{
    if (r->place != f->place)
        return 0;
    switch (r->kind) {
    case KIND_MATRIX:
        return run == RUN_MATRICES ? (r->part.n + KERN_PANEL - 1) / KERN_PANEL : r->ordered;
    case KIND_TABLE:
        return run == RUN_FIRST ? r->form.n_out : 0;
    default:
        return run == RUN_FIRST;
    }
}

/* Units of a piece: about FILL_STEP of the sources, and at least one. */
static uint32_t piece_units(const struct load_plan *p, const struct load_row *r)
{
    const enum dtype dtype = load_plan_sources(p, r)->dtype;
    const size_t row = (size_t)r->form.n_in * (dtype_bits(dtype) / 8);
    const size_t unit = r->kind == KIND_MATRIX ? KERN_PANEL * row : row;
    return (uint32_t)(FILL_STEP / (unit + 1) + 1);
}

struct units {
    uint32_t begin, end;
};

/* The rows of a source whose outputs lie in these panels of the whole matrix. */
static struct units rows_in(const struct fill_job *j, struct units p)
{
    const uint32_t rows = j->source->rows, width = KERN_PANEL / (j->dst->gated ? 2 : 1);
    const uint32_t before = j->dst->gated ? 0 : j->start;
    struct units r = {p.begin * width, p.end * width};
    r.begin = r.begin > before ? r.begin - before : 0;
    r.end = r.end > before ? r.end - before : 0;
    r.end = r.end < rows ? r.end : rows;
    return r;
}

/* Returns the bytes read. */
static uint64_t fill_rows(const struct fill_job *j, uint32_t from, uint32_t end)
{
    const struct weight_source *s = j->source;
    const uint64_t row = (uint64_t)s->cols * (dtype_bits(s->dtype) / 8);
    const uint64_t bytes = from < end ? (end - from) * row : 0;
    for (uint32_t to; from < end; from = to) {
        const uint32_t run = weight_source_run(s, from);
        to = end - from < run ? end : from + run;
        if (weight_source_has_rows(s))
            fill_read(j, from, to);
        else
            fill_made(j, from, to);
    }
    return bytes;
}

/* Panels of a matrix, whatever sources they come from. Returns the bytes read. */
static uint64_t fill_panels(const struct fill_work *w, const struct load_row *r, uint32_t ith,
                            struct units u)
{
    const struct filler *f = w->filler;
    const struct weight_source *sources = load_plan_sources(w->plan, r);
    const uint32_t before = r->part.first / KERN_PANEL;
    const struct units whole = {before + u.begin, before + u.end};
    struct packed part = r->form;
    struct fill_job j = {.filler = f, .dst = &part, .first = r->part.first};
    uint64_t bytes = 0;
    part.n_out = r->part.n;
    j.rows = f->part_bytes ? (float *)(void *)(f->buffer.data + ith * f->part_bytes) : NULL;
    for (uint32_t i = 0; i < r->n_source; i++) {
        j.source = &sources[i];
        const struct units rows = rows_in(&j, whole);
        bytes += fill_rows(&j, rows.begin, rows.end);
        j.start += r->form.gated ? KERN_GATE_INTERLEAVE : j.source->rows;
    }
    return bytes;
}

static void fill_order(const struct load_plan *p, const struct load_row *r)
{
    weight_quant_order((uint32_t *)(uintptr_t)r->form.order, load_plan_sources(p, r));
}

static void fill_units(struct fill_work *w, const struct load_row *r, uint32_t ith, struct units u)
{
    const struct weight_source *s = load_plan_sources(w->plan, r);
    unsigned char *to = (unsigned char *)(uintptr_t)r->form.data;
    uint64_t bytes = 0;
    if (r->kind == KIND_MATRIX && w->run == RUN_FIRST) {
        fill_order(w->plan, r);
    } else if (r->kind == KIND_MATRIX) {
        bytes = fill_panels(w, r, ith, u);
    } else if (r->kind == KIND_TABLE) {
        fill_table(to + u.begin * fill_table_row_bytes(r), r, s,
                   (struct load_units){u.begin, u.end - u.begin});
        bytes = (u.end - u.begin) * ((size_t)s->cols * (dtype_bits(s->dtype) / 8));
    } else {
        fill_vector((float *)(void *)to, w->plan, r);
        bytes = fill_source_bytes(w->plan, r);
    }
    bytes += atomic_fetch_add(&w->done, bytes);
    if (ith || !w->filler->progress || bytes <= w->told)
        return;
    w->told = bytes;
    w->filler->progress(w->filler->progress_ctx, bytes, w->total);
}

/* Pieces as they come: a faster thread does more of them. */
static void fill_taken(struct fill_work *w, uint32_t ith)
{
    const struct load_plan *p = w->plan;
    uint64_t before = 0; /* pieces of rows before r */
    const struct load_row *r = p->rows, *end = r + p->n_row;
    for (uint64_t i; i = atomic_fetch_add(&w->next, 1), true;) {
        for (uint64_t n; r < end; r++, before += n) {
            n = (n_unit(w->filler, r, w->run) + piece_units(p, r) - 1) / piece_units(p, r);
            if (i < before + n)
                break;
        }
        if (r == end)
            return;
        const uint32_t step = piece_units(p, r), n = n_unit(w->filler, r, w->run);
        struct units u = {.begin = (uint32_t)(i - before) * step};
        u.end = n - u.begin < step ? n : u.begin + step;
        fill_units(w, r, ith, u);
    }
}

/* Each thread the panels that it will multiply with (tiling/split.h): it touches them first, so
 * their memory is that of its node. */
static void fill_own(struct fill_work *w, uint32_t ith, uint32_t nth)
{
    for (size_t i = 0; i < w->plan->n_row; i++) {
        const struct load_row *r = &w->plan->rows[i];
        const uint64_t n = n_unit(w->filler, r, w->run);
        const uint32_t stop = (uint32_t)(n * (ith + 1) / nth), step = piece_units(w->plan, r);
        for (uint32_t at = (uint32_t)(n * ith / nth); at < stop; at += step)
            fill_units(w, r, ith, (struct units){at, stop - at < step ? stop : at + step});
    }
}

static void fill_share(void *arg, uint32_t ith, uint32_t nth)
{
    struct fill_work *w = arg;
    if (w->filler->way == FILL_OWN)
        fill_own(w, ith, nth);
    else
        fill_taken(w, ith);
}

uint64_t fill_source_bytes(const struct load_plan *p, const struct load_row *r)
{
    const struct weight_source *s = load_plan_sources(p, r);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->n_source && r->place == PLACE_REGION; i++)
        if (s[i].present)
            bytes += (uint64_t)s[i].rows * s[i].cols * (dtype_bits(s[i].dtype) / 8);
    return bytes;
}

void fill_host(const struct filler *f, const struct load_plan *p)
{
    struct fill_work w = {.filler = f, .plan = p};
    for (size_t i = 0; i < p->n_row; i++)
        w.total += fill_source_bytes(p, &p->rows[i]);
    for (w.run = RUN_FIRST; w.run < RUN_COUNT; w.run++) {
        atomic_store(&w.next, 0);
        if (f->team)
            team_run(f->team, fill_share, &w);
        else
            fill_share(&w, 0, 1);
    }
    if (f->progress && w.told < w.total)
        f->progress(f->progress_ctx, w.total, w.total);
}
