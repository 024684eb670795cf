/* SPDX-License-Identifier: Apache-2.0 */
/* sim_service [FIRST_SEED [N [log]]]: simulates N services and prints what happened in all of them;
 * a seed that fails fails in the same way when it is run alone. With "log", the log of each. */
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/file.h"
#include "common/parse.h"
#include "events.h"
#include "service.h"

#define SEEDS 2500

static const char config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 97, "
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 1, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 256, "
    "\"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\", \"torch_dtype\": \"float32\", "
    "\"bos_token_id\": 1, \"eos_token_id\": 2, \"tie_word_embeddings\": false}";

static char folder[] = "/tmp/quire-sim-XXXXXX";
static int64_t seed_now; /* 0 = none runs */

static void end(void)
{
    char path[sizeof folder + 16];
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/trial", folder);
    unlink(path);
    rmdir(folder);
    if (seed_now)
        printf("sim_service: seed %" PRId64 "\n", seed_now);
    fflush(stdout);
}

/* An assertion of the code under test, or a crash: the signal comes again. */
static void on_abort(int number)
{
    signal(number, SIG_DFL);
    end();
}

static void make_folder(void)
{
    struct q_err e = Q_ERR_INIT;
    char path[sizeof folder + 16];
    if (!mkdtemp(folder))
        sim_fail("no temporary folder");
    atexit(end);
    signal(SIGABRT, on_abort);
    signal(SIGSEGV, on_abort);
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (file_write(path, config, sizeof config - 1, 0600, &e))
        sim_fail("%s", e.message);
}

static void add(struct service_report *sum, const struct service_report *r)
{
    sum->n_event += r->n_event;
    sum->n_token += r->n_token;
    sum->n_answer += r->n_answer;
    sum->n_aborted += r->n_aborted;
    sum->n_refused += r->n_refused;
    sum->n_away += r->n_away;
    sum->n_again += r->n_again;
    sum->n_blamed += r->n_blamed;
    sum->n_gave_up += r->n_gave_up;
    sum->n_worker_death += r->n_worker_death;
    sum->n_engine_death += r->n_engine_death;
    sum->n_frontend_death += r->n_frontend_death;
    sum->n_broken += r->n_broken;
    sum->n_resubmitted += r->n_resubmitted;
    sum->seconds += r->seconds;
    if (r->held_us > sum->held_us)
        sum->held_us = r->held_us;
}

static void show(int64_t n, const struct service_report *r)
{
    printf("%" PRId64 " services, %.0f virtual seconds, %" PRIu64 " events: %" PRIu64
           " answers, %" PRIu64 " tokens; %" PRIu64 " workers, %" PRIu64 " engines, %" PRIu64
           " frontends died, %" PRIu64 " connections broke; %" PRIu64 " resubmitted, %" PRIu64
           " asked again, %" PRIu64 " refused, %" PRIu64 " without an engine, %" PRIu64
           " aborted, %" PRIu64 " blamed; %" PRIu64
           " gave up; at most %.2f s of waiting for suspects\n",
           n, r->seconds, r->n_event, r->n_answer, r->n_token, r->n_worker_death, r->n_engine_death,
           r->n_frontend_death, r->n_broken, r->n_resubmitted, r->n_again, r->n_refused, r->n_away,
           r->n_aborted, r->n_blamed, r->n_gave_up, (double)r->held_us / 1e6);
}

int main(int argc, char **argv)
{
    struct q_err e = Q_ERR_INIT;
    int64_t first = 1, n = SEEDS;
    struct service_report sum = {0};
    if ((argc > 1 && parse_i64(&first, argv[1], 1, INT64_MAX / 2, "FIRST_SEED", &e)) ||
        (argc > 2 && parse_i64(&n, argv[2], 1, 100000000, "N", &e))) {
        fprintf(stderr, "usage: sim_service [FIRST_SEED [N [log]]] %s\n", e.message);
        return 2;
    }
    events_show_log(argc > 3 && !strcmp(argv[3], "log"));
    make_folder();
    for (int64_t seed = first; seed < first + n; seed++) {
        struct service_report r;
        seed_now = seed;
        service_run(folder, (uint64_t)seed, &r);
        add(&sum, &r);
    }
    seed_now = 0;
    show(n, &sum);
    if (n >= 1000 && (!sum.n_blamed || !sum.n_refused || !sum.n_away || !sum.n_again ||
                      !sum.n_aborted || sum.n_resubmitted < sum.n_engine_death))
        sim_fail("something never happened");
    return 0;
}
