/* SPDX-License-Identifier: Apache-2.0 */
/* slots - what the worker remembers of each running sequence, and the batch it makes of a step.
 *
 * A slot holds a sequence's token history, block table and sampling parameters. slots_apply takes a
 * checked step view, brings the slots up to date and lays out the ragged batch; it believes nothing
 * that step_view could not check (token ids, block numbers, rows beyond what is known), so a wrong
 * step is an error and never a wild read. Threads: the worker's loop. Allocates nothing after
 * slots_init. */
#ifndef QUIRE_ENGINE_WORKER_SLOTS_H
#define QUIRE_ENGINE_WORKER_SLOTS_H
#include "engine/model/model.h"
#include "engine/worker/sample.h"
#include "proto/step.h"

struct slot {
    uint32_t *history; /* [max_model_len] */
    uint32_t *blocks;  /* [ceil(max_model_len / 16)] */
    uint32_t n_known, n_prompt, n_block;
    uint32_t n_cached;   /* positions that were in the blocks at admission: never written here */
    uint32_t n_guess;    /* guesses of this step, in history behind n_known */
    uint32_t n_draft;    /* positions whose keys and values the draft model has */
    uint32_t n_admitted; /* sequences that have been in this slot */
    bool is_foreseen;    /* every guess so far came true */
    bool is_forced;      /* the guesses are of its grammar */
    struct sample_params params; /* its arrays are those below; allowed_ids is NULL */
    uint32_t stop_ids[STEP_STOP_IDS_MAX];
    uint32_t bias_ids[SAMPLE_BIAS_MAX];
    float bias[SAMPLE_BIAS_MAX];
    uint32_t *bad_words; /* [SAMPLE_BAD_MAX] */
    uint32_t *allowed;   /* [ceil(vocab_size / 32)] a bit per token, all 0 when n_allowed is 0 */
};

struct logit_row { /* what to do with one row of logits */
    struct slot *slot;
    uint32_t i_slot;
    uint32_t position;         /* of the token that this row predicts */
    uint32_t n_top, top_start; /* alternatives and their place in the result */
    bool is_prompt;            /* the token is known: give its logprob */
};

struct slot_grammar { /* a slot and its grammar's program; borrowed from the step */
    uint32_t slot, n_word;
    const uint32_t *words;
};

struct slots {
    struct step_limits limits;
    uint32_t n_block, vocab_size;
    struct slot *slots; /* [max_num_seqs] */
    void *memory;       /* one mapping with all histories and tables; pages come when touched */
    size_t memory_bytes;
    /* the step being built */
    struct batch batch;
    uint32_t *token_ids, *positions, *places; /* [max_num_batched_tokens] */
    struct attention_seq *seqs;               /* [max_num_seqs] */
    uint32_t *n_prompts;                      /* [max_num_seqs] */
    uint32_t *logit_rows;                     /* [logit_rows_max] */
    struct logit_row *rows;                   /* [logit_rows_max] */
    uint32_t n_top;                           /* alternatives of all rows */
    struct slot_grammar *fresh;               /* [n_fresh] of slots admitted in this step */
    uint32_t n_fresh;
};
/* clang-format off */
#define SLOTS_INIT {.slots = NULL}
/* clang-format on */

/* Where a position of the sequence is stored: KERN_NO_SLOT when it is in a block of others. */
static inline uint32_t slots_place(const struct slot *slot, uint32_t position)
{
    return position < slot->n_cached
               ? KERN_NO_SLOT
               : slot->blocks[position / STEP_BLOCK_TOKENS] * STEP_BLOCK_TOKENS +
                     position % STEP_BLOCK_TOKENS;
}

/* Bytes of histories, tables and lists of all slots, when every one is full. */
uint64_t slots_bytes(const struct step_limits *l, uint32_t vocab_size);
FALLIBLE slots_init(struct slots *s, const struct step_limits *l, uint32_t n_block,
                    uint32_t vocab_size, struct q_err *e);
void slots_release(struct slots *s);
/* Bring the slots to the state of the step; no slot has guesses then. Errors: Q_CORRUPT (which
 * sequence, what). */
FALLIBLE slots_apply(struct slots *s, const struct step_view *v, struct q_err *e);
/* Build batch, rows and n_top of the step that was applied, with the guesses there are. Errors:
 * Q_CORRUPT. */
FALLIBLE slots_batch(struct slots *s, const struct step_view *v, struct q_err *e);
/* What decides the token of a row that samples; grammar: its mask, or NULL. */
struct sample_input slots_input(const struct logit_row *row, const uint32_t *grammar);
/* The row's token will come, but is not known here: later steps count on it. Not of a sequence that
 * speculates. slots_fill tells it, whatever became of the slot since. */
void slots_reserve(struct slots *s, const struct logit_row *row);
/* n_admitted: of the slot when the row was reserved. */
void slots_fill(struct slots *s, const struct logit_row *row, uint32_t n_admitted, uint32_t token);
/* Take the token sampled for rows[i]; rows in order. False when it is no token of its sequence: a
 * guess before it was wrong. */
bool slots_take(struct slots *s, uint32_t i, uint32_t token);
/* Assert every invariant. In trees with tests each step does it. Cost: O(slots * tokens). */
void slots_check(const struct slots *s);

#endif
