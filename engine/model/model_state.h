/* SPDX-License-Identifier: Apache-2.0 */
/* model_state - what is behind struct model and struct model_scratch. Internal to engine/model.
 *
 * One step's activations, n = rows of the step, R of them at a time (block_rows), so that what
 * passes from one product to the next stays in the caches; all f32 unless said:
 *     x     [n, hidden]       the residual stream
 *     qkv   [n, q + 2 kv]     q, k and v of one layer
 *     att   [n, q]            attention's output
 *     in    [R, hidden or q]  input of q,k,v, of out (int8: quantized from att), of gate and up
 *     act   [R, inter]        silu(gate) * up: input of down
 *     turns [n, head_dim / 2, 2]   (cos, sin) of each row
 *     parts                   of long contexts that are split over threads
 * att, in and act are bf16 when computing in bfloat16. With weights that are integers in and act
 * are int8 with what quant_rows writes beside it, and what they are made of is f32: att,
 * norm [n_thread, hidden] and gated [R, inter].
 * Threads: as model.h. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_STATE_H
#define QUIRE_ENGINE_MODEL_MODEL_STATE_H
#include "engine/model/rotary.h"
#include "engine/model/load/weights.h"
#include "engine/model/model.h"

struct model {
    const struct arch *arch;
    struct model_config config;
    struct model_shape shape;
    struct weights weights;
    struct rotary rotary;
    const struct kern_table *kern;
    float attention_scale;          /* 1 / sqrt(head_dim) */
    const struct device_link *link; /* NULL: on the CPU */
    struct region turns; /* on a device: [max_model_len][head_dim / 2][2] (cos, sin), unless they
                            depend on the prompt */
};

/* (cos, sin) of a position depend on how long the sequence's prompt is. */
static inline bool model_turns_vary(const struct model *m)
{
    const struct model_config *c = &m->config;
    return c->rope.kind == ROPE_DYNAMIC && m->shape.max_model_len > rotary_free_length(c);
}

/* Rows that a product takes. */
struct operand {
    void *x;
    size_t stride;          /* elements */
    struct quant_row *rows; /* of int8 */
    int16_t *sums;          /* [rows, stride / KERN_QUANT_SUM], when some weights have 4 bits */
};

/* What a block's rows need on their way through experts. A place is a row and one of the experts
 * that it takes; places of one expert are neighbours, its rows ascending. P = R * n_used places. */
struct expert_scratch {
    float *scores;     /* [R, outputs of the router] */
    float *normed;     /* [in_rows, hidden] what int8 is made of */
    uint32_t *experts; /* [in_rows, n_used] of each row, ascending */
    float *weights;    /* [in_rows, n_used] */
    float *shared;     /* [in_rows] of the expert that all rows use */
    /* Each thread has its own of these: */
    uint32_t *ends;        /* [n_expert] one past the last place of each expert */
    uint32_t *rows;        /* [P] the row of each place */
    uint32_t *places;      /* [R, n_used] where a row's results are */
    struct operand picked; /* [PICK_ROWS, hidden] rows of one expert */
    /* and here all write places: */
    struct operand act; /* [in_rows * n_used, width] input of down */
    float *gated;       /* [P, width] what int8 is made of */
    float *out;         /* [P, hidden], and behind them [R, hidden] of the one that all rows use */
};

struct model_scratch {
    struct region memory;
    uint32_t n_token_max, n_thread;
    uint32_t block_rows;
    float *x, *qkv;
    size_t qkv_stride;
    struct operand att, in, act;
    uint32_t in_rows; /* block_rows, or enough for ALONE_ROWS of each thread */
    float *norm, *gated;
    struct expert_scratch e; /* of a model with experts */
    float *turns;
    float *parts; /* [n_part] */
    size_t n_part;
    uint32_t *rows;      /* 0, 1, 2 …: the row of `turns` that a row uses */
    unsigned char *kern; /* [n_thread][kern_bytes] */
    size_t kern_bytes;
    float *const *tap;
};

/* Of one layer, K (or V). */
size_t model_kv_block_bytes(const struct model *m);

/* Rows of which each thread may have a copy of its own (forward.c). */
#define ALONE_ROWS 8u

/* Rows of an expert that a thread multiplies at a time, of which it has a copy then. */
#define PICK_ROWS 128u

/* What norms, attention and gated products write: the next product's input, or what is quantized
 * for it. */
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
