/* SPDX-License-Identifier: Apache-2.0 */
/* params - the trained parameters of one rank: f32 masters with their gradients and the moments of
 * the optimiser, by the weights of the layer program and by the tensors of the checkpoint.
 *
 * A parameter is what an operation names as its weight (q, k and v of a layer are one matrix); it
 * is row-major, and its tensors are rows of it, one after another. The kernels' packed copies are
 * the student's; student_params_changed is called after an update. Values are those of the
 * checkpoint: norms that are stored less 1 (Gemma) are trained so. A tensor that holds several
 * matrices (phi3: qkv_proj, gate_up_proj) is one tensor of its parameter where they lie one after
 * another, else, as on a tensor-parallel rank, each is an entry of its name: `block` where its rows
 * alternate with others (GPT-NeoX: q, k and v of each head), `transposed` where columns are
 * neighbours in the file (GPT-2). Files are read and written by pieces (param_next_piece).
 * Behind all others, on the rank with the head, there may be a projection (hidden_loss.h).
 *
 * Tensor parallelism: a rank has the rows (SHARD_ROWS) or columns (SHARD_COLS) of each tensor that
 * arch_tensor.shard gives it. Pipeline stages: a rank has the layers of its stages; the first stage
 * has the embedding, the last one the final norm and the head. A head tied to the embedding is one
 * parameter where both are on one rank; on two ranks each has a copy (`is_copy` on the last), whose
 * gradients are added before the norm is taken and which stay equal bit for bit.
 * Threads: one owner; elements are read and written by the kernels' teams. */
#ifndef QUIRE_ENGINE_DISTILL_PARAMS_H
#define QUIRE_ENGINE_DISTILL_PARAMS_H
#include <stdbool.h>
#include "common/hub/safetensors.h"
#include "engine/model/forward/program_weight.h"

struct param_tensor { /* a tensor of the checkpoint, or this rank's part of it */
    char name[ARCH_NAME_MAX];
    uint32_t row;                /* of the parameter: its first */
    uint32_t n_row, n_col;       /* this rank's; n_col 1: a vector */
    uint32_t all_rows, all_cols; /* of the whole tensor */
    uint32_t row_at, col_at;     /* of this rank's part in it */
    uint32_t block, stride; /* above 0: of the part's rows so many are neighbours in the tensor, the
                               next ones lie `stride` rows behind them */
    uint32_t n_dim;         /* 1 or 2 */
    bool transposed;        /* the tensor is stored as [all_cols, all_rows] */
    uint32_t n_sharing; /* tensor-parallel ranks that have these numbers: 1, or several of them one
                           after another */
    /* Another rank counts these numbers in the norm and writes them into checkpoints: the copy of a
     * tied head, and what tensor parallelism repeats (norms, biases behind a sum, heads of K and V
     * that several ranks share: the ranks behind the first one have copies). Gradients of copies
     * are equal bit for bit, but for the tied head's. */
    bool is_copy;
};
#define PARAM_TENSORS_MAX 64u

struct param {
    enum program_weight weight;
    uint32_t layer; /* PROGRAM_NO_LAYER */
    uint32_t n_row, n_col;
    size_t at;    /* of its first element in the arrays of struct params; 0 of a matrix that is
                     not there, as it was packed (params_load.h) */
    bool decays;  /* a matrix or a table: weight decay applies (projections, embedding, head) */
    bool is_copy; /* the head's copy of a tied embedding that is on another stage's rank */
    /* The projection of hidden_loss.h: no weight of the program (PROGRAM_W_NONE), nor a tensor of
     * the student's folder; in states and among gradients, but not in models that are written. */
    bool training_only;
    uint32_t n_tensor;
    struct param_tensor tensors[PARAM_TENSORS_MAX];
};

struct params {
    struct param *all; /* [n] in the order of the program */
    uint32_t n;
    size_t n_element;     /* of each array below; a parameter begins at a multiple of 16 */
    float *w, *g, *m, *v; /* [n_element] masters, gradients, first and second moments */
    uint64_t n_param;     /* trained numbers on this rank, copies not counted */
};
#define PARAMS_INIT \
    {               \
        0           \
    }
/* The list and its arrays; PARAMS_INIT is left. */
void params_release(struct params *p);

/* Row r of the part is this one of the tensor. */
static inline uint32_t param_tensor_row(const struct param_tensor *t, uint32_t r)
{
    return t->row_at + (t->block ? r / t->block * t->stride + r % t->block : r);
}
/* Of the tensor as it is stored: dimension 0 or 1. */
static inline uint32_t param_tensor_dim(const struct param_tensor *t, uint32_t i)
{
    return (i == 0) != t->transposed ? t->all_rows : t->all_cols;
}

struct param_piece { /* numbers that are neighbours in the tensor */
    size_t at;       /* the first, in the tensor */
    size_t of;       /* in the parameter, from its row t->row on; the next ones `step` apart */
    size_t n, step;
};
struct param_walk {
    const struct param_tensor *t;
    uint32_t row, col; /* 0, 0 at the begin */
};
/* The next piece of a part; false: there is none. */
bool param_next_piece(struct param_piece *out, struct param_walk *w);

#define PARAM_PROJECTION "hidden_projection.weight" /* its name in states and gradients */

/* NULL: this rank has none; of PROGRAM_W_NONE there is none. */
struct param *params_find(const struct params *p, enum program_weight w, uint32_t layer);
void params_zero_gradients(struct params *p);

#endif
