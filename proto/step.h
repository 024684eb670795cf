/* SPDX-License-Identifier: Apache-2.0 */
/* step - one step of an engine for its worker, and its result.
 *
 * The worker keeps, per slot (one running sequence), the token history, the block table and the
 * sampling parameters, so a step contains only changes: a decode row is a struct step_seq of 20
 * bytes. Steps are executed strictly in order; therefore a block freed while planning step n+1 may
 * be assigned to another sequence in n+1 although step n still reads it, and a token sampled in
 * step n is in the slot's history when n+1 runs: the engine plans n+1 without waiting.
 *
 * Blocks can be copied to a second pool in host memory and back. A step first copies out, then in,
 * and then computes: so a block that is copied out may be assigned to another sequence in the same
 * step, and blocks copied in are available to its rows.
 *
 * Layout of a step in shared memory: struct step_head, then the arrays in the order of its counts,
 * each 8-byte aligned (step_view checks every count and offset); native: same machine and build.
 * Threads: values; the ring (engine/worker/ring.h) orders the access. */
#ifndef QUIRE_PROTO_STEP_H
#define QUIRE_PROTO_STEP_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/sampling.h"
#include "proto/step_copy.h"
#include "proto/step_note.h"

#define STEP_BLOCK_TOKENS 16u
#define STEP_SEQS_MAX     (1u << 16)                           /* limit on max_num_seqs */
#define STEP_EOS_MAX      64u                                  /* eos ids of a model */
#define STEP_STOP_IDS_MAX (SAMPLE_STOP_IDS_MAX + STEP_EOS_MAX) /* of one admit */
#define STEP_GRAMMAR_MAX  2000000u                             /* words of a grammar's program */
#define STEP_STATE_ZERO   (UINT32_MAX - 1u)
#define STEP_LISTS_MAX    (5u << 19) /* n_list of a step; one admit's fits always */

/* step_seq.flags */
enum {
    /* sample one token after the last row and append it to the slot's history */
    STEP_SAMPLE = 1 << 0,
    /* the slot gets a new sequence: it has a struct step_admit, in order of the seqs */
    STEP_ADMIT = 1 << 1,
    /* return logprobs of the history tokens that follow rows start … start + n_token - 1 */
    STEP_PROMPT_LOGPROBS = 1 << 2,
    /* with STEP_SAMPLE: the first row is the newest token, the others are for draft tokens of
        * the worker; it samples after each row and keeps the accepted tokens */
    STEP_SPECULATE = 1 << 3
};

struct step_seq {  /* one sequence's rows of the step */
    uint32_t slot; /* < max_num_seqs */
    uint32_t flags;
    uint32_t start;   /* position of the first row: tokens of this sequence already in the cache */
    uint32_t n_token; /* rows: history[start … start + n_token - 1] */
    uint32_t n_new_block; /* appended to the slot's block table before the step */
};

struct step_admit {    /* a sequence enters a slot: its history and parameters */
    uint32_t n_known;  /* tokens known: prompt, then output emitted before a preemption or replay */
    uint32_t n_prompt; /* the first n_prompt of them are prompt */
    uint32_t n_stop_id, n_bias;
    /* Its part of the lists: allowed ids, bad words, program of its grammar, thinking budget. */
    uint32_t n_allowed, n_bad, n_grammar, n_thinking;
    /* Number of positions with KV in the first blocks, which may be shared. Rows before it (the
     * first row of the seq may be there) read the cache and write nothing. */
    uint32_t n_cached;
    /* Positions from n_cached to here are restored by this step's copies; 0 = none. The first row
     * of the seq is at most the larger of both. */
    uint32_t n_restored;
    /* struct step_item[n_item] at this place of the item store (proto/items.h): items with rows
     * from the first row of the seq on. Below that row the history may have ids that are no
     * tokens; from it on only within items. */
    uint32_t n_item;
    uint32_t adapter; /* its number; 0 = none. The worker has been told to load it before */
    /* Of a model with states (step_copy.h): its row, and the one that it begins as a copy of. */
    uint32_t state, state_from;
    uint64_t item_offset;
    struct sample_params params; /* its pointers are not used; the arrays are in the step */
};

struct step_head {
    uint64_t step;  /* counter from 1 */
    uint32_t n_seq; /* struct step_seq[n_seq], in slot-independent plan order; decode rows first */
    uint32_t n_admit;   /* struct step_admit[n_admit] */
    uint32_t n_block;   /* uint32_t[n_block]: new blocks of all seqs, in order */
    uint32_t n_known;   /* uint32_t[n_known]: histories of all admits, in order */
    uint32_t n_stop_id; /* uint32_t[n_stop_id]: with eos ids unless ignore_eos */
    uint32_t n_bias;    /* uint32_t[n_bias] ids, then float[n_bias] */
    uint32_t n_list;    /* uint32_t[n_list]: allowed ids and bad words of all admits, in order */
    uint32_t n_token;   /* rows of the whole step, <= max_num_batched_tokens */
    /* Logit rows of the whole step, <= logit_rows_max. A seq has n_token with STEP_PROMPT_LOGPROBS
     * or STEP_SPECULATE, else 1 with STEP_SAMPLE, else 0. */
    uint32_t n_logit;
    uint32_t n_out, n_in; /* struct step_copy[n_out] to host memory, then [n_in] from there */
    uint32_t n_snapshot;  /* struct step_snapshot[n_snapshot] */
};

struct step_view { /* a step's arrays; borrowed from the memory it lies in */
    struct step_head *head;
    struct step_seq *seqs;
    struct step_admit *admits;
    uint32_t *blocks, *known, *stop_ids, *bias_ids;
    float *bias;
    uint32_t *lists;
    struct step_copy *outs, *ins;
    struct step_snapshot *snapshots;
};

struct step_limits { /* limits of a step; they determine the ring's size */
    uint32_t max_num_seqs, max_num_batched_tokens, max_model_len;
    uint32_t logit_rows_max; /* >= max_num_seqs */
    uint32_t top_more;       /* alternatives beyond SAMPLE_LOGPROBS_FEW a row; twice the vocabulary,
                              * for two requests with all logprobs */
    uint32_t known_max;      /* history tokens admitted in one step; >= max_model_len */
    uint32_t copies_max;     /* blocks copied out in one step, and as many in; 0 = none are */
    uint32_t item_mib;       /* size of the item store in MiB; 0 = the model takes no items */
    uint32_t n_state;        /* rows of states, >= max_num_seqs; 0 = the model has none */
};

/* Rows of a result: for each seq with STEP_SAMPLE one sampled row at position start + n_token; for
 * each seq with STEP_PROMPT_LOGPROBS one prompt row for each of its other rows, at the position
 * after it (always a prompt position), contiguous and ascending. The order of the seqs and of the
 * two kinds is free. So a seq with STEP_PROMPT_LOGPROBS has n_token logit rows, n_logit of the head
 * is exact, and n_row of the result is the same number.
 *
 * A seq with STEP_SPECULATE has 1 … n_token sampled rows at positions start + 1 …, contiguous and
 * ascending: one more than the worker had draft tokens. The first is always a token of the
 * sequence; a later one is if the draft token before it was accepted; otherwise is_rejected is set
 * in it and in all later ones. n_row of the result may then be less than n_logit of the head. */
struct step_row { /* one sampled token, or one prompt position */
    uint32_t slot;
    uint32_t position;    /* of the token in the sequence (prompt and output counted from 0) */
    uint32_t token;       /* sampled, or the prompt's own */
    uint32_t rank;        /* 1 = most likely; 0 without logprobs */
    float logprob;        /* of `token`, from the raw logits */
    uint32_t n_top;       /* alternatives, most likely first */
    uint32_t top_start;   /* index of the first in top_ids, top_logprobs */
    uint32_t is_prompt;   /* 1: a prompt position */
    uint32_t is_rejected; /* 1: sampled after a rejected draft token, not a token of the sequence */
    uint32_t is_forced;   /* 1: the draft tokens of its sequence were forced by its grammar */
};

#define STEP_NO_GAP UINT32_MAX
/* Maximum of gap_us. */
static inline uint32_t step_gap(double us)
{
    return us <= 0 ? 0 : us < STEP_NO_GAP - 1.0 ? (uint32_t)us : STEP_NO_GAP - 1;
}
struct step_result_head {
    uint64_t step;
    int64_t start_us;      /* start time in the worker (clock_us) */
    uint32_t n_row, n_top; /* struct step_row[n_row], uint32_t[n_top] ids, float[n_top] logprobs */
    uint32_t copy_us;      /* time of the copies, before the forward pass */
    uint32_t forward_us;   /* time of the forward pass */
    uint32_t total_us;     /* total time of the step in the worker */
    uint32_t gap_us;       /* idle compute time since the previous step, and in this step between
                            * forward pass and sampling; STEP_NO_GAP: unknown */
    uint32_t error;        /* enum q_code; the step failed as a whole */
    uint32_t n_note;       /* struct step_note[n_note] behind the logprobs */
};
struct step_result {
    struct step_result_head *head;
    struct step_row *rows;
    uint32_t *top_ids;
    float *top_logprobs;
    struct step_note *notes; /* [head->n_note], room for max_num_seqs */
};

/* Maximum alternatives of all rows of one result. */
uint64_t step_top_max(const struct step_limits *l);
/* Logits rows of a seq, as defined in step_head. */
uint32_t step_seq_logits(const struct step_seq *q);
/* Bytes for the largest step and result within the limits. Errors: Q_TOO_LARGE (a limit that would
 * overflow). */
FALLIBLE step_bytes_max(size_t *step_bytes, size_t *result_bytes, const struct step_limits *l,
                        struct q_err *e);
size_t step_size(const struct step_head *counts); /* in bytes */
/* Lay out a step with these counts (head filled in by the caller) at memory[0..n) and set its
 * pointers. */
FALLIBLE step_layout(struct step_view *v, void *memory, size_t n, const struct step_head *counts,
                     struct q_err *e);
/* Set the pointers of a step at memory, checking every count against the limits and every index
 * (slots, sums), so that a corrupt step cannot cause out-of-bounds accesses in the worker. Not
 * checked, because the worker checks them: block numbers (against its pools), block table lengths,
 * token ids (against its vocabulary). Errors: Q_CORRUPT. */
FALLIBLE step_view(struct step_view *v, void *memory, size_t n, const struct step_limits *l,
                   struct q_err *e);
uint64_t step_admit_lists(const struct step_admit *a);               /* words of its lists */
static inline uint64_t step_store_bytes(const struct step_limits *l) /* of the item store */
{
    return (uint64_t)l->item_mib << 20;
}
FALLIBLE step_result_layout(struct step_result *r, void *memory, size_t n, uint32_t n_row,
                            uint32_t n_top, struct q_err *e);
/* Add a note; the text is cut to the room, and what is no printable character becomes a space.
 * Errors: Q_TOO_LARGE. */
FALLIBLE step_result_note(struct step_result *r, size_t n, const struct step_note *note,
                          struct q_err *e);
FALLIBLE step_result_view(struct step_result *r, void *memory, size_t n,
                          const struct step_limits *l, struct q_err *e);

#endif
