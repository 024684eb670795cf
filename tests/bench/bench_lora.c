/* SPDX-License-Identifier: Apache-2.0 */
/* bench_lora FOLDER ADAPTER [none|int8|int4 [ROUNDS]]: a step of decode of 8 sequences, each with
 * an adapter of its own, beside the same step of a model that takes no adapters. By turns, one
 * thread, its CPU time; weights are dummies of the folder's config. tests/bench/lora.py makes the
 * folders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "engine/model/lora/lora.h"
#include "engine/model/model.h"

#define N_SEQ      8u
#define CONTEXT    128u
#define SEQ_BLOCKS (CONTEXT / KERN_BLOCK + 1)
#define RANK_MAX   16u
#define ROUNDS_MAX 1000u

enum side { PLAIN, ADAPTED, UNUSED, SIDES }; /* UNUSED: takes adapters, and no row has one */
static const char *const side_names[SIDES] = {"no adapters", "8 adapters", "enabled, unused"};

struct engine {
    struct model *model;
    struct kv_cache kv;
    struct model_scratch *scratch;
};

static struct kern_table kern;
static float *logits;

static void must(enum q_code rc, const struct q_err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "bench_lora: %s\n", e->message);
    exit(1);
}

static void open_engine(struct engine *g, const char *dir, enum quantization quantization,
                        uint32_t rank)
{
    struct q_err e = Q_ERR_INIT;
    const struct model_options o = {
        .dir = dir,
        .format = LOAD_DUMMY,
        .dtype = DT_BF16,
        .quantization = quantization,
        .max_model_len = 4 * CONTEXT,
        .lora_rank = rank,
        .kern = &kern,
    };
    must(model_load(&g->model, &o, &e), &e);
    must(kv_cache_init(&g->kv, g->model, N_SEQ * SEQ_BLOCKS, &e), &e);
    must(model_scratch_new(&g->scratch, g->model, N_SEQ, 1, &e), &e);
}

static void close_engine(struct engine *g)
{
    model_scratch_free(g->scratch);
    kv_cache_release(&g->kv);
    model_free(g->model);
}

/* Seconds of a step in which each sequence computes its next token. */
static double step(const struct engine *g, const struct lora_batch *lora)
{
    uint32_t ids[N_SEQ], positions[N_SEQ], slots[N_SEQ], rows[N_SEQ], blocks[N_SEQ][SEQ_BLOCKS];
    struct attention_seq seqs[N_SEQ];
    struct timespec from, to;
    for (uint32_t i = 0; i < N_SEQ; i++) {
        for (uint32_t k = 0; k < SEQ_BLOCKS; k++)
            blocks[i][k] = i * SEQ_BLOCKS + k;
        seqs[i] = (struct attention_seq){blocks[i], i, 1, CONTEXT};
        ids[i] = 3 + i;
        positions[i] = CONTEXT;
        slots[i] = blocks[i][CONTEXT / KERN_BLOCK] * KERN_BLOCK;
        rows[i] = i;
    }
    const struct batch b = {
        .token_ids = ids,
        .positions = positions,
        .slot_mapping = slots,
        .seqs = seqs,
        .logit_rows = rows,
        .n_token = N_SEQ,
        .n_seq = N_SEQ,
        .n_logit = N_SEQ,
        .context_max = CONTEXT + 1,
        .lora = lora,
    };
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    model_forward(g->model, &b, &g->kv, g->scratch, logits, NULL, 0, 1);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum quantization quantization_of(const char *name)
{
    if (strcmp(name, "int8") == 0)
        return QUANTIZE_INT8;
    return strcmp(name, "int4") == 0 ? QUANTIZE_INT4 : QUANTIZE_NOT;
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

/* The ratio is the median of the rounds' ratios: other load of the machine changes from round to
 * round, and less within one. */
static void print_sides(double times[SIDES][ROUNDS_MAX], uint32_t n)
{
    static double ratios[SIDES][ROUNDS_MAX];
    for (uint32_t s = 0; s < SIDES; s++)
        for (uint32_t i = 0; i < n; i++)
            ratios[s][i] = times[s][i] / times[PLAIN][i];
    for (uint32_t s = 0; s < SIDES; s++)
        printf("%-16s %8.2f ms, %.3f of a step without\n", side_names[s], 1e3 * median(times[s], n),
               median(ratios[s], n));
}

int main(int argc, char **argv)
{
    static double times[SIDES][ROUNDS_MAX];
    const uint32_t rounds = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 15;
    const enum quantization quantization = quantization_of(argc > 3 ? argv[3] : "none");
    struct engine plain, adapted;
    struct lora *adapters[N_SEQ];
    struct lora_seq seqs[N_SEQ];
    struct lora_batch batch;
    uint32_t rows[N_SEQ];
    struct q_err e = Q_ERR_INIT;
    if (argc < 3 || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_lora FOLDER ADAPTER [none|int8|int4 [ROUNDS]]\n");
        return 2;
    }
    kern_table_cpu(&kern, kern_caps_machine());
    open_engine(&plain, argv[1], quantization, 0);
    open_engine(&adapted, argv[1], quantization, RANK_MAX);
    for (uint32_t i = 0; i < N_SEQ; i++) {
        const struct lora_options o = {argv[2], DT_BF16, RANK_MAX};
        must(lora_load(&adapters[i], model_config(adapted.model), &o, &e), &e);
        seqs[i] = (struct lora_seq){adapters[i], i, 1};
    }
    must(lora_batch_make(&batch, rows, seqs, N_SEQ, &e), &e);
    logits = malloc(N_SEQ * (size_t)model_shape(plain.model)->vocab_size * sizeof *logits);
    must(logits ? Q_OK : q_fail(&e, Q_NO_MEMORY, "out of memory for logits"), &e);
    for (uint32_t i = 0; i < rounds; i++) {
        times[PLAIN][i] = step(&plain, NULL);
        times[ADAPTED][i] = step(&adapted, &batch);
        times[UNUSED][i] = step(&adapted, NULL);
    }
    print_sides(times, rounds);
    for (uint32_t i = 0; i < N_SEQ; i++)
        lora_free(adapters[i]);
    free(logits);
    close_engine(&adapted);
    close_engine(&plain);
    return 0;
}
