/* SPDX-License-Identifier: Apache-2.0 */
/* Latent attention by the checks of tests/kcheck. Caches lie as the card's do; the plan is made
 * here. */
#include <string.h>
#include "check.h"
#include "kernels/cuda/plan.h"
#include "kernels/device.h"
#include "kernels/variants.h"

CUDA_CALL(head_linear)
CUDA_CALL(mla_store)
CUDA_LAUNCHER(mla)
REF_CALL(head_linear)
REF_CALL(mla)
REF_CALL(mla_store)

static struct kcheck *of; /* whose buffers a plan may lie in: the card reads them */

static void launch_mla(const void *args, const struct kern_exec *x)
{
    CUDA_LAUNCH(mla)(args, x);
}

static void call_mla(const void *args, const struct kern_exec *x)
{
    struct mla_args a = *(const struct mla_args *)args;
    struct device_limits l = {
        .n_seq_max = a.n_seq,
        .context_max = a.context_max,
        .n_head = a.n_head,
        .n_kv_head = 1,
        .head_dim = a.n_value,
    };
    if (x->ith != 0)
        return;
    for (uint32_t i = 0; i < a.n_seq; i++)
        l.n_row_max += a.seqs[i].n_query;
    void *plan = kc_buf(of, plan_bytes(&l));
    plan_make(plan, &l, 0, a.seqs, a.n_seq);
    a.plan = plan;
    a.plan_host = a.n_seq % 2 ? plan : NULL; /* as in a step, or as recorded */
    cuda_run(launch_mla, &a);
    kc_drop(of, 1);
}

static void check_mla(struct kcheck *k)
{
    of = k;
    kcheck_mla(k);
}

const struct cuda_check cuda_checks_mla[] = {
    {"mla", ref_mla, call_mla, 32, check_mla, 8},
    {"head_linear", ref_head_linear, call_head_linear, 32, kcheck_head_linear, 8},
    {"mla_store", ref_mla_store, call_mla_store, 0, kcheck_mla_store, 8},
    {0},
};
