/* SPDX-License-Identifier: Apache-2.0 */
/* Each source goes in pieces of as many rows as a buffer holds: read, or made, by all threads into
 * memory that the device reads, and packed there. The pages of the file that were read are let go
 * at once. */
#include <string.h>
#include "engine/model/weights.h"

struct load { /* rows of a source into host memory */
    const struct weight_source *source;
    char *to;
    uint32_t from, n;
    size_t row_bytes;
};

static void load_rows(void *arg, uint32_t ith, uint32_t nth)
{
    const struct load *j = arg;
    const struct weight_source *s = j->source;
    const uint32_t at = (uint32_t)((uint64_t)j->n * ith / nth);
    const uint32_t n = (uint32_t)((uint64_t)j->n * (ith + 1) / nth) - at;
    char *to = j->to + at * j->row_bytes;
    if (!s->tensor) {
        weights_make_rows((float *)(void *)to, s, j->from + at, n);
        return;
    }
    const char *src = (const char *)s->tensor->data + (j->from + at) * j->row_bytes;
    tensor_want(src, n * j->row_bytes);
    memcpy(to, src, n * j->row_bytes);
    if (s->tensor->file)
        tensor_drop(src, n * j->row_bytes);
}

static void load_piece(const struct weight_filler *f, struct load *j)
{
    j->to = upload_space(f->upload);
    if (f->team)
        team_run(f->team, load_rows, j);
    else
        load_rows(j, 0, 1);
}

static void pack(const struct weight_filler *f, const struct packed *w, const struct pack_args *a)
{
    const struct kern_exec there = {.nth = 1, .stream = f->upload->link->s};
    if (w->group) {
        const struct pack_int4_args q = {.dst = a->dst,
                                         .src = a->src,
                                         .src_dtype = a->src_dtype,
                                         .n_out = a->n_out,
                                         .n_in = a->n_in,
                                         .group = w->group,
                                         .row_start = a->row_start,
                                         .n_out_total = a->n_out_total};
        f->kern->pack_int4(&q, &there);
    } else if (w->dtype == DT_I8) {
        const struct pack_quant_args q = {.dst = a->dst,
                                          .src = a->src,
                                          .src_dtype = a->src_dtype,
                                          .n_out = a->n_out,
                                          .n_in = a->n_in,
                                          .row_start = a->row_start,
                                          .n_out_total = a->n_out_total};
        f->kern->pack_quant(&q, &there);
    } else {
        f->kern->pack(a, &there);
    }
}

/* One source into outputs start … of w. */
static void upload_part(const struct weight_filler *f, const struct packed *w,
                        const struct weight_source *s, uint32_t start)
{
    struct upload *u = f->upload;
    struct load j = {.source = s, .row_bytes = s->cols * sizeof(float)};
    struct pack_args a = {.dst = (void *)(uintptr_t)w->data,
                          .dst_dtype = w->dtype,
                          .src_dtype = s->tensor ? s->dtype : DT_F32,
                          .n_in = s->cols,
                          .n_out_total = w->n_out};
    if (s->tensor)
        j.row_bytes = (size_t)s->cols * (dtype_bits(s->dtype) / 8);
    const size_t fit = UPLOAD_BYTES / j.row_bytes;
    Q_ASSERT(fit); /* check_device in model.c */
    for (; j.from < s->rows; j.from += j.n) {
        j.n = s->rows - j.from < fit ? s->rows - j.from : (uint32_t)fit;
        load_piece(f, &j);
        a.src = upload_stage(u, j.n * j.row_bytes);
        a.row_start = start + j.from;
        a.n_out = j.n;
        pack(f, w, &a);
        upload_next(u);
    }
}

void weights_upload(const struct weight_filler *f, const struct weight_matrix *m, uint32_t n)
{
    uint64_t bytes = 0;
    for (const struct weight_matrix *end = m + n; m < end; m++) {
        uint32_t start = 0;
        Q_ASSERT(!m->dst.gated);
        for (uint32_t i = 0; i < m->n_part; i++) {
            const struct weight_source *s = &m->parts[i];
            upload_part(f, &m->dst, s, start);
            start += s->rows;
            bytes += (uint64_t)s->rows * s->cols * (dtype_bits(s->dtype) / 8);
        }
        if (f->progress)
            f->progress(f->progress_ctx, bytes);
    }
}

void weights_upload_vector(const struct weight_filler *f, float *dst, const struct weight_source *s,
                           bool one)
{
    Q_ASSERT(s->rows * sizeof *dst <= UPLOAD_BYTES); /* check_device in model.c */
    weights_fill_vector(upload_space(f->upload), s, one);
    upload_copy(f->upload, dst, s->rows * sizeof *dst);
    upload_next(f->upload);
}

void weights_upload_table(const struct weight_filler *f, void *dst, const struct weight_source *s)
{
    const size_t row = (size_t)s->cols * (dtype_bits(s->dtype) / 8), fit = UPLOAD_BYTES / row;
    struct load j = {.source = s, .row_bytes = row};
    for (; j.from < s->rows; j.from += j.n) {
        struct weight_source part = *s;
        part.rows = j.n = s->rows - j.from < fit ? s->rows - j.from : (uint32_t)fit;
        if (s->tensor)
            load_piece(f, &j);
        else
            weights_fill_table(f, upload_space(f->upload), s->dtype, &part, j.from);
        upload_copy(f->upload, (char *)dst + j.from * row, j.n * row);
        upload_next(f->upload);
    }
}
