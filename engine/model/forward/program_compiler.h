/* SPDX-License-Identifier: Apache-2.0 */
/* program_compiler - what program_compile writes operations with: references to buffers, norms,
 * products and their inputs, branches onto the residual stream.
 *
 * h (and h as bytes) is the input of the next product. It is made again for a product that reads
 * another type or another order of inputs.
 * Threads: a compiler is of one thread. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_COMPILER_H
#define QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_COMPILER_H
#include "engine/model/forward/program.h"

struct compiler {
    struct layer_program *p;
    const struct arch *arch;
    const struct arch_layer *l; /* of arch */
    const struct model_config *c;
    const struct program_forms *f;
    enum arch_activation act;
    bool is_parallel;
    struct program_form h_form; /* of the bytes that h.q has, made of what h has now; input F32: it
                                   has none */
    struct program_ref source;  /* floats of the next product's input */
    uint32_t layer;
    struct q_err *e;
    enum q_code rc; /* of the first operation that there was no memory for */
};

struct compiled_norm { /* by the same weights into the same type */
    enum program_weight weight, bias;
    struct program_ref from, to;
    uint32_t unit;
    bool apart;
};

static inline struct program_ref ref_of(uint16_t buffer, enum dtype dtype, uint32_t n_col)
{
    return (struct program_ref){.buffer = buffer, .dtype = (uint16_t)dtype, .n_col = n_col};
}

static inline struct program_ref part_of(struct program_ref r, uint32_t col, uint32_t n_col)
{
    r.col += col;
    r.n_col = n_col;
    return r;
}

static inline struct program_ref stream(const struct compiler *t)
{
    return ref_of(PROGRAM_B_X, DT_F32, t->c->hidden_size);
}

static inline bool is_bytes(enum dtype d)
{
    return d == DT_I8 || d == DT_F8_E4M3;
}

static inline struct program_form form_of(const struct compiler *t, enum program_weight w)
{
    return t->f->form(t->f->ctx, w, t->layer);
}

/* The type of floats that a product with w reads, or of which its bytes are made. */
static inline enum dtype made_for(const struct compiler *t, enum program_weight w)
{
    const enum dtype input = form_of(t, w).input;
    return is_bytes(input) ? DT_F32 : input;
}

static inline enum program_weight if_there(const struct compiler *t, enum program_weight w)
{
    return program_weight_there(w, t->arch, t->c, t->layer) ? w : PROGRAM_W_NONE;
}

static inline bool is_same_bytes(const struct program_form *a, const struct program_form *b)
{
    return a->input == b->input && a->variant == b->variant && a->x_scale == b->x_scale &&
           !a->ordered && !b->ordered;
}

/* Append an operation to the list. */
void compile_op(struct compiler *t, const struct program_op *op);
/* The bias of a norm; W_NONE: it never has one. */
enum program_weight compile_bias_of(enum program_weight norm_weight);
void compile_norm(struct compiler *t, const struct compiled_norm *n);
/* x through a norm into h, as a product with `next` wants it made. */
void compile_norm_of_stream(struct compiler *t, enum program_weight weight,
                            enum program_weight next);
/* What a product with `next` reads of `from`; bytes: the buffer of it as bytes. */
struct program_ref compile_input(struct compiler *t, struct program_ref from, uint16_t bytes,
                                 enum program_weight next);
/* The adapters of the rows too. */
void compile_matmul(struct compiler *t, struct program_ref from, struct program_ref to,
                    enum program_weight weight, enum program_weight bias);
/* As the family says, or the config where the family leaves it to that. */
enum arch_norm_place compile_norm_place(const struct compiler *t);
/* x *= scale, in place; 0: no operation. */
void compile_scale(struct compiler *t, struct program_ref x, double scale);
/* A branch's output, times scale (0: 1), onto the residual stream. */
void compile_add_branch(struct compiler *t, uint16_t buffer, enum program_weight post_norm,
                        double scale);
/* The input of a branch whose first product is with `next`: x, or what a norm makes of it. */
struct program_ref compile_branch_input(struct compiler *t, enum program_weight weight,
                                        enum program_weight next);

/* program_streams.c, of models with several residual streams: made of the first one, in front of
 * all layers; predicted, in front of a layer's branches; corrected, behind them (returns what the
 * layer's input of the token is gated by); and joined to the first one behind all layers. */
void compile_streams_begin(struct compiler *t);
void compile_streams_predict(struct compiler *t);
struct program_ref compile_streams_correct(struct compiler *t);
void compile_streams_end(struct compiler *t);
/* A branch's output through a norm onto all streams but the first. */
void compile_add_streams(struct compiler *t, uint16_t buffer, enum program_weight post_norm);
/* A branch beside attention by products of low rank; behind attention onto the residual stream,
 * which is divided by the square root of 2. */
void compile_low_rank(struct compiler *t);
void compile_add_low_rank(struct compiler *t);

/* program_mixers.c: what the layer has in place of attention, up to its last product, into `to`. */
void compile_mixer(struct compiler *t, uint16_t to);

/* program_mlp.c: an MLP up to the input of its last product; from there onto the residual
 * stream. */
void compile_mlp_begin(struct compiler *t);
void compile_mlp_end(struct compiler *t);
/* Experts, with an MLP beside them where the family has one, onto the residual stream; of branches
 * that are side by side their sum, which the second adds to it. */
void compile_experts(struct compiler *t);
void compile_add_experts(struct compiler *t);
/* Is the experts' sum a branch of its own, which a norm or a product changes before it is added to
 * x? */
bool compile_experts_apart(const struct compiler *t);

#endif
