/* SPDX-License-Identifier: Apache-2.0 */
/* program_memory - the buffers of a layer program that may share memory, and the place of each.
 * Both executors place their buffers here. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_MEMORY_H
#define QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_MEMORY_H
#include <stddef.h>
#include "engine/model/forward/program.h"

/* The number of stages from `stage` on that a device runs for some rows at a time: those that write
 * rows of places, and the sum over the places of a row behind them. 1: the stage runs alone, for
 * all rows. */
uint32_t program_repeated(const struct layer_program *p, uint32_t stage);

/* Where the buffers of a program lie in one piece of memory: the rule of both executors. Buffers
 * whose numbers are not needed at the same time may overlap. */
struct program_memory {
    size_t sizes[PROGRAM_BUFFERS_MAX]; /* bytes of each, set by the caller; 0: it has no memory */
    size_t offsets[PROGRAM_BUFFERS_MAX];
    uint64_t overlaps[PROGRAM_BUFFERS_MAX]; /* bit j: with buffer j; each with itself */
    size_t n_bytes;                         /* of all */
};
/* apart: [PROGRAM_BUFFERS_MAX] for each buffer those that the executor does not let share memory
 * with it besides, as bits, both ways; NULL: none. p: fused. */
void program_memory_place(struct program_memory *m, const struct layer_program *p,
                          const uint64_t *apart);

/* ---- its two parts ---- */

/* For each buffer, bit j: buffer j holds numbers that are still read while this one holds some, or
 * a stage reads or writes both. p: fused. */
void program_conflicts(const struct layer_program *p, uint64_t conflicts[PROGRAM_BUFFERS_MAX]);

/* Offsets of n buffers of these sizes, so that no two that conflict overlap: the largest first,
 * each as low as it fits. A buffer of size 0 has no memory. Returns the bytes of all. */
size_t program_place(size_t offsets[], const size_t sizes[],
                     const uint64_t conflicts[PROGRAM_BUFFERS_MAX], uint32_t n);

#endif
