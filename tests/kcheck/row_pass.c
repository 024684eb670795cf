/* SPDX-License-Identifier: Apache-2.0 */
/* row_pass: every kind of pass against the reference, to the bit. */
#include "kcheck.h"
#include <math.h>

struct row_case { /* the outputs of one variant */
    float *x, most;
    double *sums;
    struct row_item *items;
    uint32_t n_found;
};

static void run_variant(struct kcheck *k, const struct kc_variant *v, struct row_pass_args a,
                        struct row_case *out)
{
    const size_t n_sum = (a.n_col + ROW_CHUNK - 1) / ROW_CHUNK;
    out->x = kc_copy(k, a.x, a.n_col * sizeof *a.x);
    out->sums = kc_buf(k, n_sum * sizeof *out->sums);
    out->items = kc_buf(k, (a.n_item + 16) * sizeof *out->items);
    out->n_found = 0;
    out->most = 0;
    a.x = out->x;
    a.sums = a.kind == ROW_MAX || a.kind == ROW_RANK ? NULL : out->sums;
    a.items = out->items;
    a.n_found = a.kind == ROW_WEIGHTS || a.kind == ROW_KEEP ? NULL : &out->n_found;
    a.most = &out->most;
    kc_run(k, v, &a, 1);
}

static void choose_args(struct kcheck *k, struct row_pass_args *a)
{
    *a = (struct row_pass_args){
        .kind = (enum row_pass_kind)kc_range(k, ROW_MAX, ROW_RANK),
        .n_col = kc_range(k, 1, kc_chance(k, 50) ? 70 : 5000),
    };
    a->x = kc_buf(k, a->n_col * sizeof *a->x);
    kc_fill(k, a->x, a->n_col);
    for (uint32_t i = 0; i < a->n_col; i++) {
        if (kc_chance(k, 10)) /* equal ones */
            a->x[i] = a->x[kc_range(k, 0, i)];
        if (a->kind != ROW_MAX && !(fabsf(a->x[i]) < 1e30f))
            a->x[i] = a->kind == ROW_WEIGHTS && a->x[i] < 0 ? -INFINITY : 0.25f;
        if (a->kind != ROW_MAX && a->kind != ROW_WEIGHTS) /* weights */
            a->x[i] = fabsf(a->x[i]);
    }
    a->id = kc_range(k, 0, a->n_col - 1);
    a->low = a->x[kc_range(k, 0, a->n_col - 1)];
    a->high = kc_chance(k, 20) ? INFINITY : a->x[a->id];
    a->n_item = kc_range(k, 0, a->n_col + 1);
    if (a->kind == ROW_WEIGHTS) {
        a->low = kc_chance(k, 50) ? 0 : 0.01f;
        a->high = 1;
        for (uint32_t i = 0; i < a->n_col; i++)
            a->high = fmaxf(a->high, a->x[i]);
        a->temperature = 0.01f + fabsf((float)kc_range(k, 0, 300) / 100);
    }
    kc_shape(k, "kind %u n_col %u low %g high %g", a->kind, a->n_col, (double)a->low,
             (double)a->high);
}

void kcheck_row_pass(struct kcheck *k)
{
    struct row_pass_args a;
    struct row_case want, got;
    choose_args(k, &a);
    run_variant(k, k->ref, a, &want);
    run_variant(k, k->variant, a, &got);
    kc_same_bits(k, "x", (struct kc_bits){got.x, want.x, DT_F32, a.n_col});
    kc_near(k, "found", got.n_found, want.n_found, 0);
    kc_near(k, "most", got.most, want.most, 0);
    for (uint32_t i = 0; i < want.n_found && a.kind == ROW_BETWEEN; i++) {
        kc_near(k, "id", got.items[i].id, want.items[i].id, 0);
        kc_near(k, "value", got.items[i].value, want.items[i].value, 0);
    }
    for (uint32_t c = 0; c * ROW_CHUNK < a.n_col; c++)
        if (a.kind != ROW_MAX && a.kind != ROW_RANK)
            kc_near(k, "sum", got.sums[c], want.sums[c], 0);
}

void kbench_row_pass(struct kc_bench *b)
{
    static const char *const names[] = {"max", "weights", "keep", "between", "rank"};
    const uint32_t n_col = 151936;
    uint32_t n_found;
    float most, *x = kc_buf(b->k, n_col * sizeof *x);
    struct row_pass_args a = {
        .x = x,
        .n_col = n_col,
        .low = 0.5f,
        .high = 0.6f,
        .temperature = 1,
        .n_item = n_col,
        .n_found = &n_found,
        .most = &most,
    };
    a.sums = kc_buf(b->k, (n_col / ROW_CHUNK + 1) * sizeof *a.sums);
    a.items = kc_buf(b->k, (n_col + 16) * sizeof *a.items);
    for (uint32_t kind = ROW_MAX; kind <= ROW_RANK; kind++) {
        char shape[32];
        kc_fill(b->k, x, n_col);
        a.kind = (enum row_pass_kind)kind;
        snprintf(shape, sizeof shape, "%s of 151936", names[kind]);
        kc_print_bytes(b, shape, kc_time(b, &a), 4.0 * n_col);
    }
}
