/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's kernels are the reference's. Its plan of attention says how long each context
 * is and how many rows there are, to be compared with what attention is given. */
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

static void kernels(struct kern_table *out)
{
    kern_table_cpu(out, CAP_NONE);
}

static size_t matrix_bytes(const struct packed *w)
{
    if (w->group)
        return packed_int4_bytes(w->n_out, w->n_in, w->group);
    return w->dtype == DT_I8 || w->dtype == DT_F8_E4M3 ? packed_quant_bytes(w->n_out, w->n_in)
                                                       : packed_bytes(w->dtype, w->n_out, w->n_in);
}

static size_t workspace(const struct device_limits *l)
{
    return kern_scratch_bytes(l->context_max, l->n_head, l->head_dim);
}

const struct fake_library fake_library = {.name = "fake",
                                          .kern = kernels,
                                          .matrix_bytes = matrix_bytes,
                                          .kv_block_bytes = kern_kv_block_bytes,
                                          .workspace_bytes = workspace,
                                          .plan_bytes = plan_size,
                                          .plan = make_plan,
                                          .check_plan = check_plan};
