/* SPDX-License-Identifier: Apache-2.0 */
/* select - selection of the largest values without sorting.
 *
 * select_top keeps a heap of the best k (logprobs' alternatives, small top_k). select_weights and
 * select_cut work on a whole row of weights: exp(x - max) in chunks, and a radix selection that
 * zeroes everything beyond a number of items (top_k) or a mass (top_p). "Best" is the larger value,
 * of equal ones the lower id. Sums are f64, in one fixed order. Threads: one scratch each. Cost:
 * linear in the row, select_top with a factor log k at worst. */
#ifndef QUIRE_ENGINE_WORKER_SELECT_H
#define QUIRE_ENGINE_WORKER_SELECT_H
#include <stdbool.h>
#include <stdint.h>
#include "kernels/kern.h"

#define SAMPLE_HEAP_MAX 1024u     /* top_k up to this keeps a heap */
#define SAMPLE_CHUNK    ROW_CHUNK /* weights are summed in chunks of this many ids */

struct sample_scratch { /* one thread's; made by sample.h */
    uint32_t n_vocab;
    const struct kern_table *kern; /* borrowed */
    uint32_t *counts;   /* [n_vocab] zero between rows: bit 31 seen in the prompt, below it times in
                           the output */
    float *raw;         /* [n_vocab] the row of the model, if logprobs are requested */
    double *chunk_sums; /* [ceil(n_vocab / SAMPLE_CHUNK)] */
    double *part_sums;  /* as many */
    double *masses;     /* [SAMPLE_BUCKETS] radix selection */
    uint32_t *bucket_counts; /* [SAMPLE_BUCKETS] */
    struct row_item *items;  /* [max(SAMPLE_HEAP_MAX, n_vocab) + 16] values: logits, or weights */
};
#define SAMPLE_BUCKETS 2048u
/* clang-format off */
#define SAMPLE_SCRATCH_INIT {.n_vocab = 0}
/* clang-format on */

/* *max = the largest of x. False when one is NaN or all are -inf. */
bool select_max(const float *x, const struct sample_scratch *s, float *max);
/* *best = the lowest index of the largest value; false as select_max. */
bool select_best(const float *x, uint32_t n, uint32_t *best);
/* items[0 .. result) = the best min(k, n) of x, best first; NaNs are left out. k <=
 * SAMPLE_HEAP_MAX. */
uint32_t select_top(const float *x, uint32_t n, uint32_t k, struct row_item *items);
/* exp(x) for x <= 0, within 2 ulp; 0 below -87. The same bits on every machine. */
float select_exp(float x);
/* x[i] = exp((x[i] - max) / temperature), 0 if that is below w_min, in place; x as passed to
 * select_max, max finite. The chunk sums are stored in s->chunk_sums; returns the total. */
double select_weights(float *x, float max, float temperature, float w_min,
                      struct sample_scratch *s);
/* Sums of the chunks of w >= 0 into s->chunk_sums; returns the total. */
double select_sum(float *w, struct sample_scratch *s);
/* Number of values of x better than x[id]. */
uint32_t select_rank(const float *x, uint32_t id, const struct sample_scratch *s);

enum select_measure { SELECT_COUNT, SELECT_MASS };
/* In the order of w > 0, best first, keep items while the measure of the items before them is below
 * `limit`; the others become 0. The best item is always kept. s->chunk_sums are those of w before
 * and after; returns their total. s->items is overwritten. */
double select_cut(float *w, enum select_measure measure, double limit, struct sample_scratch *s);

#endif
