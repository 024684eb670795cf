/* SPDX-License-Identifier: Apache-2.0 */
/* program_text - a layer program for people and as JSON: operations with their shapes, and what a
 * step costs. Threads: reentrant. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_TEXT_H
#define QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_TEXT_H
#include "common/buf.h"
#include "engine/model/forward/program.h"

const char *program_kind_name(enum program_kind kind);    /* "matmul" */
const char *program_op_name(const struct program_op *op); /* of a plugin's its own */
const char *program_fusion_text(enum program_fusion f); /* "norm, quantize"; "" of one operation */

struct program_cost {       /* of one operation; T rows, each with C tokens of context */
    uint64_t weight_bytes;  /* of all its weights, packed */
    uint64_t row_bytes;     /* of those that one row reads: of experts those that it takes */
    uint64_t row_ops;       /* multiplications and additions of a row */
    uint64_t context_ops;   /* of a row with a token of its context */
    uint64_t context_bytes; /* of the cache that a row reads for a token of its context */
};
struct program_costs { /* what costs depend on besides the program */
    const struct program_forms *forms;
    const uint64_t *kv_bytes; /* [n_layer] of one token, K and V of the layer; NULL: 0 */
    uint64_t table_bytes;     /* of an element of a table as the checkpoint has it */
};
struct program_cost program_cost(const struct program_op *op, const struct program_costs *c);

struct program_show {
    const char *title; /* "Qwen3ForCausalLM" */
    struct program_costs costs;
    uint32_t n_token, n_context; /* the step that is summed up: rows, context of each */
};
/* Layers that are alike are shown once. p: fused. */
void program_print(struct buf *out, const struct layer_program *p, const struct program_show *s);
/* One object: every operation of every layer, stages and passes by number, buffers. */
void program_json(struct buf *out, const struct layer_program *p, const struct program_show *s);

#endif
