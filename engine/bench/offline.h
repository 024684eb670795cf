/* SPDX-License-Identifier: Apache-2.0 */
/* offline - an engine in this process, by the public library, with batches of synthetic prompts.
 *
 * Times are taken on the engine's thread when it emits a token (quire_params.notify), so that no
 * thread wake-up is measured. Threads: main. */
#ifndef QUIRE_ENGINE_BENCH_OFFLINE_H
#define QUIRE_ENGINE_BENCH_OFFLINE_H
#include <stdatomic.h>
#include "engine/bench/bench.h"
#include "engine/quire.h"

struct offline {
    struct quire_engine *engine;
    struct quire_info info;
    enum quire_code why; /* of a failed open */
};
struct offline_need {  /* engine settings of the benchmark; the command line overrides them */
    uint32_t n_seq;    /* max_num_seqs */
    uint32_t n_token;  /* max_model_len; 0 = the model's */
    bool text;         /* with a tokenizer */
    const char *model; /* NULL = b->model */
    bool plain;        /* bfloat16, not quantized, KV as computed: a reference */
};
/* Passes every engine option of the command line on by name. Errors: Q_INVALID (an invalid command
 * line), Q_UNAVAILABLE (the model cannot be loaded). */
FALLIBLE offline_open(struct offline *f, struct bench *b, const struct offline_need *need,
                      struct q_err *e);
void offline_close(struct offline *f);
/* The error of the engine as a q_err. */
enum q_code offline_fail(const struct quire_error *error, const char *what, struct q_err *e);

struct token_clock { /* one sequence */
    int64_t sent_us;
    int64_t *at_us; /* [n_max] time of each token */
    atomic_uint n;  /* events so far: at most n_max of them are tokens, then the end */
    uint32_t n_max;
};

struct batch_shape {
    uint32_t n_seq, input_len, output_len;
};
struct batch_times {      /* NaN: undefined (no second token) */
    double prefill_tok_s; /* prompt tokens until the last sequence has its first token */
    double decode_tok_s;  /* tokens while all sequences decode */
    double ttft_ms;       /* median over the sequences */
    double itl_ms;        /* median of the pauses while all decode */
    double gap_us;        /* mean idle compute time between two steps; batch_run */
};
/* Mean gap of the steps between two readings of the statistics; NaN: no two consecutive steps. */
double offline_gap_us(const struct quire_stats *before, const struct quire_stats *after);

/* clocks: [s->n_seq], all of them with at least one token. Errors: Q_NO_MEMORY. */
FALLIBLE batch_measure(struct batch_times *out, const struct token_clock *clocks,
                       const struct batch_shape *s, struct q_err *e);

struct batch; /* prompts and clocks for batches up to a size */
FALLIBLE batch_new(struct batch **out, const struct batch_shape *largest, struct q_err *e);
void batch_free(struct batch *b); /* after offline_close: the engine's thread writes the clocks */
/* All sequences at once, random tokens, no prefix cache, greedy, no end before output_len.
 * Errors: those of the engine. */
FALLIBLE batch_run(struct batch_times *out, struct batch *b, struct offline *f,
                   const struct batch_shape *s, uint64_t seed, struct q_err *e);

#endif
