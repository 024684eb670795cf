/* SPDX-License-Identifier: Apache-2.0 */
/* walk - what the parts of the decoder walk have in common: which rows a thread has, where the
 * input of a product lies, and the product itself. Internal to engine/model: forward.c is the walk,
 * experts.c its mixtures of experts.
 *
 * Threads: each has a struct walk of its own and calls everything with it. An op that all threads
 * run is cut among them (`x`); one that a thread runs on rows of its own is not (`mine`). */
#ifndef QUIRE_ENGINE_MODEL_WALK_H
#define QUIRE_ENGINE_MODEL_WALK_H
#include "engine/model/model_state.h"

struct rows { /* neighbouring rows of the step */
    uint32_t at, n;
};

struct walk {
    const struct model *m;
    const struct batch *b;
    const struct kv_cache *kv;
    struct model_scratch *s;
    float *logits;
    struct team *team;
    struct kern_exec x;    /* this thread's share of an op all threads run */
    struct kern_exec mine; /* an op this thread runs alone on its own rows */
    struct rows own;       /* this thread's rows of the step */
    struct rows block;     /* that go through the products now */
};

/* Until all threads are here. */
void walk_sync(const struct walk *w);
/* This thread's share of some rows. */
struct rows walk_share(const struct walk *w, struct rows of);

/* Does each thread make the n_col columns of the block's rows for itself? Then that costs less than
 * meeting the others. */
bool walk_alone(const struct walk *w, uint32_t n_col);
/* The rows that this thread makes of a product's input, and the barrier behind them. */
struct rows walk_to_make(const struct walk *w, uint32_t n_col);
void walk_made(const struct walk *w, uint32_t n_col);

/* Rows of `o` from row i on. */
struct operand walk_operand_at(const struct walk *w, const struct operand *o, size_t i);
/* The block's rows of `o`, this thread's copy where it has one. */
struct operand walk_operand_of(const struct walk *w, const struct operand *o, uint32_t n_col);

struct floats { /* rows that a product with `weight` takes as int8 */
    const float *x;
    size_t stride;
    uint32_t n;
    const struct packed *weight;
};
/* By this thread alone. */
void walk_quantize(const struct walk *w, const struct operand *to, const struct floats *from);
/* Row r of x through a norm into `y`, by this thread alone. */
void walk_norm_row(const struct walk *w, uint32_t r, const float *weight, void *y,
                   enum dtype dtype);

struct product { /* y = W x + bias, or what gated weights make */
    const struct packed *weight;
    const float *bias;
    const struct operand *x;
    void *y;
    enum dtype y_dtype;
    size_t y_stride;
    uint32_t n_row;
    bool add;  /* onto y */
    bool mine; /* by this thread alone */
};
void walk_product(const struct walk *w, const struct product *p);
/* silu(gate) * up of the block's rows x, as the product with g's down takes them; a barrier stands
 * behind it. */
struct operand walk_activated(const struct walk *w, const struct layer_weights *g,
                              const struct operand *x);

/* The block's rows of x through the norm and a layer's experts, onto x (experts.c). Behind it each
 * thread has columns of all rows: a barrier stands before they are read. */
void walk_experts(const struct walk *w, const struct layer_weights *g);

#endif
