/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's kernels are the CUDA ones, on the host emulation, in the layouts and with the
 * plan of a card: libquire-emu.so is libquire-cuda.so but for device.c. Unless it is opened
 * deterministic, products of many rows are the fake cuBLASLt's, by choice of the real tuner with a
 * clock that makes every run faster than the one before. */
#include "emu_lt.h"
#include "fake_device.h"
#include "fake_lt.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/tune.h"
#include "kernels/cuda/workspace.h"

/* Multiprocessors; launch.cuh says how many blocks the emulation has at a time. */
#define UNITS        4u
#define LT_WORKSPACE ((size_t)64 << 10)

static void open_lt(const struct device_options *o)
{
    struct q_err e = Q_ERR_INIT;
    fake_lt.n_algo = 1; /* emulation takes its time */
    if (!o->deterministic)
        Q_ASSERT(!lt_open(&emu_lt, &fake_lt_api, LT_WORKSPACE, &e));
}

static void close_lt(void)
{
    lt_close(emu_lt);
    emu_lt = NULL;
}

static float faster_ms(struct device_event *from, struct device_event *to)
{
    static uint32_t n;
    (void)from;
    (void)to;
    return 1000.0f / (float)(1 + n++ % 1000);
}

static enum q_code tune(struct device *d, const struct device_tuning *what,
                        struct device_tuned *out, struct q_err *e)
{
    struct device_table t = *fake_device_table();
    const struct device_link link = {&t, d, what->x->stream};
    const struct tuner tuner = {.lt = emu_lt, .link = &link, .card.name = "emulated", .n_run = 1};
    t.event_ms = faster_ms;
    *out = (struct device_tuned){0};
    return emu_lt ? tune_products(&tuner, what, out, e) : Q_OK;
}

static void kernels(struct kern_table *out)
{
    kern_table_cuda(out,
                    kern_caps_cuda(8, 0)); /* those of a card of 9.0: cuda_check, test_hopper */
}

static size_t matrix_bytes(const struct packed *w)
{
    return cuda_matrix_bytes(w);
}

static size_t kv_block_bytes(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim)
{
    return n_kv_head * cuda_kv_head_bytes(kv_dtype, head_dim);
}

static size_t workspace(const struct device_limits *l)
{
    const size_t own = cuda_workspace_bytes(l, UNITS);
    const size_t lt = emu_lt ? cuda_lt_workspace_bytes(l, LT_WORKSPACE) : 0;
    return own > lt ? own : lt;
}

static size_t make_plan(void *out, const struct device_limits *l, const struct attention_seq *seqs,
                        uint32_t n_seq)
{
    const struct plan_head *h = out;
    plan_make(out, l, seqs, n_seq);
    return h->large_at + h->n_large * sizeof(struct plan_piece);
}

const struct fake_library fake_library = {
    .name = "emulated",
    .row_major = true,
    .kern = kernels,
    .matrix_bytes = matrix_bytes,
    .kv_block_bytes = kv_block_bytes,
    .workspace_bytes = workspace,
    .plan_bytes = plan_bytes,
    .plan = make_plan,
    .open = open_lt,
    .close = close_lt,
    .tune = tune,
};
