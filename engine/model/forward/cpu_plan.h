/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_plan - how the threads of a team divide a layer program: the part of a stage's rows that each
 * thread computes, the stages that begin with a barrier, and the buffers that keep memory of their
 * own. It is computed once from the program; no barrier is written by hand.
 *
 * A stage reads and writes each buffer by parts:
 *     ROWS    each thread its share of the block's rows; the same share in every stage
 *     PLACES  its share of the places (a row and an expert)
 *     SUMS    its share of the rows that `combine` adds up
 *     OWN     all rows, in a copy of its own
 *     ANY     columns, heads or panels, divided by the kernel
 * A stage begins with a barrier when, since the last barrier, another thread may have written
 * memory that the stage reads or writes, or may have read memory that it writes. Each of the parts
 * ROWS, PLACES, SUMS and OWN needs no barrier after itself in the same buffer. Blocks of a step
 * have different rows of a buffer of the step, so such a buffer needs no barrier between blocks.
 * Behind a pass whose blocks are others, ROWS are other rows: everything pending is as ANY.
 *
 * OWN: with few rows, making the input of a product takes less time than a barrier. A stage runs
 * this way when its block has at most CPU_OWN_ROWS rows with at most CPU_OWN_ELEMENTS elements in
 * all. So the barriers depend on the number of rows of a block: one bit for each number.
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_CPU_PLAN_H
#define QUIRE_ENGINE_MODEL_FORWARD_CPU_PLAN_H
#include "engine/model/forward/program.h"

#define CPU_OWN_ROWS     8u
#define CPU_OWN_ELEMENTS 8192u              /* about a microsecond of norm or of quantizing */
#define CPU_MODES        (CPU_OWN_ROWS + 1) /* blocks of 1, 2 … rows; the last: of more */

struct cpu_stage {
    uint16_t barrier;  /* bit m: one stands before it, in blocks of mode m */
    uint32_t own_cols; /* elements of a row that each thread may make for itself; 0: never */
};

static inline uint32_t cpu_mode(uint32_t n_row)
{
    return n_row <= CPU_OWN_ROWS ? n_row - 1 : CPU_MODES - 1;
}

static inline bool cpu_is_own(uint32_t own_cols, uint32_t n_row)
{
    return own_cols && n_row <= CPU_OWN_ROWS && (uint64_t)n_row * own_cols <= CPU_OWN_ELEMENTS;
}

/* Is a SCALE divided by columns? A row of logits is long. */
static inline bool cpu_scales_columns(const struct program_op *op)
{
    return op->layer == PROGRAM_NO_LAYER;
}

/* Does it go through all rows of the step as one block? Other passes go through blocks of
 * model_scratch.block_rows, in which a thread's share is other rows: so does an embedding that
 * products go on with, since what these read is of a block. */
static inline bool cpu_is_whole(const struct program_pass *pass)
{
    return pass->all_rows ||
           (pass->layer == PROGRAM_NO_LAYER && !pass->asked && !pass->has_product);
}

/* [PROGRAM_BUFFERS_MAX] for each buffer, as bits, those that do not share memory with it, because
 * that would take more barriers (program_memory.h). p: fused. */
void cpu_plan_apart(uint64_t *apart, const struct layer_program *p);
/* stages: [p->n_stage]. overlaps: [PROGRAM_BUFFERS_MAX] of struct program_memory. */
void cpu_plan_stages(struct cpu_stage *stages, const struct layer_program *p,
                     const uint64_t *overlaps);
/* May each thread have a copy of it of its own? */
bool cpu_plan_is_copied(const struct layer_program *p, uint32_t buffer);

#endif
