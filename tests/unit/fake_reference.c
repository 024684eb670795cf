/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device with the reference kernels and the sampling of the CPU; with QUIRE_FAKE_NO_SAMPLE
 * it has no sampling, and the host samples. Its attention plan contains the length of each context
 * and the number of rows, which are compared with the arguments of attention. */
#include <stdlib.h>
#include "engine/worker/sample.h"
#include "fake_device.h"

static size_t make_plan(void *out, const struct device_limits *l, const struct attention_seq *seqs,
                        uint32_t n_seq)
{
    uint32_t *p = out;
    (void)l;
    for (uint32_t i = 0; i < n_seq; i++) {
        *p++ = seqs[i].start;
        *p++ = seqs[i].n_query;
    }
    return 2 * n_seq * sizeof *p;
}

static size_t plan_size(const struct device_limits *l)
{
    return 2 * (size_t)l->n_seq_max * sizeof(uint32_t);
}

static void check_plan(const struct attention_args *a)
{
    const uint32_t *p = a->plan;
    uint32_t n_row = 0;
    for (uint32_t i = 0; i < a->n_seq; i++) {
        Q_ASSERT(p[2 * i] == a->seqs[i].start && p[2 * i + 1] == a->seqs[i].n_query);
        Q_ASSERT(a->seqs[i].start + a->seqs[i].n_query <= a->context_max);
        n_row += a->seqs[i].n_query;
    }
    Q_ASSERT(n_row <= a->n_row);
}

static void sample_row(const struct sample_args *a, uint32_t i, struct sample_scratch *s)
{
    const struct sample_row *r = &a->rows[i];
    float *x = a->x + i * a->x_stride;
    struct step_row row = {.token = r->token};
    size_t top = (size_t)i * SAMPLE_TOP_MAX;
    const struct sample_result out = {&row, a->top_ids ? a->top_ids + top : NULL,
                                      a->top_logprobs ? a->top_logprobs + top : NULL};
    const struct sample_params p = {
        .seed = r->seed,
        .temperature = r->temperature,
        .top_p = r->top_p,
        .min_p = r->min_p,
        .top_k = r->top_k,
        .repetition_penalty = r->repetition,
        .presence_penalty = r->presence,
        .frequency_penalty = r->frequency,
        .top_n_sigma = r->top_n_sigma,
        .n_logprob = r->flags & SAMPLE_LOGPROB ? r->n_top : SAMPLE_NO_LOGPROBS,
        .adjusted_logprobs = r->flags & SAMPLE_ADJUSTED,
        .bias_ids = r->n_bias ? a->bias_ids + r->bias_start : NULL,
        .bias = r->n_bias ? a->bias + r->bias_start : NULL,
        .n_bias = r->n_bias,
    };
    const struct sample_input in = {
        .params = &p,
        .history = a->histories + r->history * a->history_stride,
        .n_known = r->n_known,
        .n_prompt = r->n_prompt,
        .allowed =
            r->mask == SAMPLE_NO_MASK ? NULL : a->masks + r->mask * SAMPLE_MASK_WORDS(a->n_vocab),
    };
    if (r->flags & SAMPLE_SKIP)
        return;
    if (r->flags & SAMPLE_KNOWN)
        sample_known(x, r->n_top, s, &out);
    else
        sample_token(x, &in, s, &out);
    a->out[i] = (struct sample_pick){row.token, row.rank, row.logprob, row.n_top};
}

static void sample(const struct sample_args *a, const struct kern_exec *x)
{
    struct sample_scratch s;
    struct kern_table kern;
    struct q_err e = Q_ERR_INIT;
    (void)x;
    kern_table_cpu(&kern, CAP_NONE);
    Q_ASSERT(!sample_scratch_init(&s, a->n_vocab, &kern, &e));
    for (uint32_t i = 0; i < a->n_row; i++)
        sample_row(a, i, &s);
    sample_scratch_release(&s);
}

uint64_t fake_n_half;
static void linear_w4a16(const struct linear_w4a16_args *a, const struct kern_exec *x)
{
    struct kern_table kern;
    kern_table_cpu(&kern, CAP_NONE);
    fake_n_half++;
    kern.linear_w4a16(a, x);
}

static void linear_w4a16_grouped(const struct linear_w4a16_grouped_args *a,
                                 const struct kern_exec *x)
{
    struct kern_table kern;
    kern_table_cpu(&kern, CAP_NONE);
    fake_n_half++;
    kern.linear_w4a16_grouped(a, x);
}

uint64_t fake_n_shrink;
static void lora_shrink_grouped(const struct lora_shrink_grouped_args *a, const struct kern_exec *x)
{
    struct kern_table kern;
    kern_table_cpu(&kern, CAP_NONE);
    fake_n_shrink++;
    kern.lora_shrink_grouped(a, x);
}

static void kernels(struct kern_table *out)
{
    kern_table_cpu(out, CAP_NONE);
    out->lora_shrink_grouped = lora_shrink_grouped;
    out->linear_w4a16_grouped = linear_w4a16_grouped;
    out->linear_w4a16 = linear_w4a16;
    out->sample = getenv("QUIRE_FAKE_NO_SAMPLE") ? NULL : sample;
}

static size_t matrix_bytes(const struct packed *w)
{
    if (w->group)
        return packed_int4_bytes(w->n_out, w->n_in, w->group);
    if (w->blocks)
        return packed_fp8_block_bytes(w->n_out, w->n_in);
    return w->dtype == DT_I8 || w->dtype == DT_F8_E4M3 ? packed_int8_bytes(w->n_out, w->n_in)
                                                       : packed_bytes(w->dtype, w->n_out, w->n_in);
}

static size_t workspace(const struct device_limits *l)
{
    return kern_scratch_bytes(l->context_max, l->n_head, l->head_dim);
}

const struct fake_library fake_library = {
    .name = "fake",
    .kern = kernels,
    .matrix_bytes = matrix_bytes,
    .kv_block_bytes = kern_kv_block_bytes,
    .workspace_bytes = workspace,
    .plan_bytes = plan_size,
    .plan = make_plan,
    .check_plan = check_plan,
};
