/* SPDX-License-Identifier: Apache-2.0 */
/* sample - from one row of logits to one token.
 *
 * The order of operations is that of proto/sampling.h. The result is a pure function of (logits
 * row, parameters, history, seed, position), independent of the thread and of other rows. Greedy
 * sampling needs no exponential; top_k up to SAMPLE_HEAP_MAX uses a heap instead of two passes over
 * the vocabulary; everything else is a few linear passes (radix selection), never a sort of the
 * vocabulary. Ties go to the lowest id. A row with a NaN, or without an allowed token, gives
 * SAMPLE_BAD: the request fails, not the worker. Threads: a scratch belongs to one thread.
 * Allocates nothing after sample_scratch_init. */
#ifndef QUIRE_ENGINE_WORKER_SAMPLE_H
#define QUIRE_ENGINE_WORKER_SAMPLE_H
#include <stdbool.h>
#include <stdint.h>
#include "engine/worker/select.h"
#include "proto/sampling.h"
#include "proto/step.h"

/* No token: the row cannot be sampled. In a result: token 0, and the reason as rank: NaN or
 * infinite logits, or (SAMPLE_EMPTY) no token allowed by grammar and token lists. */
#define SAMPLE_BAD                 UINT32_MAX
#define SAMPLE_EMPTY               (UINT32_MAX - 1)
#define SAMPLE_MASK_WORDS(n_vocab) (((size_t)(n_vocab) + 31) / 32) /* words of a mask of tokens */

FALLIBLE sample_scratch_init(struct sample_scratch *s, uint32_t n_vocab,
                             const struct kern_table *kern, struct q_err *e);
uint64_t sample_scratch_bytes(uint32_t n_vocab); /* of one */
void sample_scratch_release(struct sample_scratch *s);

struct row_mask {           /* of a row of logits; masks.h makes it */
    const uint32_t *bits;   /* as sample_input.grammar */
    const uint32_t *forced; /* likewise */
};

struct sample_input {                   /* one sequence; all borrowed */
    const struct sample_params *params; /* stop_ids: including eos unless ignored */
    const uint32_t *history;    /* [n_known] prompt, then output; placeholders are >= n_vocab */
    uint32_t n_known, n_prompt; /* the new token's position is n_known */
    /* [SAMPLE_MASK_WORDS] bit id % 32 of word id / 32: the token is allowed; NULL = all are */
    const uint32_t *allowed, *grammar;
    const uint32_t *forced; /* the only token that is allowed, whatever else is said; NULL = none */
};

struct sample_dist { /* the remaining candidates, in the scratch or in place of the logits row */
    const struct row_item *items; /* [n] best first with weights; NULL = dense */
    uint32_t n;
    const float *weights; /* dense: [n_vocab], 0 = cut */
    double total;         /* sum of the weights, > 0 */
};

struct sample_result { /* destination of a row's result; the caller sets row->slot and top_start */
    struct step_row *row; /* token, position, rank, logprob and n_top are filled */
    uint32_t *top_ids;    /* the requested alternatives */
    float *top_logprobs;
};
/* Sample the next token. logits: [n_vocab] f32, overwritten. */
void sample_token(float *logits, const struct sample_input *in, struct sample_scratch *s,
                  const struct sample_result *out);
/* Logprobs of the known token out->row->token, whose row of logits this is; n_top alternatives. A
 * placeholder of an item has logprob 0 and rank 0. */
void sample_known(const float *logits, uint32_t n_top, struct sample_scratch *s,
                  const struct sample_result *out);

/* The parts of sample_token, for tests. adjust: masks, bias, penalties in place. filter:
 * temperature and truncation; false if the row cannot be sampled. Weights are relative to
 * dist->total. */
void sample_adjust(float *logits, const struct sample_input *in, struct sample_scratch *s);
bool sample_filter(struct sample_dist *d, float *logits, const struct sample_params *p,
                   struct sample_scratch *s);
uint32_t sample_draw(const struct sample_dist *d, double uniform, const struct sample_scratch *s);
/* The masks of sample_adjust as bits, bit id % 32 of word id / 32: the token is allowed. False:
 * every token is allowed, and nothing was written. bits: [SAMPLE_MASK_WORDS]. */
bool sample_mask(uint32_t *bits, const struct sample_input *in, uint32_t n_vocab);
bool sample_has_mask(
    const struct sample_input *in); /* true if a token may be masked, now or later */
/* Does it look at which tokens the history has, to change their logits? */
static inline bool sample_penalizes(const struct sample_params *p)
{
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}
static inline bool sample_failed(const struct step_row *row)
{
    return row->rank >= SAMPLE_EMPTY;
}
/* Lowest id of the largest value; SAMPLE_BAD when a value is NaN or all are -inf. */
uint32_t sample_greedy(const float *logits, uint32_t n_vocab);

#endif
