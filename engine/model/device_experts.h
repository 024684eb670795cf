/* SPDX-License-Identifier: Apache-2.0 */
/* device_experts - a layer's mixture of experts on a device: one launch for all experts of each
 * product, since how many rows an expert has is not known where launches are ordered. The formulas,
 * and what a place is: ops_moe.h. Which experts a row takes is decided of all rows of the
 * step; their products are of some of these at a time, so that memory does not grow with a step.
 *
 * Internal to engine/model; called by device_walk.c. Threads: as device_walk.h. */
#ifndef QUIRE_ENGINE_MODEL_DEVICE_EXPERTS_H
#define QUIRE_ENGINE_MODEL_DEVICE_EXPERTS_H
#include "engine/model/model_state.h"

struct device_experts {         /* in device memory, n rows of a step, P places */
    float *scores;              /* [n, outputs of the router] */
    uint32_t *experts;          /* [n, n_used] */
    float *weights;             /* [n, n_used] */
    uint32_t *starts;           /* [n_expert + 1] */
    uint32_t *rows;             /* [P] */
    uint32_t *places;           /* [P] by rows */
    void *act;                  /* [P, act_cols] silu(gate) * up; f32 when it becomes bytes: */
    int8_t *act_q;              /* [P, act_cols] int8, or e4m3 */
    struct quant_row *act_rows; /* [P] */
    float *act_scales;          /* [P, scale_cols] of blocks */
    float *out;                 /* [P, hidden] */
    /* Of experts whose inputs have an order: a copy of the input of each place, as the matrix of
     * its expert takes it, and what stands beside bytes. */
    void *ordered;                  /* [P, larger of hidden and width] */
    struct quant_row *ordered_rows; /* [P] */
    size_t act_cols, scale_cols;
    uint32_t n_row; /* P / n_used */
};

/* What the walk has, for a layer; h, q and q_rows are free for it. */
struct expert_rows {
    const struct kern_exec *exec;
    float *x;                 /* [n, hidden] the residual stream; the experts' sum goes onto it */
    void *h;                  /* [n, h_cols] as computed in; f32 where experts read bytes */
    int8_t *q;                /* [n, h_cols] where they do */
    struct quant_row *q_rows; /* [n], likewise */
    float *q_scales;          /* [n, scale_cols] in fp8 */
    size_t h_cols, scale_cols;
    uint32_t n;
    bool is_normed; /* h is x through the norm already */
};

/* Floats from a row's scales of blocks to the next one's, of rows of `cols` e4m3. */
static inline size_t device_scale_cols(size_t cols)
{
    const size_t n_block = (cols + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK;
    return (n_block + KERN_FP8_FOUR - 1) / KERN_FP8_FOUR * KERN_FP8_FOUR;
}

/* Does the library have what they need? Errors: Q_UNSUPPORTED (the operation, by name). */
FALLIBLE device_experts_check(const struct model *m, struct q_err *e);
/* For steps of up to n rows; nothing, when the model has no experts. */
void device_experts_cut(struct device_experts *to, const struct model *m, size_t n,
                        struct region_cutter *c);
/* Norm, router and experts of layer g, which has them. */
void device_experts_run(const struct device_experts *e, const struct model *m,
                        const struct layer_weights *g, const struct expert_rows *r);

#endif
