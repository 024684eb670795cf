/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_launches FOLDER QUANTIZATION LIBRARY: the kernels of a model's steps, for
 * tests/gpu/launches.py: a line "step NAME" for each step, then a line a launch. The engine, the
 * device layer and the launchers are the real ones; the card is fake_cuda, which records
 * (launch_log.h), and weights have addresses and no numbers. */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "engine/core/core.h"
#include "engine/model/load/fill.h"
#include "fake_cuda.h"
#include "launch_log.h"

#define CARD_BYTES (UINT64_C(141) << 30) /* of an H200 */
#define CONTEXT    1024u                 /* tokens of a sequence that decodes */
#define PREFILL    2048u
#define DECODE     64u /* sequences */

static const struct load {
    const char *name;
    uint32_t n_seq, n_prompt, n_new;
    uint32_t n_row; /* of the step that is shown, the last with so many */
} loads[] = {
    {"decode 1", 1, CONTEXT, 4, 1},
    {"decode 64", DECODE, CONTEXT, 40, DECODE},
    {"prefill 2048", 1, PREFILL, 1, PREFILL},
};

static void must(enum q_code rc, const struct q_err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "cuda_launches: %s\n", e->message);
    exit(1);
}

/* In place of the loader's own: nothing is read from the weights. */
enum q_code __wrap_fill_run(struct filler *f, const struct load_plan *p, struct q_err *e);
enum q_code __wrap_fill_run(struct filler *f, const struct load_plan *p, struct q_err *e)
{
    (void)f, (void)p, (void)e;
    return Q_OK;
}

static uint32_t n_finished;

static void count_ends(void *ctx, const struct step_result *result,
                       const struct scheduler_output *outputs, uint32_t n)
{
    (void)ctx, (void)result;
    for (uint32_t i = 0; i < n; i++)
        n_finished += outputs[i].finish != FINISH_NONE;
}

static void turn(struct core *c)
{
    struct q_err e = Q_ERR_INIT;
    struct pollfd p = {.fd = core_fd(c), .events = POLLIN};
    const int wait_ms = core_wait_ms(c);
    (void)poll(&p, 1, wait_ms >= 0 ? wait_ms : 1000);
    must(core_step(c, &e), &e);
}

static struct core *open_core(char **args)
{
    struct q_err e = Q_ERR_INIT;
    struct core *c = NULL;
    struct core_config config = {
        .worker =
            {
                .format = LOAD_DUMMY,
                .dtype = DT_BF16,
                .max_model_len = 2 * PREFILL,
                .max_num_seqs = DECODE,
                .max_num_batched_tokens = PREFILL,
                .n_block = 2 * DECODE * CONTEXT / STEP_BLOCK_TOKENS,
                .n_thread = 1,
                .cpu_isa = "auto",
                .device = "cuda",
                .graph_sizes = {1, DECODE},
                .n_graph_size = 2,
                .log_level = LOG_ERROR,
            },
        .queue_max = DECODE,
        .in_process = true,
    };
    snprintf(config.worker.model_dir, sizeof config.worker.model_dir, "%s", args[1]);
    snprintf(config.worker.device_library, sizeof config.worker.device_library, "%s", args[3]);
    const char *const names[] = {"none", "int8", "int4", "fp8"};
    const enum quantization kinds[] = {QUANTIZE_NOT, QUANTIZE_INT8, QUANTIZE_INT4, QUANTIZE_FP8};
    size_t i = 0;
    while (i < 4 && strcmp(args[2], names[i]) != 0)
        i++;
    if (i == 4)
        must(q_fail(&e, Q_INVALID, "QUANTIZATION is \"%s\"; none, int8, int4 or fp8", args[2]), &e);
    config.worker.quantization = kinds[i];
    must(core_new(&c, &config, count_ends, NULL, &e), &e);
    while (core_state(c, NULL) == CORE_LOADING)
        turn(c);
    return c;
}

static void run(struct core *c, const struct load *l)
{
    static uint32_t ids[PREFILL];
    struct q_err e = Q_ERR_INIT;
    for (uint32_t i = 0; i < PREFILL; i++)
        ids[i] = 3 + i % 400;
    launch_log_reset();
    n_finished = 0;
    for (uint32_t i = 0; i < l->n_seq; i++) {
        const struct msg_submit m = {
            .req_id = i,
            .prompt = {ids, l->n_prompt},
            .top_p = 1,
            .repetition_penalty = 1,
            .max_tokens = l->n_new,
            .ignore_eos = true,
        };
        must(core_submit(c, 1, &m, &e), &e);
    }
    must(core_step(c, &e), &e);
    while (n_finished < l->n_seq)
        turn(c);
}

static bool is(const struct launch *k, const char *op)
{
    return k->op && strcmp(k->op, op) == 0;
}

/* Operation, place of the kernel in the library, bytes of weights, of K and V that are read and
 * written, and of activations that are. */
static void show_launch(const struct launch *k, const struct load *l)
{
    const uint64_t n_context = (uint64_t)l->n_seq * l->n_prompt;
    Dl_info of;
    if (!dladdr(k->kernel, &of))
        of.dli_fbase = NULL;
    printf("%s %llx %llu %llu %llu %llu %llu\n", k->op ? k->op : "?",
           (unsigned long long)((const char *)k->kernel - (const char *)of.dli_fbase),
           (unsigned long long)k->weights, (unsigned long long)(k->kv_token * n_context),
           (unsigned long long)k->kv_written, (unsigned long long)k->read,
           (unsigned long long)k->written);
}

/* The next launch of op from `at` on. */
static size_t find(const char *op, size_t at)
{
    while (at < launch_log.n && !is(&launch_log.items[at], op))
        at++;
    return at;
}

/* The last step of l->n_row rows that samples for all sequences (a graph may have more rows): from
 * the scatter of its tokens, before embed, to the one of the sampled tokens, behind sample. Changes
 * of block tables, which few steps have, are not in it. */
static void show(const struct load *l)
{
    const struct launch *k = launch_log.items;
    const size_t n = launch_log.n;
    size_t first = n, end = n;
    for (size_t i = find("embed", 0); i < n; i = find("embed", i + 1)) {
        const size_t sample = find("sample", i), after = find("scatter", sample);
        if (k[i].n_row == l->n_row && after < n && k[sample].n_row == l->n_seq) {
            first = i - 1;
            end = after;
        }
    }
    if (first >= n) {
        fprintf(stderr, "cuda_launches: no step of %u rows\n", l->n_row);
        exit(1);
    }
    printf("step %s\n", l->name);
    for (size_t i = first; i <= end; i++)
        show_launch(&k[i], l);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: cuda_launches FOLDER QUANTIZATION LIBRARY\n");
        return 2;
    }
    log_setup("cuda_launches", LOG_ERROR, false);
    setenv("QUIRE_CUDA_OFF", "wgmma,overlap,cublaslt", 1); /* neither trials nor a tuner can run */
    fake_cuda.records = true;
    fake_cuda.major = 9;
    fake_cuda.total_bytes = CARD_BYTES;
    struct core *c = open_core(argv);
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        run(c, &loads[i]);
        show(&loads[i]);
    }
    core_free(c);
    launch_log_reset();
    return 0;
}
