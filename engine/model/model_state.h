/* SPDX-License-Identifier: Apache-2.0 */
/* model_state - what is behind struct model and struct model_scratch. Internal to engine/model.
 *
 * One step's activations, n = rows of the step, all f32 unless said:
 *     x     [n, hidden]                      the residual stream
 *     h     [n, h_cols]                  input of the next matrix product (bf16 when computing in
 *                                        bfloat16 with weights that are no integers)
 *     wide  [n, q + 2 kv] then [n, q]    q,k,v and attention's output; or [n, 2 inter]: gate and up
 *     turns [n, head_dim / 2, 2]         (cos, sin) of each row
 * Threads: as model.h. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_STATE_H
#define QUIRE_ENGINE_MODEL_MODEL_STATE_H
#include "engine/model/rotary.h"
#include "engine/model/weights.h"

struct model {
    const struct arch *arch;
    struct model_config config;
    struct model_shape shape;
    struct weights weights;
    struct rotary rotary;
    const struct kern_table *kern;
    float attention_scale; /* 1 / sqrt(head_dim) */
};

struct model_scratch {
    struct region memory;
    uint32_t n_token_max, n_thread;
    float *x;
    void *h;
    int8_t *q;                /* [n, h_cols] h as int8, when the weights are int8; else NULL */
    struct quant_row *q_rows; /* [n] its scales */
    int16_t *q_sums;          /* [n, h_cols / KERN_QUANT_SUM], when some weights have 4 bits */
    float *wide;
    float *turns;
    uint32_t *rows;      /* 0, 1, 2 …: the row of `turns` that a row uses */
    unsigned char *kern; /* [n_thread][kern_bytes] */
    size_t kern_bytes;
    uint32_t h_cols;    /* elements between rows of h, and of q */
    uint32_t wide_cols; /* elements of a row of wide, all parts */
    float *const *tap;
};

/* What norms, silu and attention write for the next matrix product. */
static inline enum dtype model_input_dtype(const struct model *m)
{
    return m->shape.compute_dtype == DT_BF16 && !m->shape.quantization ? DT_BF16 : DT_F32;
}

static inline uint32_t model_q_cols(const struct model *m)
{
    return m->config.n_head * m->config.head_dim;
}

static inline uint32_t model_kv_cols(const struct model *m)
{
    return m->config.n_kv_head * m->config.head_dim;
}

#endif
