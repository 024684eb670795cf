/* SPDX-License-Identifier: Apache-2.0 */
/* student - the student's stages on one rank: forward and backward passes of its layers.
 *
 * The operations are those of the layer program (engine/model/forward/program.h), compiled without
 * fusions; train_program.h derives from them what a forward pass keeps and the list of the backward
 * pass. No family is named here.
 *
 * Numbers: DT_F32: all in f32. DT_BF16: weights and inputs of products rounded to bf16, sums,
 * residual stream, norms, attention, gradients and the optimiser in f32. Gradients are sums over
 * the rows of a micro batch, rows ascending, added to the gradients of the micro batches before it:
 * the same bits with any number of threads, and however stages are divided into ranks.
 *
 * Errors that training data can cause are found before (dataset.h). Threads: one owner calls;
 * each function runs on the student's team and returns when it is done. */
#ifndef QUIRE_ENGINE_DISTILL_STUDENT_H
#define QUIRE_ENGINE_DISTILL_STUDENT_H
#include "common/hub/config.h"
#include "common/team.h"
#include "engine/distill/attention_shape.h"
#include "engine/distill/head_weights.h"
#include "engine/distill/micro_batch.h"
#include "engine/distill/params.h"
#include "engine/distill/stage.h"
#include "kernels/kern.h"

struct student;

struct student_options {
    const char *dir; /* Hugging Face folder */
    const struct kern_table *kern;
    struct team *team;
    enum dtype compute;                /* F32 or BF16 */
    const struct stage_layers *stages; /* [n_stage] of this rank (virtual stages: more than one) */
    uint32_t n_stage;
    uint32_t n_slot;           /* micro batches whose activations are kept at the same time */
    uint32_t n_row_max;        /* of a micro batch */
    bool recompute;            /* keep the inputs of layers only and compute the rest again */
    bool no_optimizer;         /* no moments: gradients only (evaluation, tests) */
    uint32_t n_projection_row; /* of a projection beside the head (hidden_loss.h); 0: none */
    bool shares_attention;     /* for student_attention; not with tensor parallelism */
    struct tensor_group tensor_parallel;
};
/* What student_load would refuse, from config and headers alone. Errors: as student_load. */
FALLIBLE student_check(const struct student_options *o, struct q_err *e);

/* Errors: Q_NOT_FOUND, Q_CORRUPT, Q_MISMATCH (tensor, expected and found shape), Q_UNSUPPORTED (the
 * operation that has no gradient, by name; a quantized folder), Q_NO_MEMORY. */
FALLIBLE student_load(struct student **out, const struct student_options *o, struct q_err *e);
void student_free(struct student *s);
const struct model_config *student_config(const struct student *s);
struct params *student_params(struct student *s);
/* The masters were changed: pack them again for the kernels. */
void student_params_changed(struct student *s);

/* Final norm and head of the last stage, for loss_head; false: this rank has none. Packed weights
 * and pointers stay the same until student_free; student_params_changed packs into them. */
bool student_head(const struct student *s, struct head_weights *out);

/* One micro batch through a stage. slot: where activations are kept until student_backward of the
 * same slot and stage. x: [n_row, hidden_size] f32, the residual stream at the stage's begin; NULL
 * for a stage with the embedding. Returns the stream at its end, valid until the next call.
 * Errors: those of tensor_parallel; else none. */
struct student_pass {
    uint32_t stage, slot;
    const struct micro_batch *batch;
};
FALLIBLE student_forward(struct student *s, const struct student_pass *p, const float *x,
                         const float **out, struct q_err *e);
/* dy: [n_row, hidden_size], the gradient of what student_forward has returned; may be overwritten.
 * Adds to the gradients of the parameters; *dx: the gradient of x, valid until the next call (NULL
 * for a stage with the embedding). */
FALLIBLE student_backward(struct student *s, const struct student_pass *p, float *dy, float **dx,
                          struct q_err *e);

/* What attention of the model's last layer has read in the pass of this slot that was the last one:
 * valid until the next pass. Gradients: [n_row, columns] without gaps, of the slot; what is written
 * to them is added to attention's own by student_backward. On the rank with the last layer, with
 * shares_attention. */
struct student_attention {
    struct attention_rows rows;
    float *dq, *dk, *dv;
};
void student_attention(struct student *s, uint32_t slot, struct student_attention *out);

/* FLOP of a forward pass of one row of all layers and the head of the whole model, products only;
 * attention: of one row and one row of context. For reports. */
struct student_cost {
    double layer, head, attention;
};
struct student_cost student_cost(const struct student *s);
uint64_t student_bytes(const struct student *s); /* all memory that it holds */

#endif
