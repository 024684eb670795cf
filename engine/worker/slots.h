/* SPDX-License-Identifier: Apache-2.0 */
/* slots - the worker's state of each running sequence, and the conversion of a step to a batch.
 *
 * A slot holds a sequence's token history, block table and sampling parameters. slots_apply takes a
 * checked step view, updates the slots and lays out the ragged batch; it checks everything that
 * step_view cannot check (token ids, block numbers, rows beyond the known tokens), so an invalid
 * step is an error and never an out-of-bounds read. Threads: the worker's loop. Allocates nothing
 * after slots_init. */
#ifndef QUIRE_ENGINE_WORKER_SLOTS_H
#define QUIRE_ENGINE_WORKER_SLOTS_H
#include "engine/model/model.h"
#include "engine/worker/sample.h"
#include "proto/items.h"
#include "proto/step.h"

struct slot {
    uint32_t *history; /* [max_model_len] of the prompt, ids of placeholders are no tokens */
    uint32_t *blocks;  /* [ceil(max_model_len / 16)] */
    uint32_t n_known, n_prompt, n_block;
    uint32_t n_cached;      /* positions that were in the blocks at admission; never written for
                             * this sequence */
    uint32_t n_draft_token; /* draft tokens of this step, in history after n_known */
    uint32_t n_draft;       /* positions with KV of the draft model */
    uint32_t n_admitted;    /* number of sequences that have used this slot */
    bool is_predicted;      /* every draft token so far was accepted */
    bool is_forced;         /* the draft tokens are forced by its grammar */
    struct sample_params params; /* its arrays are the following ones; allowed_ids is NULL */
    uint32_t stop_ids[STEP_STOP_IDS_MAX];
    uint32_t bias_ids[SAMPLE_BIAS_MAX];
    float bias[SAMPLE_BIAS_MAX];
    const struct step_item *items; /* [n_item] in the item store, checked */
    uint32_t n_item;
    uint32_t adapter;    /* number of its LoRA adapter; 0 = none */
    uint32_t state;      /* its row of states, of a model that has some */
    uint32_t state_from; /* in the step of its admission: as step_admit; then `state` */
    bool has_items;      /* the prompt has ids that are no tokens */
    uint32_t *bad_words; /* [SAMPLE_BAD_MAX] */
    uint32_t *thinking;  /* [THINKING_BUDGET_WORDS_MAX] */
    uint32_t *allowed;   /* [ceil(vocab_size / 32)] a bit per token, all 0 when n_allowed is 0 */
};

struct logit_row { /* the processing of one row of logits */
    struct slot *slot;
    uint32_t i_slot;
    uint32_t position;         /* of the token that this row predicts */
    uint32_t n_top, top_start; /* alternatives and their position in the result */
    bool is_prompt;            /* the token is known: return its logprob */
};

struct slot_grammar { /* a slot and its grammar's program; borrowed from the step */
    uint32_t slot, n_word;
    const uint32_t *words;
};

struct slots {
    struct step_limits limits;
    uint32_t n_block, vocab_size;
    const unsigned char *item_store; /* [step_store_bytes] borrowed; NULL: none */
    uint32_t n_modality;
    bool has_types;            /* the model has types of tokens */
    enum pooling_kind pooling; /* of a model that pools: which row is asked for */
    struct slot *slots;        /* [max_num_seqs] */
    void *memory; /* one mapping with all histories and tables; pages are allocated when
                         * touched */
    size_t memory_bytes;
    /* the step being built */
    struct batch batch;
    uint32_t *token_ids, *positions, *slot_mapping, *token_types; /* [max_num_batched_tokens] */
    struct attention_seq *seqs;                                   /* [max_num_seqs] */
    uint32_t *n_prompts;                                          /* [max_num_seqs] */
    uint32_t *logit_rows;                                         /* [logit_rows_max] */
    struct logit_row *rows;                                       /* [logit_rows_max] */
    uint32_t n_top;                                               /* alternatives of all rows */
    struct state_part *state_parts; /* [max_num_seqs * (1 + STEP_SEQ_SNAPSHOTS)] */
    uint64_t *state_steps;          /* [limits.n_state] + 1: the last step that writes the row */
    struct slot_grammar *fresh;     /* [n_fresh] of slots admitted in this step */
    uint32_t n_fresh;
};
/* clang-format off */
#define SLOTS_INIT {.slots = NULL}
/* clang-format on */

/* Slot mapping of a position of the sequence: its position in the KV cache; KERN_NO_SLOT in a
 * shared block. */
static inline uint32_t slots_slot_mapping(const struct slot *slot, uint32_t position)
{
    return position < slot->n_cached
               ? KERN_NO_SLOT
               : slot->blocks[position / STEP_BLOCK_TOKENS] * STEP_BLOCK_TOKENS +
                     position % STEP_BLOCK_TOKENS;
}

/* Do its rows have masks (masks.h): of a grammar, or a thinking budget? */
static inline bool slots_masks(const struct slot *slot)
{
    return slot->params.grammar || slot->params.n_thinking;
}

/* What stands for an id of the history where a model wants a token: a placeholder becomes 0. */
static inline uint32_t slots_token(const struct slots *s, uint32_t id)
{
    return id < s->vocab_size ? id : 0;
}

/* Maximum size of histories, tables and lists of all slots. */
uint64_t slots_bytes(const struct step_limits *l, uint32_t vocab_size);
FALLIBLE slots_init(struct slots *s, const struct step_limits *l, uint32_t n_block,
                    uint32_t vocab_size, struct q_err *e);
void slots_release(struct slots *s);
/* Update the slots to the state of the step; no slot has draft tokens then. Errors: Q_CORRUPT
 * (sequence and reason). */
FALLIBLE slots_apply(struct slots *s, const struct step_view *v, struct q_err *e);
/* Build batch, rows and n_top of the applied step with the current draft tokens. Errors: Q_CORRUPT.
 */
FALLIBLE slots_batch(struct slots *s, const struct step_view *v, struct q_err *e);
/* Sampling input of a row; mask: what masks_wait says, if slots_masks; borrowed. */
struct sample_input slots_input(const struct logit_row *row, struct row_mask mask);
/* Reserve the row's token, which is not known on the host yet, for later steps. Not for sequences
 * with draft tokens. slots_fill sets it, even if the slot was reused. */
void slots_reserve(struct slots *s, const struct logit_row *row);
/* n_admitted: of the slot when the row was reserved. */
void slots_fill(struct slots *s, const struct logit_row *row, uint32_t n_admitted, uint32_t token);
/* Append the token sampled for rows[i]; rows in order. False if it is not a token of its sequence
 * because a previous draft token was rejected. */
bool slots_take(struct slots *s, uint32_t i, uint32_t token);
/* Assert every invariant. In trees with tests each step does it. Cost: O(slots * tokens). */
void slots_check(const struct slots *s);

#endif
