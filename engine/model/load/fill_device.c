/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix is uploaded in pieces of as many outputs as a buffer holds. All threads read or make the
 * outputs of a piece in memory that the device copies from, and the device packs them. Pages of the
 * file are released once they are read.
 *
 * The form that is uploaded depends on the source and the destination: the checkpoint's floats; its
 * integers with their scales and zeros, where the destination keeps them; else f32 made of them.
 * Gate and up of gated weights are uploaded interleaved. */
#include <string.h>
#include "engine/model/load/fill.h"
#include "engine/model/load/weight_fp8.h"
#include "engine/model/load/weight_quant.h"

struct piece { /* some outputs of a matrix on their way */
    const struct load_row *m;
    const struct weight_source *parts; /* of m */
    enum load_travel form;
    enum dtype dtype;  /* of floats */
    uint32_t from, n;  /* outputs */
    unsigned char *to; /* host memory: [n, n_in], then scales [n][n_group], zeros [n][n_group] */
    const uint32_t *order; /* of the inputs; NULL: their own */
    unsigned char *spare;  /* with an order: [n_thread][spare_bytes] */
    size_t spare_bytes;
    size_t row_bytes, scales_at, zeros_at, bytes;
};

struct rows { /* neighbouring outputs that are neighbouring rows of one tensor */
    const struct weight_source *source; /* NULL: padding */
    uint32_t row, n;
    uint32_t left; /* outputs of this source from here on, n of them in this tensor's rows */
};

static struct rows rows_of(const struct weight_source *s, uint32_t row, uint32_t most)
{
    const uint32_t run = weight_source_run(s, row), left = s->rows - row;
    const uint32_t n = left < run ? left : run;
    return (struct rows){s, weight_source_row(s, row), n < most ? n : most, left};
}

static struct rows rows_at(const struct piece *p, uint32_t o)
{
    uint32_t i = 0;
    if (p->m->form.gated) {
        const uint32_t row =
            o / (2 * KERN_GATE_INTERLEAVE) * KERN_GATE_INTERLEAVE + o % KERN_GATE_INTERLEAVE;
        const struct weight_source *s = &p->parts[o / KERN_GATE_INTERLEAVE % 2];
        const uint32_t left = KERN_GATE_INTERLEAVE - o % KERN_GATE_INTERLEAVE;
        return row < s->rows ? rows_of(s, row, left) : (struct rows){.n = left};
    }
    for (; o >= p->parts[i].rows; i++)
        o -= p->parts[i].rows;
    return rows_of(&p->parts[i], o, UINT32_MAX);
}

/* Scales that travel with an output. */
static uint32_t n_group_of(const struct packed *w)
{
    return w->group    ? w->n_in / w->group
           : w->blocks ? (w->n_in + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK
                       : 0;
}

/* ---- into host memory ---- */

static void load_floats(const struct piece *p, const struct rows *r, uint32_t at)
{
    const size_t first = weight_source_first(r->source) * (dtype_bits(p->dtype) / 8);
    const char *src = (const char *)r->source->tensor->data + first + r->row * p->row_bytes;
    const size_t n = r->n * p->row_bytes;
    tensor_want(src, n);
    memcpy(p->to + at * p->row_bytes, src, n);
    if (r->source->tensor->file)
        tensor_drop(src, n);
}

/* 4-bit integers with the inputs of each group side by side. */
static void load_ordered(const struct piece *p, const struct rows *r, uint32_t at,
                         unsigned char *spare)
{
    const uint32_t n_in = p->m->form.n_in, group = p->m->form.group, n_group = n_in / group;
    for (uint32_t done = 0, n; done < r->n; done += n) {
        const size_t from = at + done;
        n = r->n - done < FILL_ORDERED ? r->n - done : FILL_ORDERED;
        const struct int4_arrays a = {
            .q = spare,
            .scales = (uint16_t *)(void *)(p->to + p->scales_at) + from * n_group,
            .zeros = p->to + p->zeros_at + from * n_group,
            .group = group,
        };
        weight_quant_int4(&a, r->source, r->row + done, n);
        for (size_t i = 0; i < n; i++)
            for (uint32_t c = 0; c < n_in; c++)
                p->to[(from + i) * n_in + c] = spare[i * n_in + p->order[c]];
    }
}

static void load_run(const struct piece *p, const struct rows *r, uint32_t at, unsigned char *spare)
{
    unsigned char *to = p->to + at * p->row_bytes;
    const uint32_t group = p->m->form.group, n_group = n_group_of(&p->m->form);
    if (!r->source) { /* zeros in every form; of int4 the scale makes them so */
        memset(to, 0, r->n * p->row_bytes);
        if (p->form == TRAVEL_BYTES)
            memset(p->to + p->scales_at + at * sizeof(float), 0, r->n * sizeof(float));
        if (p->form == TRAVEL_BLOCKS)
            memset(p->to + p->scales_at + at * n_group * sizeof(float), 0,
                   r->n * n_group * sizeof(float));
        if (p->form == TRAVEL_INT4) {
            memset(p->to + p->scales_at + (size_t)at * n_group * 2, 0, (size_t)r->n * n_group * 2);
            memset(p->to + p->zeros_at + (size_t)at * n_group, 0, (size_t)r->n * n_group);
        }
        return;
    }
    switch (p->form) {
    case TRAVEL_FLOATS:
        load_floats(p, r, at);
        break;
    case TRAVEL_MADE:
        fill_make_rows((float *)(void *)to, r->source, r->row, r->n);
        break;
    case TRAVEL_BYTES: {
        float *scales = (float *)(void *)(p->to + p->scales_at) + at;
        if (p->m->form.dtype == DT_F8_E4M3)
            weight_fp8_bytes(to, scales, r->source, r->row, r->n);
        else
            weight_quant_int8((int8_t *)to, scales, r->source, r->row, r->n);
        break;
    }
    case TRAVEL_BLOCKS:
        weight_fp8_block(to, (float *)(void *)(p->to + p->scales_at) + (size_t)at * n_group,
                         r->source, r->row, r->n);
        break;
    case TRAVEL_INT4: {
        if (p->order) {
            load_ordered(p, r, at, spare);
            break;
        }
        const struct int4_arrays a = {
            .q = to,
            .scales = (uint16_t *)(void *)(p->to + p->scales_at) + (size_t)at * n_group,
            .zeros = p->to + p->zeros_at + (size_t)at * n_group,
            .group = group,
        };
        weight_quant_int4(&a, r->source, r->row, r->n);
        break;
    }
    }
}

static void load_share(void *arg, uint32_t ith, uint32_t nth)
{
    const struct piece *p = arg;
    const uint32_t end = (uint32_t)((uint64_t)p->n * (ith + 1) / nth);
    for (uint32_t i = (uint32_t)((uint64_t)p->n * ith / nth); i < end;) {
        struct rows r = rows_at(p, p->from + i);
        r.n = r.n < end - i ? r.n : end - i;
        load_run(p, &r, i, p->order ? p->spare + ith * p->spare_bytes : NULL);
        i += r.n;
    }
}

/* ---- to the device ---- */

static void pack(const struct filler *f, const struct piece *p, const unsigned char *src)
{
    const struct kern_exec there = {.nth = 1, .stream = f->upload.link->s};
    const struct packed *w = &p->m->form;
    void *dst = (void *)(uintptr_t)w->data;
    const enum dtype dtype = p->form == TRAVEL_FLOATS ? p->dtype : DT_F32;
    const struct pack_args a = {dst, w->dtype, src, dtype, p->n, w->n_in, p->from, w->n_out};
    const struct pack_int8_args q = {
        .dst = dst,
        .src = src,
        .src_dtype = dtype,
        .n_out = p->n,
        .n_in = w->n_in,
        .row_start = p->from,
        .n_out_total = w->n_out,
        .q = p->form == TRAVEL_BYTES ? (const int8_t *)src : NULL,
        .scales = (const void *)(src + p->scales_at),
    };
    const struct pack_int4_args i = {
        .dst = dst,
        .src = src,
        .src_dtype = dtype,
        .n_out = p->n,
        .n_in = w->n_in,
        .group = w->group,
        .row_start = p->from,
        .n_out_total = w->n_out,
        .q = p->form == TRAVEL_INT4 ? src : NULL,
        .scales = (const void *)(src + p->scales_at),
        .zeros = src + p->zeros_at,
    };
    const struct pack_fp8_args e = {
        .dst = dst,
        .src = src,
        .src_dtype = dtype,
        .n_out = p->n,
        .n_in = w->n_in,
        .row_start = p->from,
        .n_out_total = w->n_out,
        .q = p->form == TRAVEL_BYTES ? src : NULL,
        .scales = (const void *)(src + p->scales_at),
    };
    const struct pack_fp8_block_args b = {
        .dst = dst,
        .q = src,
        .scales = (const void *)(src + p->scales_at),
        .n_out = p->n,
        .n_in = w->n_in,
        .row_start = p->from,
        .n_out_total = w->n_out,
    };
    if (w->group)
        f->kern->pack_int4(&i, &there);
    else if (w->blocks)
        f->kern->pack_fp8_block(&b, &there);
    else if (w->dtype == DT_F8_E4M3)
        f->kern->pack_fp8(&e, &there);
    else if (w->dtype == DT_I8)
        f->kern->pack_int8(&q, &there);
    else
        f->kern->pack(&a, &there);
}

/* The next piece: of one form, and no more than a buffer holds. */
static void cut_piece(struct piece *p)
{
    const struct packed *w = &p->m->form;
    const struct rows first = rows_at(p, p->from);
    const struct weight_source *s = first.source ? first.source : &p->parts[0];
    const size_t n_group = n_group_of(w), align = 64;
    size_t row; /* bytes of all that travels of one */
    p->form = load_form_travel(w, s);
    p->dtype = s->dtype;
    p->row_bytes = p->form == TRAVEL_FLOATS ? (size_t)w->n_in * (dtype_bits(s->dtype) / 8)
                   : p->form == TRAVEL_MADE ? (size_t)w->n_in * sizeof(float)
                                            : w->n_in;
    row = p->row_bytes + (p->form == TRAVEL_BYTES ? sizeof(float) : 0) +
          (p->form == TRAVEL_BLOCKS ? n_group * sizeof(float) : 0) +
          (p->form == TRAVEL_INT4 ? 3 * n_group : 0);
    const size_t fit = (UPLOAD_BYTES - 2 * align) / row;
    const uint32_t left = w->gated ? w->n_out - p->from : first.left;
    Q_ASSERT(fit); /* check_device in model_load.c */
    p->n = left < fit ? left : (uint32_t)fit;
    p->scales_at = (p->n * p->row_bytes + align - 1) / align * align;
    p->zeros_at = (p->scales_at + p->n * n_group * 2 + align - 1) / align * align;
    p->bytes = p->form == TRAVEL_INT4     ? p->zeros_at + p->n * n_group
               : p->form == TRAVEL_BYTES  ? p->scales_at + p->n * sizeof(float)
               : p->form == TRAVEL_BLOCKS ? p->scales_at + p->n * n_group * sizeof(float)
                                          : p->n * p->row_bytes;
}

static void run(const struct filler *f, void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    if (f->team)
        team_run(f->team, fn, arg);
    else
        fn(arg, 0, 1);
}

static void upload_matrix(struct filler *f, const struct load_plan *plan, const struct load_row *m)
{
    struct piece p = {.m = m, .parts = load_plan_sources(plan, m)};
    if (m->ordered) { /* that of the device, which cannot be read here */
        uint32_t *order = (uint32_t *)(void *)(f->buffer.data + f->n_thread * f->part_bytes);
        weight_quant_order(order, p.parts);
        upload_bytes(&f->upload, (void *)(uintptr_t)m->form.order, order,
                     m->form.n_in * sizeof *order);
        p.order = order;
        p.spare = f->buffer.data;
        p.spare_bytes = f->part_bytes;
    }
    for (; p.from < m->form.n_out; p.from += p.n) {
        cut_piece(&p);
        p.to = upload_space(&f->upload);
        run(f, load_share, &p);
        pack(f, &p, upload_stage(&f->upload, p.bytes));
        upload_next(&f->upload);
    }
}

static void upload_interleaved(struct filler *f, const struct load_plan *p,
                               const struct load_row *r)
{
    const size_t n = r->form.n_out * sizeof(float);
    float *to = upload_space(&f->upload);
    Q_ASSERT(n <= UPLOAD_BYTES); /* check_device in model_load.c */
    memset(to, 0, n);
    fill_vector(to, p, r);
    upload_copy(&f->upload, (void *)(uintptr_t)r->form.data, n);
    upload_next(&f->upload);
}

/* Parts of a vector that are absent are zero: the region is zeroed. */
static void upload_vector(struct filler *f, const struct load_plan *p, const struct load_row *r)
{
    const struct weight_source *s = load_plan_sources(p, r);
    float *to = (float *)(uintptr_t)r->form.data;
    if (r->form.gated) {
        upload_interleaved(f, p, r);
        return;
    }
    for (uint32_t i = 0; i < r->n_source; to += s[i++].rows) {
        if (!s[i].present)
            continue;
        Q_ASSERT(s[i].rows * sizeof *to <= UPLOAD_BYTES); /* check_device in model_load.c */
        fill_vector_part(upload_space(&f->upload), &s[i], r->kind);
        upload_copy(&f->upload, to, s[i].rows * sizeof *to);
        upload_next(&f->upload);
    }
}

struct table_rows { /* of the embedding */
    const struct load_row *row;
    const struct weight_source *source;
    char *to;
    uint32_t from, n;
    size_t row_bytes;
};

static void load_table(void *arg, uint32_t ith, uint32_t nth)
{
    const struct table_rows *j = arg;
    const uint32_t at = (uint32_t)((uint64_t)j->n * ith / nth);
    const uint32_t n = (uint32_t)((uint64_t)j->n * (ith + 1) / nth) - at;
    fill_table(j->to + at * j->row_bytes, j->row, j->source, (struct load_units){j->from + at, n});
}

static void upload_table(struct filler *f, const struct load_plan *p, const struct load_row *r)
{
    const struct weight_source *s = load_plan_sources(p, r);
    const size_t row = fill_table_row_bytes(r), fit = UPLOAD_BYTES / row;
    struct table_rows j = {.row = r, .source = s, .row_bytes = row};
    for (; j.from < s->rows; j.from += j.n) {
        j.n = s->rows - j.from < fit ? s->rows - j.from : (uint32_t)fit;
        j.to = upload_space(&f->upload);
        run(f, load_table, &j);
        upload_copy(&f->upload, (char *)(uintptr_t)r->form.data + j.from * row, j.n * row);
        upload_next(&f->upload);
    }
}

void fill_device(struct filler *f, const struct load_plan *p)
{
    static void (*const uploads[])(struct filler *, const struct load_plan *,
                                   const struct load_row *) = {
        [KIND_MATRIX] = upload_matrix, [KIND_TABLE] = upload_table, [KIND_NORM] = upload_vector,
        [KIND_VECTOR] = upload_vector, [KIND_BIAS] = upload_vector,
    };
    uint64_t done = 0, total = 0;
    for (size_t i = 0; i < p->n_row; i++)
        total += fill_source_bytes(p, &p->rows[i]);
    for (size_t i = 0; i < p->n_row; i++) {
        const struct load_row *r = &p->rows[i];
        if (r->place != PLACE_REGION)
            continue;
        uploads[r->kind](f, p, r);
        done += fill_source_bytes(p, r);
        if (f->progress && fill_source_bytes(p, r))
            f->progress(f->progress_ctx, done, total);
    }
}
