/* SPDX-License-Identifier: Apache-2.0 */
/* What an owner may ask of a core. */
#include <string.h>
#include "engine/core/core.h"
#include "engine/core/core_internal.h"
#include "engine/core/grammar_compiler.h"

enum core_state core_state(const struct core *c, uint32_t *percent)
{
    uint32_t now = 0;
    if (c->state == CORE_READY)
        now = 100;
    else if (c->ring)
        ring_state(c->ring, &now, NULL);
    if (percent)
        *percent = now;
    return c->state;
}

bool core_worker_died(const struct core *c)
{
    return c->worker_died;
}

const struct core_expansions *core_expansions(const struct core *c)
{
    return &c->items.expanded;
}

const struct item_types *core_item_types(const struct core *c)
{
    return &c->items.types;
}

void core_stats(const struct core *c, struct scheduler_stats *out)
{
    memset(out, 0, sizeof *out);
    if (c->scheduler)
        scheduler_stats(c->scheduler, out);
    out->n_gap = c->n_gap;
    out->gap_us = c->gap_us;
}

uint64_t core_item_bytes(const struct core *c)
{
    return item_store_held(&c->items.store);
}

bool core_busy(const struct core *c)
{
    struct scheduler_stats s;
    core_stats(c, &s);
    return s.n_running || s.n_waiting || s.n_swapped ||
           grammar_compiler_count(c->grammar_compiler) ||
           (c->intake && item_intake_count(c->intake));
}

bool core_works(const struct core *c)
{
    return core_busy(c) || grammar_compiler_works(c->grammar_compiler) ||
           (c->intake && item_intake_works(c->intake));
}

const struct core_info *core_info(const struct core *c)
{
    return &c->info;
}

const struct model_config *core_model_config(const struct core *c)
{
    return &c->model;
}

const struct pooling *core_pooling(const struct core *c)
{
    return &c->pooling;
}

uint32_t core_max_model_len(const struct core *c)
{
    return c->info.limits.max_model_len - (c->info.shape.pools ? 1 : 0);
}

const struct generation_defaults *core_generation_defaults(const struct core *c)
{
    return &c->generation;
}

uint64_t core_n_restart(const struct core *c)
{
    return c->n_restart;
}

pid_t core_worker_pid(const struct core *c)
{
    return c->worker.pid;
}
