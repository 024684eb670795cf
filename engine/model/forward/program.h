/* SPDX-License-Identifier: Apache-2.0 */
/* program - a model as a flat, checked list of operations over named buffers: the layer program.
 *
 * program_compile makes it from a family (struct arch_layer) and a config. program_fuse divides it
 * into stages (one operation, or neighbours that run as one) and the stages into passes over rows.
 * The executors of the CPU (executor_cpu.h) and of a device run stages and know no family.
 *
 *     ops     norm | quantize | matmul | norm q | norm k | rope | store | attention | matmul | …
 *     stages  [norm, quantize] [matmul] [norm q, norm k, rope, store]   [attention]   [matmul, …
 *     passes  [---------- rows in blocks --------------------------]   [all rows ]   [ blocks …
 *
 * A buffer is rows of columns; a reference names columns and their type. An operation reads `in`,
 * writes `out` (or adds to it) and names its weight; of the weights' packing the list depends on
 * struct program_form alone. A buffer written and read within one stage only needs no memory.
 *
 * What builds on it:
 * - A pipeline stage is a part of the list (program_cut.h).
 * - A plugin inserts operations before program_fuse (plugin/host_program.h), by the same rules.
 * - Tensor parallelism splits a MATMUL by the shard column of its tensors (arch_tensor.shard):
 *   SHARD_ROWS divides the columns of `out`, SHARD_COLS those of `in` and puts a sum over ranks
 *   behind the operation, before the ADD; heads and experts divide with the columns they stand on.
 * - A backward pass is the list from its end, without fusions: each kind has a rule from (in,
 *   weight, d out) to (d in, d weight); a buffer that one reads and a later one changes is kept.
 * Threads: made by one; then only read. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_H
#define QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_H
#include "engine/model/forward/program_buffer.h"
#include "engine/model/forward/program_own.h"
#include "engine/model/forward/program_weight.h"
#include "kernels/ops/ops_elementwise.h"

enum program_kind {
#define OP(kind, name, rows) PROGRAM_##kind,
#include "engine/model/forward/program_ops.def"
    PROGRAM_KINDS
};
enum program_fusion {
    PROGRAM_FUSE_NONE, /* one operation */
#define FUSION(id, text, ...) PROGRAM_FUSE_##id,
#include "engine/model/forward/program_fusions.def"
    PROGRAM_FUSIONS
};
#define PROGRAM_FUSE(id) (1u << PROGRAM_FUSE_##id)
#define PROGRAM_FUSE_ALL (~0u)

#define PROGRAM_NO_LAYER UINT32_MAX
struct program_op {
    enum program_kind kind;
    uint32_t layer;
    struct program_ref in[2], out; /* in[1]: V; the cache; routes; scores of SHARE; gates */
    enum program_weight weight, bias;
    bool in_place; /* out is in[0], changed */
    bool onto;     /* out is added to; PREDICT, CORRECT: is read too, and in[0] is changed */
    bool asked;    /* in[0]'s rows are those whose logits are asked for; all operations behind it
                       have these rows */
    union {
        float scale; /* EMBED, ADD, SCALE (1 where it has a weight, its first number) */
        float cap;   /* SOFT_CAP, CLIP; SPARSE: standard deviations */
        struct {
            float growth, length;
            uint32_t first;
        } by_position;          /* SCALE_Q */
        enum pooling_kind pool; /* POOL */
        bool ordered;           /* QUANTIZE: in the order of `weight`, for which it is */
        struct {
            uint32_t first;    /* POSITIONS: the table's row of position 0 */
            uint32_t div, mod; /* mod above 0: row (position / div) % mod from there on */
        };
        const struct program_own *own; /* OWN: of layer_program.owns */
        struct {
            enum arch_norm kind;
            uint32_t unit; /* columns that are normed together: all of in[0], or a head */
            bool apart;    /* each unit with weights of its own */
            float eps;
        } norm;
        struct {
            enum arch_activation is;
            bool gated;
            float limit; /* gated: act(min(gate, limit)) * (up limited to ±limit, + 1); 0: none */
        } act;           /* ACTIVATE */
        struct {
            uint32_t n_head, head_dim, first, n_rot; /* n_rot elements of a head from `first` on */
            bool interleaved;
            bool local;   /* model_config.local_rope */
            double theta; /* for print; frequencies: rotary.h */
        } rope;
        struct {
            uint32_t n_head, n_kv_head, head_dim, window;
            float scale, soft_cap;
            bool causal, alibi;
            bool chunked;      /* the window is a chunk of positions */
            bool wide, shared; /* heads are others than most layers have; the cache is of `of` */
            uint32_t of;
        } attention; /* STORE: n_kv_head, head_dim */
        struct {
            uint32_t n_head, n_key, n_value; /* columns of the cache, those of the latent */
            float scale;
        } latent; /* STORE_LATENT, ATTENTION_LATENT */
        struct {
            uint32_t n_head, n_in, n_out, n_kept; /* columns of a head */
            uint32_t w_rows, w_first; /* rows of the weight for each head, the first one used */
            bool transposed;          /* the weight has inputs as rows */
        } heads;                      /* HEADS */
        struct {
            uint32_t width, state; /* floats in front of its own in a sequence's state */
            bool gated;            /* y = in's second part * conv(the first part * the third) */
        } conv;                    /* CONV */
        struct {
            uint32_t state, n_key_head, n_value_head, key_dim, value_dim; /* state: likewise */
            float beta_max;
        } delta; /* DELTA */
        struct {
            uint32_t state; /* likewise */
            uint32_t n_head, head_dim, n_group, n_state;
            uint32_t first; /* column of in[0] where b begins; c is behind it, x in column 0 */
            float step_min, step_max;
            bool by_state; /* a rate for each element of the state: Mamba; weights: with MIX_SKIP */
        } scan;            /* SCAN; in[1]: steps */
        enum kern_gate gate; /* GATE */
        struct {
            enum arch_route rule;
            uint32_t n_expert, n_used;
            bool renormalize;
            uint32_t n_group, n_group_used;
            float scale, mixer;
            bool of_input; /* weights are those of the experts' input: EXPERTS that read rows, and
                              COMBINE, which then takes their outputs as they are */
        } route;           /* ROUTE; EXPERTS, COMBINE: the first three and of_input */
    };
};
struct program_stage {
    uint32_t first, n; /* ops */
    enum program_fusion fusion;
};
struct program_pass {  /* stages of a layer that a block of rows goes through from first to last; or
                         one that reads rows of others */
    uint32_t first, n; /* stages */
    uint32_t layer;    /* PROGRAM_NO_LAYER: before the first, behind the last */
    bool asked;        /* it is of the rows that are asked for */
    bool all_rows, has_product;
};

struct layer_program {
    struct program_op *ops;
    uint32_t n_op, op_capacity;
    struct program_stage *stages; /* of program_fuse, and the rest */
    uint32_t n_stage;
    struct program_pass *passes;
    uint32_t n_pass;
    struct program_buffer buffers[PROGRAM_BUFFERS_MAX];
    uint32_t n_buffer;
    uint32_t n_layer;
    uint32_t n_state; /* floats that a sequence has as a state, of all operations */
    struct program_own *owns;
    char own_names[PROGRAM_BUFFERS_MAX][PROGRAM_NAME_MAX]; /* of a plugin's buffers */
};
/* clang-format off */
#define LAYER_PROGRAM_INIT {0}
/* clang-format on */

/* The properties of a packed weight that a program depends on. */
struct program_form {
    enum dtype input; /* of rows that a product with it reads: F32, BF16, F16, or I8, E4M3 */
    uint32_t variant; /* bytes for forms with other numbers differ (scales of blocks, sums) */
    float x_scale;    /* of e4m3, as packed.x_scale: with another the bytes differ too */
    bool ordered;     /* bytes in an order of this matrix only (act-order) */
    bool interleaved; /* gate and up are, so that matmul and activation are one stage */
    bool of_norm;     /* bytes that a norm makes at once, so that both are one stage */
    uint64_t bytes;   /* packed; of an expert: one of them. 0 is not known */
};
struct program_forms {
    struct program_form (*form)(const void *ctx, enum program_weight w, uint32_t layer);
    const void *ctx;
    enum dtype compute; /* F32, BF16 or F16: a scale of the embedding is rounded to it */
    uint32_t lora_rank; /* above 0: the layers' products may have adapters of at most this rank */
};

/* p: LAYER_PROGRAM_INIT. Errors: Q_UNSUPPORTED (what of the family or the config there is no
 * operation for, by name), Q_NO_MEMORY. */
FALLIBLE program_compile(struct layer_program *p, const struct arch *arch,
                         const struct model_config *c, const struct program_forms *f,
                         struct q_err *e);
/* One operation behind the others. Errors: Q_NO_MEMORY. */
FALLIBLE program_add(struct layer_program *p, const struct program_op *op, struct q_err *e);
/* fusions: PROGRAM_FUSE(…) that the executor has; 0: each operation is a stage. Matrices that are
 * interleaved are fused with their activation whatever it says. Errors: Q_NO_MEMORY. */
FALLIBLE program_fuse(struct layer_program *p, const struct program_forms *f, uint32_t fusions,
                      struct q_err *e);
/* Floats of a sequence's state that the operation has; 0: it has none. */
uint32_t program_state_floats(const struct program_op *op);
/* Says where each operation's floats lie in the state of a sequence, behind one another; sets
 * p->n_state. Again where operations were added or left out. */
void program_place_states(struct layer_program *p);
/* Is every buffer written before it is read, with the columns and the type that are read; do shapes
 * agree? Errors: Q_INVALID (the operation, its number, and what is wrong with it). */
FALLIBLE program_check(const struct layer_program *p, struct q_err *e);
void program_release(struct layer_program *p);

#endif
