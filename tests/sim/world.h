/* SPDX-License-Identifier: Apache-2.0 */
/* world - one simulated engine: random clients, the real scheduler, the fake worker, a virtual
 * clock.
 *
 * The seed determines all events. world_run simulates until all requests have ended, and exits with
 * a message if a request does not end within a bound, if an output differs from that of the request
 * alone, if a request was overtaken against the policy, or if a block is not released. Threads:
 * one. */
#ifndef QUIRE_TESTS_SIM_WORLD_H
#define QUIRE_TESTS_SIM_WORLD_H
#include <stdbool.h>
#include <stdint.h>
#include "proto/step.h"

struct range {
    uint32_t min, max; /* both included */
};
struct scenario {
    const char *name;
    struct range n_request, n_prompt, n_new, gap_us; /* gap between arrivals */
    struct range max_num_seqs, max_num_batched_tokens, logit_rows_more;
    struct range max_model_len, n_block_more; /* blocks above the least the scheduler accepts */
    struct range n_draft_token;               /* draft tokens per sequence and step */
    struct range n_state_more;                /* states beyond max_num_seqs */
    bool has_states;                          /* a model with states */
    struct range n_swap, preemption;          /* blocks in host memory; enum preemption_mode */
    uint32_t depth;                           /* steps in flight */
    /* Number of events per 10000 iterations. */
    uint32_t n_abort, n_worker_lost, n_engine_lost, n_frontend_gone, n_reset, n_preempt;
    uint32_t alike; /* number per 10000 prompts that begin with a part of an earlier prompt, or with
                * all of it and its answer */
    uint32_t n_world; /* number of seeds to simulate */
    /* Policies; {0, 0} = off. flood: tenant 0 has nearly all requests and sends them at once, each
     * other tenant has one. */
    struct range n_tenant, n_priority, threshold, n_partial, n_long, timeout_us;
    bool flood;
    uint32_t delay_percent;
};
struct world_report {
    uint64_t n_iteration, n_step, n_preemption, n_token, n_aborted, n_culprit, n_hit;
    uint64_t n_timeout, n_pushed_out, n_swap_out, n_swap_in;
};
void world_run(const struct scenario *sc, uint64_t seed, struct world_report *report);

#endif
