/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/matmul.h"

enum form {
    FORM_FLOATS,
    FORM_CODES,
    FORM_INT8,
    FORM_W4A8,
    FORM_W4A16,
    FORM_FP8,
    FORM_FP8_BLOCK,
    FORMS
};

static enum form form_of(const struct packed *w, enum dtype input)
{
    if (w->codes.kind)
        return FORM_CODES;
    if (!matmul_reads_bytes(input))
        return w->group ? FORM_W4A16 : FORM_FLOATS;
    if (w->blocks)
        return FORM_FP8_BLOCK;
    if (w->dtype == DT_F8_E4M3)
        return FORM_FP8;
    return w->group ? FORM_W4A8 : FORM_INT8;
}

struct matmul_rows matmul_rows_at(const struct matmul_rows *r, size_t i)
{
    struct matmul_rows at = *r;
    at.x = (char *)r->x + i * r->stride * (dtype_bits(r->dtype) / 8);
    at.rows = r->rows ? r->rows + i : NULL;
    at.sums = r->sums ? r->sums + i * r->stride / KERN_INT8_SUM : NULL;
    at.scales = r->scales ? r->scales + i * r->scale_stride : NULL;
    return at;
}

static struct linear_args floats_args(const struct matmul *m)
{
    return (struct linear_args){
        .y = m->y,
        .y_dtype = m->y_dtype,
        .x = m->x->x,
        .x_dtype = m->x->dtype,
        .w = *m->w,
        .bias = m->bias,
        .n_row = m->n_row,
        .x_stride = m->x->stride,
        .y_stride = m->y_stride,
        .accumulate = m->add,
    };
}

static struct linear_int8_args bytes_args(const struct matmul *m)
{
    return (struct linear_int8_args){
        .y = m->y,
        .y_dtype = m->y_dtype,
        .x = m->x->x,
        .rows = m->x->rows,
        .w = *m->w,
        .bias = m->bias,
        .n_row = m->n_row,
        .x_stride = m->x->stride,
        .y_stride = m->y_stride,
        .accumulate = m->add,
    };
}

static struct linear_fp8_block_args blocks_args(const struct matmul *m)
{
    return (struct linear_fp8_block_args){
        .y = m->y,
        .y_dtype = m->y_dtype,
        .x = m->x->x,
        .x_scales = m->x->scales,
        .w = *m->w,
        .bias = m->bias,
        .n_row = m->n_row,
        .x_stride = m->x->stride,
        .y_stride = m->y_stride,
        .scale_stride = m->x->scale_stride,
        .accumulate = m->add,
    };
}

static void run_groups(const struct kern_table *k, const struct matmul *m,
                       const struct kern_exec *x)
{
    const struct linear_grouped_args floats = {floats_args(m), *m->groups};
    const struct linear_int8_grouped_args bytes = {bytes_args(m), *m->groups};
    switch (form_of(m->w, m->x->dtype)) {
    case FORM_INT8:
        k->linear_int8_grouped(&bytes, x);
        break;
    case FORM_W4A8:
        k->linear_w4a8_grouped(&(struct linear_w4a8_grouped_args){bytes}, x);
        break;
    case FORM_W4A16:
        k->linear_w4a16_grouped(&(struct linear_w4a16_grouped_args){floats}, x);
        break;
    case FORM_FP8:
        k->linear_fp8_grouped(&(struct linear_fp8_grouped_args){bytes}, x);
        break;
    case FORM_FP8_BLOCK:
        k->linear_fp8_block_grouped(
            &(struct linear_fp8_block_grouped_args){blocks_args(m), *m->groups}, x);
        break;
    default:
        k->linear_grouped(&floats, x);
    }
}

void matmul_run(const struct kern_table *k, const struct matmul *m, const struct kern_exec *x)
{
    if (m->groups) {
        run_groups(k, m, x);
        return;
    }
    switch (form_of(m->w, m->x->dtype)) {
    case FORM_INT8: {
        const struct linear_int8_args a = bytes_args(m);
        k->linear_int8(&a, x);
        break;
    }
    case FORM_W4A8:
        k->linear_w4a8(&(struct linear_w4a8_args){bytes_args(m), m->x->sums}, x);
        break;
    case FORM_CODES:
        k->linear_codes(&(struct linear_codes_args){floats_args(m)}, x);
        break;
    case FORM_W4A16:
        k->linear_w4a16(&(struct linear_w4a16_args){floats_args(m)}, x);
        break;
    case FORM_FP8:
        k->linear_fp8(&(struct linear_fp8_args){bytes_args(m)}, x);
        break;
    case FORM_FP8_BLOCK: {
        const struct linear_fp8_block_args a = blocks_args(m);
        k->linear_fp8_block(&a, x);
        break;
    }
    default: {
        const struct linear_args a = floats_args(m);
        k->linear(&a, x);
    }
    }
}

void matmul_quantize(const struct kern_table *k, const struct matmul_rows *to,
                     const struct matmul_source *from, const struct kern_exec *x)
{
    if (to->dtype == DT_I8) {
        const struct quant_rows_args a = {
            .q = to->x,
            .rows = to->rows,
            .sums = to->sums,
            .x = from->x,
            .order = from->order,
            .n_row = from->n_row,
            .n_col = from->n_col,
            .x_stride = from->stride,
            .q_stride = to->stride,
        };
        k->quant_rows(&a, x);
        return;
    }
    Q_ASSERT(to->dtype == DT_F8_E4M3);
    const struct quant_rows_fp8_args rows = {
        .q = to->x,
        .rows = to->rows,
        .x = from->x,
        .n_row = from->n_row,
        .n_col = from->n_col,
        .x_stride = from->stride,
        .q_stride = to->stride,
        .scale = from->scale,
    };
    const struct quant_rows_fp8_block_args blocks = {
        .q = to->x,
        .scales = to->scales,
        .x = from->x,
        .n_row = from->n_row,
        .n_col = from->n_col,
        .x_stride = from->stride,
        .q_stride = to->stride,
        .scale_stride = to->scale_stride,
    };
    if (to->scales)
        k->quant_rows_fp8_block(&blocks, x);
    else
        k->quant_rows_fp8(&rows, x);
}

const char *matmul_needs(const struct packed *w, enum dtype input, bool grouped)
{
    static const char *const names[FORMS][2] = {
        [FORM_FLOATS] = {"linear", "linear_grouped"},
        [FORM_CODES] = {"linear_codes", "linear_codes"}, /* not on devices */
        [FORM_INT8] = {"linear_int8", "linear_int8_grouped"},
        [FORM_W4A8] = {"linear_w4a8", "linear_w4a8_grouped"},
        [FORM_W4A16] = {"linear_w4a16", "linear_w4a16_grouped"},
        [FORM_FP8] = {"linear_fp8", "linear_fp8_grouped"},
        [FORM_FP8_BLOCK] = {"linear_fp8_block", "linear_fp8_block_grouped"},
    };
    return names[form_of(w, input)][grouped];
}

bool matmul_is_there(const struct kern_table *k, const struct packed *w, enum dtype input,
                     bool grouped)
{
    const bool there[FORMS][2] = {
        [FORM_FLOATS] = {k->linear != NULL, k->linear_grouped != NULL},
        [FORM_CODES] = {k->linear_codes != NULL, false},
        [FORM_INT8] = {k->linear_int8 != NULL, k->linear_int8_grouped != NULL},
        [FORM_W4A8] = {k->linear_w4a8 != NULL, k->linear_w4a8_grouped != NULL},
        [FORM_W4A16] = {k->linear_w4a16 != NULL, k->linear_w4a16_grouped != NULL},
        [FORM_FP8] = {k->linear_fp8 != NULL, k->linear_fp8_grouped != NULL},
        [FORM_FP8_BLOCK] = {k->linear_fp8_block != NULL, k->linear_fp8_block_grouped != NULL},
    };
    return there[form_of(w, input)][grouped];
}
