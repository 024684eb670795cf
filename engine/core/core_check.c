/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a core between two calls of its owner. */
#include "engine/core/core_internal.h"

/* The invariants of each state. */
static void check_state(const struct core *c)
{
    bool failed = c->state == CORE_FAILED;
    Q_ASSERT(c->state <= CORE_FAILED);
    Q_ASSERT(failed == (c->failure.code != Q_OK) && (failed || !c->worker_died));
    Q_ASSERT(c->state != CORE_LOADING || !c->scheduler);
    Q_ASSERT(c->state == CORE_LOADING || failed || c->scheduler);
    Q_ASSERT(c->state != CORE_READY || (c->ring && c->outputs && c->step_bytes && c->result_bytes));
    Q_ASSERT(!failed || !c->ring);
    Q_ASSERT(c->ring || (!c->worker.pid && !c->worker.has_thread)); /* no worker without a ring */
    Q_ASSERT(failed || c->n_death <= CORE_RESTARTS_MAX);
    Q_ASSERT(failed || c->n_culprit <= CORE_CULPRITS_MAX);
    Q_ASSERT(!c->scheduler || (c->config.worker.n_block == c->info.n_block && c->info.n_block &&
                               c->config.worker.n_swap_block == c->info.n_swap_block));
}

/* Sleep, pause, reload: every reached state was requested. */
static void check_control(const struct core *c, uint32_t n_in_flight)
{
    Q_ASSERT(c->sleep_level <= 2 && c->slept_level <= c->sleep_level);
    Q_ASSERT(c->slept_level == 0 || n_in_flight == 0);
    Q_ASSERT(c->slept_level < 2 || !c->ring);
    Q_ASSERT(c->pause_mode < IN_FLIGHT_MODES && c->reload.mode < IN_FLIGHT_MODES);
    Q_ASSERT(!c->clear_cache || c->pausing);
    Q_ASSERT(c->reload.state != RELOAD_ORDERED || (c->ring && n_in_flight == 0));
    Q_ASSERT(c->reload.state == RELOAD_NONE || c->state != CORE_LOADING);
}

void core_check(const struct core *c)
{
    uint32_t n_in_flight = c->state == CORE_READY ? ring_in_flight(c->ring) : 0;
    check_state(c);
    check_control(c, n_in_flight);
    Q_ASSERT(n_in_flight <= RING_DEPTH);
    Q_ASSERT(!c->going || n_in_flight > 0);
    if (!c->scheduler || c->state == CORE_FAILED)
        return;
    struct scheduler_stats s;
    scheduler_stats(c->scheduler, &s);
    Q_ASSERT(s.n_in_flight == n_in_flight);
    scheduler_check(c->scheduler);
    item_store_check(&c->items.store);
}
