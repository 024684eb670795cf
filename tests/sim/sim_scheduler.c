/* SPDX-License-Identifier: Apache-2.0 */
/* sim_scheduler SCENARIO [FIRST_SEED [N]]: simulates seeds of a scenario and prints a line for
 * each. A failing seed fails in the same way when it is run alone. */
#include <stdio.h>
#include <string.h>
#include "common/parse.h"
#include "fake_worker.h"
#include "world.h"

static const struct scenario scenarios[] = {
    {
        .name = "one_in_flight",
        .depth = 1,
        .n_world = 120,
        .n_request = {1, 80},
        .n_prompt = {1, 150},
        .n_new = {1, 60},
        .gap_us = {0, 4000},
        .max_num_seqs = {1, 24},
        .max_num_batched_tokens = {1, 200},
        .logit_rows_more = {0, 40},
        .max_model_len = {20, 260},
        .n_block_more = {0, 100},
    },
    {
        .name = "two_in_flight",
        .depth = 2,
        .n_world = 120,
        .n_request = {1, 80},
        .n_prompt = {1, 150},
        .n_new = {1, 60},
        .gap_us = {0, 4000},
        .max_num_seqs = {1, 24},
        .max_num_batched_tokens = {1, 200},
        .logit_rows_more = {0, 40},
        .max_model_len = {20, 260},
        .n_block_more = {0, 100},
        .alike = 5000,
        .n_abort = 30,
    },
    {
        .name = "tiny_pool",
        .depth = 2,
        .n_world = 200,
        .n_request = {20, 60},
        .n_prompt = {1, 60},
        .n_new = {1, 80},
        .gap_us = {0, 500},
        .max_num_seqs = {4, 24},
        .max_num_batched_tokens = {16, 200},
        .logit_rows_more = {0, 8},
        .max_model_len = {60, 128},
        .n_block_more = {0, 4},
        .alike = 5000,
        .n_abort = 50,
    },
    {
        .name = "narrow_steps",
        .depth = 2,
        .n_world = 120,
        .n_request = {10, 40},
        .n_prompt = {1, 60},
        .n_new = {1, 30},
        .gap_us = {0, 500},
        .max_num_seqs = {1, 24},
        .max_num_batched_tokens = {1, 6},
        .logit_rows_more = {0, 1},
        .max_model_len = {30, 100},
        .n_block_more = {0, 20},
        .alike = 5000,
        .n_abort = 20,
    },
    {
        .name = "faults",
        .depth = 2,
        .n_world = 200,
        .n_request = {10, 60},
        .n_prompt = {1, 80},
        .n_new = {1, 60},
        .gap_us = {0, 2000},
        .max_num_seqs = {2, 24},
        .max_num_batched_tokens = {8, 100},
        .logit_rows_more = {0, 8},
        .max_model_len = {60, 160},
        .n_block_more = {0, 12},
        .alike = 5000,
        .n_abort = 100,
        .n_worker_lost = 100,
        .n_engine_lost = 60,
        .n_frontend_gone = 20,
    },
    {
        .name = "culprits",
        .depth = 2,
        .n_world = 100,
        .n_request = {2, 40},
        .n_prompt = {1, 80},
        .n_new = {1, 60},
        .gap_us = {0, 2000},
        .max_num_seqs = {1, 24},
        .max_num_batched_tokens = {8, 100},
        .logit_rows_more = {0, 8},
        .max_model_len = {60, 160},
        .n_block_more = {0, 12},
        .n_abort = 50,
        .n_worker_lost = 2500,
    },
    {
        .name = "alike",
        .depth = 2,
        .n_world = 200, /* shared beginnings in a pool that keeps evicting them */
        .n_request = {20, 80},
        .n_prompt = {1, 120},
        .n_new = {1, 60},
        .gap_us = {0, 4000},
        .max_num_seqs = {1, 16},
        .max_num_batched_tokens = {4, 200},
        .logit_rows_more = {0, 20},
        .max_model_len = {40, 260},
        .n_block_more = {0, 40},
        .n_abort = 60,
        .n_worker_lost = 30,
        .n_engine_lost = 10,
        .n_reset = 60,
        .alike = 8500,
    },
    {
        .name = "streams64",
        .depth = 2,
        .n_world = 20, /* 64 streams of random lengths through 40 blocks */
        .n_request = {64, 64},
        .n_prompt = {1, 200},
        .n_new = {1, 200},
        .gap_us = {0, 100},
        .max_num_seqs = {64, 64},
        .max_num_batched_tokens = {256, 256},
        .logit_rows_more = {0, 0},
        .max_model_len = {512, 512},
        .n_block_more = {8, 8},
    },
    {
        .name = "draft_tokens",
        .depth = 2,
        .n_world = 200,
        .n_request = {5, 60},
        .n_prompt = {1, 80},
        .n_new = {1, 80},
        .gap_us = {0, 1000},
        .max_num_seqs = {1, 24},
        .max_num_batched_tokens = {4, 200},
        .logit_rows_more = {0, 64},
        .max_model_len = {60, 160},
        .n_block_more = {0, 20},
        .n_draft_token = {1, 8},
        .alike = 5000,
        .n_abort = 40,
        .n_worker_lost = 20,
        .n_frontend_gone = 5,
    },
    {
        .name =
            "swapping", /* a pool and host memory so tiny that everything happens all the time */
        .depth = 2,
        .n_world = 600,
        .n_request = {20, 60},
        .n_prompt = {1, 60},
        .n_new = {10, 150},
        .gap_us = {0, 300},
        .max_num_seqs = {4, 24},
        .max_num_batched_tokens = {8, 200},
        .logit_rows_more = {0, 8},
        .max_model_len = {60, 200},
        .n_block_more = {0, 8},
        .n_swap = {1, 60},
        .preemption = {0, 1},
        .alike = 4000,
        .n_abort = 60,
        .n_worker_lost = 30,
        .n_engine_lost = 5,
        .n_frontend_gone = 5,
        .n_reset = 30,
        .n_preempt = 700,
        .n_tenant = {1, 3},
        .n_priority = {0, 3},
    },
    {
        .name = "swapped_draft_tokens",
        .depth = 2,
        .n_world = 150,
        .n_request = {10, 60},
        .n_prompt = {1, 60},
        .n_new = {10, 120},
        .gap_us = {0, 500},
        .max_num_seqs = {4, 24},
        .max_num_batched_tokens = {8, 200},
        .logit_rows_more = {0, 64},
        .max_model_len = {60, 200},
        .n_block_more = {0, 6},
        .n_draft_token = {1, 8},
        .n_swap = {10, 100},
        .preemption = {1, 1},
        .alike = 4000,
        .n_abort = 50,
        .n_worker_lost = 20,
        .n_preempt = 700,
        .timeout_us = {0, 300000},
    },
    {
        .name = "tenants",
        .depth = 2,
        .n_world = 120,
        .n_request = {20, 80},
        .n_prompt = {1, 80},
        .n_new = {1, 60},
        .gap_us = {0, 2000},
        .max_num_seqs = {1, 12},
        .max_num_batched_tokens = {8, 120},
        .logit_rows_more = {0, 8},
        .max_model_len = {60, 160},
        .n_block_more = {0, 20},
        .n_abort = 50,
        .n_worker_lost = 20,
        .n_engine_lost = 10,
        .n_tenant = {2, 6},
    },
    {
        .name = "flood", /* tenants besides a flooding tenant do not wait for it */
        .depth = 2,
        .n_world = 120,
        .n_request = {40, 80},
        .n_prompt = {1, 60},
        .n_new = {1, 60},
        .gap_us = {0, 3000},
        .max_num_seqs = {1, 6},
        .max_num_batched_tokens = {8, 64},
        .logit_rows_more = {0, 8},
        .max_model_len = {60, 128},
        .n_block_more = {0, 30},
        .n_tenant = {2, 6},
        .flood = true,
    },
    {
        .name = "priorities",
        .depth = 2,
        .n_world = 150,
        .n_request = {20, 60},
        .n_prompt = {1, 60},
        .n_new = {1, 60},
        .gap_us = {0, 1500},
        .max_num_seqs = {1, 16},
        .max_num_batched_tokens = {8, 100},
        .logit_rows_more = {0, 8},
        .max_model_len = {60, 128},
        .n_block_more = {0, 6},
        .n_abort = 50,
        .n_worker_lost = 30,
        .n_engine_lost = 10,
        .n_tenant = {1, 3},
        .n_priority = {2, 5},
    },
    {
        .name = "long_prompts",
        .depth = 2,
        .n_world = 150,
        .n_request = {10, 50},
        .n_prompt = {1, 200},
        .n_new = {1, 30},
        .gap_us = {0, 2000},
        .max_num_seqs = {1, 16},
        .max_num_batched_tokens = {4, 100},
        .logit_rows_more = {0, 20},
        .max_model_len = {60, 260},
        .n_block_more = {0, 60},
        .n_abort = 30,
        .n_worker_lost = 20,
        .n_tenant = {1, 3},
        .threshold = {0, 50},
        .n_partial = {1, 4},
        .n_long = {1, 1},
        .delay_percent = 150,
    },
    {
        .name = "timeouts",
        .depth = 2,
        .n_world = 150,
        .n_request = {10, 60},
        .n_prompt = {1, 80},
        .n_new = {1, 60},
        .gap_us = {0, 1000},
        .max_num_seqs = {2, 16},
        .max_num_batched_tokens = {8, 100},
        .logit_rows_more = {0, 8},
        .max_model_len = {60, 160},
        .n_block_more = {0, 12},
        .n_abort = 50,
        .n_worker_lost = 20,
        .n_tenant = {1, 3},
        .timeout_us = {10000, 300000},
    },
};

static const struct scenario *find_scenario(const char *name)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    return NULL;
}

int main(int argc, char **argv)
{
    struct q_err e = Q_ERR_INIT;
    const struct scenario *sc = argc > 1 ? find_scenario(argv[1]) : NULL;
    int64_t first = 1, n = sc ? sc->n_world : 0;
    if (!sc || (argc > 2 && parse_i64(&first, argv[2], 1, INT64_MAX / 2, "FIRST_SEED", &e)) ||
        (argc > 3 && parse_i64(&n, argv[3], 1, 1000000, "N", &e))) {
        fprintf(stderr, "usage: sim_scheduler SCENARIO [FIRST_SEED [N]] %s\n", e.message);
        return 2;
    }
    uint64_t n_hit = 0, n_swap_in = 0;
    for (int64_t seed = first; seed < first + n; seed++) {
        struct world_report r;
        printf("%s seed %lld: ", sc->name, (long long)seed);
        fflush(stdout);
        world_run(sc, (uint64_t)seed, &r);
        n_hit += r.n_hit;
        n_swap_in += r.n_swap_in;
        printf("%llu steps, %llu tokens, %llu found, %llu preemptions, %llu swapped, %llu back, "
               "%llu aborted, %llu blamed, %llu timed out, %llu pushed out\n",
               (unsigned long long)r.n_step, (unsigned long long)r.n_token,
               (unsigned long long)r.n_hit, (unsigned long long)r.n_preemption,
               (unsigned long long)r.n_swap_out, (unsigned long long)r.n_swap_in,
               (unsigned long long)r.n_aborted, (unsigned long long)r.n_culprit,
               (unsigned long long)r.n_timeout, (unsigned long long)r.n_pushed_out);
    }
    if (sc->alike && n >= 20 && !n_hit)
        sim_fail("nothing was ever found in the prefix cache");
    if (sc->n_swap.max && n >= 20 && !n_swap_in)
        sim_fail("nothing was ever copied back from host memory");
    return 0;
}
