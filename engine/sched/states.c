/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sched/states.h"
#include "common/mem.h"

enum q_code states_init(struct state_pool *p, uint32_t n_row, uint32_t n_running_max,
                        struct q_err *e)
{
    *p = (struct state_pool)STATE_POOL_INIT;
    if (n_row == 0)
        return Q_OK;
    Q_ASSERT(n_row >= n_running_max);
    p->free = q_calloc(n_row, sizeof *p->free);
    p->infos = q_calloc(n_row, sizeof *p->infos);
    if (!p->free || !p->infos) {
        states_release(p);
        return q_fail(e, Q_NO_MEMORY, "scheduler: out of memory for %u states", n_row);
    }
    for (uint32_t i = 0; i < n_row; i++) /* row 0 is given out first */
        p->free[i] = n_row - 1 - i;
    p->n_row = p->n_free = n_row;
    p->kept_max = n_row - n_running_max;
    return Q_OK;
}

void states_release(struct state_pool *p)
{
    q_free(p->free);
    q_free(p->infos);
    *p = (struct state_pool)STATE_POOL_INIT;
}

static uint32_t take_free(struct state_pool *p, enum state_use use)
{
    Q_ASSERT(p->n_free);
    const uint32_t row = p->free[--p->n_free];
    p->infos[row] = (struct state_info){use, STATE_NONE, STATE_NONE, STATE_NONE, 0, false};
    return row;
}

static void let_go(struct state_pool *p, uint32_t row)
{
    p->infos[row].use = STATE_FREE;
    p->free[p->n_free++] = row;
}

uint32_t states_take(struct state_pool *p)
{
    return take_free(p, STATE_RUNNING);
}

void states_drop(struct state_pool *p, uint32_t row)
{
    if (row == STATE_NONE)
        return;
    Q_ASSERT(p->infos[row].use != STATE_FREE && p->infos[row].use != STATE_SNAPSHOT);
    p->n_kept -= p->infos[row].use != STATE_RUNNING;
    let_go(p, row);
}

/* ---- snapshots ---- */

static void unlink_row(struct state_pool *p, uint32_t row)
{
    const struct state_info *i = &p->infos[row];
    *(i->prev == STATE_NONE ? &p->oldest : &p->infos[i->prev].next) = i->next;
    *(i->next == STATE_NONE ? &p->newest : &p->infos[i->next].prev) = i->prev;
}

static void link_newest(struct state_pool *p, uint32_t row)
{
    struct state_info *i = &p->infos[row];
    i->prev = p->newest;
    i->next = STATE_NONE;
    *(p->newest == STATE_NONE ? &p->oldest : &p->infos[p->newest].next) = row;
    p->newest = row;
}

void states_detach(struct state_pool *p, uint32_t row)
{
    Q_ASSERT(p->infos[row].use == STATE_SNAPSHOT);
    unlink_row(p, row);
    p->n_kept--;
    let_go(p, row);
}

bool states_make_room(struct state_pool *p, uint64_t step, uint32_t *evicted)
{
    const uint32_t oldest = p->oldest;
    *evicted = STATE_NONE;
    if (p->n_kept < p->kept_max)
        return true;
    if (!states_is_there(p, oldest, step))
        return false;
    *evicted = p->infos[oldest].block;
    states_detach(p, oldest);
    return true;
}

uint32_t states_take_snapshot(struct state_pool *p, uint64_t step)
{
    Q_ASSERT(p->n_kept < p->kept_max);
    p->n_kept++;
    const uint32_t row = take_free(p, STATE_PENDING);
    p->infos[row].step = step;
    return row;
}

void states_attach(struct state_pool *p, uint32_t row, uint32_t block)
{
    Q_ASSERT(p->infos[row].use == STATE_PENDING);
    p->infos[row].use = STATE_SNAPSHOT;
    p->infos[row].block = block;
    link_newest(p, row);
}

void states_use(struct state_pool *p, uint32_t row, uint64_t step)
{
    Q_ASSERT(p->infos[row].use == STATE_SNAPSHOT);
    p->infos[row].step = step;
    p->infos[row].was_found = true;
    unlink_row(p, row);
    link_newest(p, row);
}

/* ---- preempted requests ---- */

void states_hold(struct state_pool *p, uint32_t row)
{
    Q_ASSERT(p->infos[row].use == STATE_RUNNING && p->n_kept < p->kept_max);
    p->infos[row].use = STATE_HELD;
    p->n_kept++;
}

void states_resume(struct state_pool *p, uint32_t row)
{
    Q_ASSERT(p->infos[row].use == STATE_HELD);
    p->infos[row].use = STATE_RUNNING;
    p->n_kept--;
}

void states_check(const struct state_pool *p, uint32_t n_running, uint32_t n_held)
{
    uint32_t n[STATE_SNAPSHOT + 1] = {0}, n_listed = 0, prev = STATE_NONE;
    for (uint32_t i = 0; i < p->n_row; i++)
        n[p->infos[i].use]++;
    for (uint32_t i = 0; i < p->n_free; i++)
        Q_ASSERT(p->free[i] < p->n_row && p->infos[p->free[i]].use == STATE_FREE);
    for (uint32_t row = p->oldest; row != STATE_NONE; row = p->infos[row].next, n_listed++) {
        Q_ASSERT(p->infos[row].use == STATE_SNAPSHOT && p->infos[row].prev == prev);
        prev = row;
    }
    Q_ASSERT(p->newest == prev && n_listed == n[STATE_SNAPSHOT]);
    Q_ASSERT(n[STATE_FREE] == p->n_free && (p->n_row == 0 || n[STATE_RUNNING] == n_running));
    Q_ASSERT(n[STATE_HELD] == n_held);
    Q_ASSERT(n[STATE_HELD] + n[STATE_PENDING] + n[STATE_SNAPSHOT] == p->n_kept);
    Q_ASSERT(p->n_kept <= p->kept_max);
}
