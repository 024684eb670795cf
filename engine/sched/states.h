/* SPDX-License-Identifier: Apache-2.0 */
/* states - rows of the worker's pool for states of sequences that are no K and V (convolutions,
 * recurrences), and which of them are snapshots for the prefix cache.
 *
 * A running request has a row, which the worker reads and writes at each of its steps. A snapshot
 * is what such a row was behind the last row of a full block; the prefix cache keeps it with the
 * block (kv.h), and another request that begins with the same blocks begins with a copy of it.
 *
 *     free --states_take--> a running request's --states_drop--> free
 *                             `--states_hold--> a preempted request's --states_resume--> running
 *     free --states_take_snapshot--> pending --states_attach--> a block's --states_detach--> free
 *
 * Rows that are kept (snapshots, and those of preempted requests) are at most kept_max: all rows
 * but one for each request that may run. So a request that gets a slot finds a free row, and no
 * request waits for one. The longest unused snapshot is evicted for another; not one that a step
 * which is being planned reads or writes, because a worker's threads do not wait for each other
 * between two sequences of a step.
 * Threads: the scheduler's loop only. Allocates nothing after states_init. */
#ifndef QUIRE_ENGINE_SCHED_STATES_H
#define QUIRE_ENGINE_SCHED_STATES_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

#define STATE_NONE UINT32_MAX

enum state_use { STATE_FREE, STATE_RUNNING, STATE_HELD, STATE_PENDING, STATE_SNAPSHOT };

struct state_info { /* one row */
    enum state_use use;
    uint32_t block;      /* of a snapshot: it ends where the snapshot was taken */
    uint32_t prev, next; /* snapshots by their last use, the oldest first */
    uint64_t step;       /* of a snapshot: the last step that reads or writes it */
    bool was_found;      /* a request has begun with it */
};

struct state_pool {
    uint32_t *free;           /* [n_free] a stack; capacity n_row */
    struct state_info *infos; /* [n_row] */
    uint32_t n_row, n_free, n_kept, kept_max;
    uint32_t oldest, newest; /* snapshots of blocks */
};
/* clang-format off */
#define STATE_POOL_INIT {NULL, NULL, 0, 0, 0, 0, STATE_NONE, STATE_NONE}
/* clang-format on */

/* n_row 0: the model has no states. Errors: Q_NO_MEMORY. */
FALLIBLE states_init(struct state_pool *p, uint32_t n_row, uint32_t n_running_max, struct q_err *e);
void states_release(struct state_pool *p);

/* A row for a request that begins to run. */
uint32_t states_take(struct state_pool *p);
/* A request's row, or a pending snapshot, is free. STATE_NONE is accepted. */
void states_drop(struct state_pool *p, uint32_t row);
/* Keep a running request's row while it waits; there is room (states_make_room). */
void states_hold(struct state_pool *p, uint32_t row);
void states_resume(struct state_pool *p, uint32_t row);

/* May one more row be kept, where the oldest snapshot goes if need be? *evicted: the block whose
 * snapshot that was, or STATE_NONE. step: the one that is planned next. */
bool states_make_room(struct state_pool *p, uint64_t step, uint32_t *evicted);
/* A row that step `step` writes a snapshot to; there is room. */
uint32_t states_take_snapshot(struct state_pool *p, uint64_t step);
void states_attach(struct state_pool *p, uint32_t row, uint32_t block);
/* The block is found no more, or has another snapshot. */
void states_detach(struct state_pool *p, uint32_t row);
/* May step `step` begin with this snapshot of a block? The step that writes it may not. */
static inline bool states_is_there(const struct state_pool *p, uint32_t row, uint64_t step)
{
    return row != STATE_NONE && p->infos[row].step < step;
}
/* Step `step` begins with it. */
void states_use(struct state_pool *p, uint32_t row, uint64_t step);

/* Every row has one use, and the numbers agree: n_running and n_held requests have one. */
void states_check(const struct state_pool *p, uint32_t n_running, uint32_t n_held);

#endif
