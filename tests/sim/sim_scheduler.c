/* SPDX-License-Identifier: Apache-2.0 */
/* sim_scheduler SCENARIO [FIRST_SEED [N]]: plays seeds of a scenario; a line each. A failing seed
 * played again alone fails the same way. */
#include <stdio.h>
#include <string.h>
#include "common/parse.h"
#include "world.h"

static const struct scenario scenarios[] = {
    {.name = "one_in_flight",
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
     .n_block_more = {0, 100}},
    {.name = "two_in_flight",
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
     .n_abort = 30},
    {.name = "tiny_pool",
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
     .n_abort = 50},
    {.name = "narrow_steps",
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
     .n_abort = 20},
    {.name = "faults",
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
     .n_abort = 100,
     .n_worker_lost = 100,
     .n_engine_lost = 60,
     .n_frontend_gone = 20},
    {.name = "culprits",
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
     .n_worker_lost = 2500},
    {.name = "streams64",
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
     .n_block_more = {8, 8}},
    {.name = "guesses",
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
     .n_guess = {1, 8},
     .n_abort = 40,
     .n_worker_lost = 20,
     .n_frontend_gone = 5},
};

static const struct scenario *find(const char *name)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    return NULL;
}

int main(int argc, char **argv)
{
    struct q_err e = Q_ERR_INIT;
    const struct scenario *sc = argc > 1 ? find(argv[1]) : NULL;
    int64_t first = 1, n = sc ? sc->n_world : 0;
    if (!sc || (argc > 2 && parse_i64(&first, argv[2], 1, INT64_MAX / 2, "FIRST_SEED", &e)) ||
        (argc > 3 && parse_i64(&n, argv[3], 1, 1000000, "N", &e))) {
        fprintf(stderr, "usage: sim_scheduler SCENARIO [FIRST_SEED [N]] %s\n", e.message);
        return 2;
    }
    for (int64_t seed = first; seed < first + n; seed++) {
        struct world_report r;
        printf("%s seed %lld: ", sc->name, (long long)seed);
        fflush(stdout);
        world_run(sc, (uint64_t)seed, &r);
        printf("%llu steps, %llu tokens, %llu preemptions, %llu aborted, %llu blamed\n",
               (unsigned long long)r.n_step, (unsigned long long)r.n_token,
               (unsigned long long)r.n_preemption, (unsigned long long)r.n_aborted,
               (unsigned long long)r.n_culprit);
    }
    return 0;
}
