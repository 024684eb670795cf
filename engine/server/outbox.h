/* SPDX-License-Identifier: Apache-2.0 */
/* outbox - one step's outputs for one frontend as one columnar message.
 *
 * Filled for one frontend after another from the step's outputs, encoded and sent.
 * Threads: the server's loop. Allocates at init only (the frame buffer grows to the largest message
 * once). */
#ifndef QUIRE_ENGINE_SERVER_OUTBOX_H
#define QUIRE_ENGINE_SERVER_OUTBOX_H
#include "common/buf.h"
#include "engine/sched/scheduler.h"

struct outbox_entries { /* tokens with their logprobs: the token itself, then alternatives */
    uint32_t *ids;      /* [n] of n_row_max + step_top_max */
    float *logprobs;
    uint32_t n;
};

struct outbox {
    uint32_t n_request_max, n_row_max;
    uint64_t *req_ids, *queue_us; /* [n_request_max], as the others of this block */
    uint32_t *seq, *n_token, *tokens, *finish, *stop_id, *n_cached, *n_logprob, *n_prompt_row,
        *n_prompt_logprob, *n_value;
    uint32_t *ranks, *prompt_ranks; /* [n_row_max] */
    struct outbox_entries chosen, prompt;
    float *values; /* [n_value_all] of n_row_max + step_top_max */
    uint32_t n_value_all;
    uint32_t n_request, n_token_all, n_rank_all, n_prompt_row_all;
    uint32_t n_finished; /* requests that end in this message */
    struct buf frame;
    void *memory;
};
/* clang-format off */
#define OUTBOX_INIT {.memory = NULL, .frame = BUF_INIT}
/* clang-format on */

/* Columns for the largest step within the limits. Errors: Q_NO_MEMORY. */
FALLIBLE outbox_init(struct outbox *o, const struct step_limits *l, struct q_err *e);
void outbox_release(struct outbox *o);
struct outbox_step {                        /* a settled step, as passed to the core's sink */
    const struct step_result *result;       /* NULL: requests that ended outside of steps */
    const struct scheduler_output *outputs; /* [n] */
    uint32_t n;
};
/* Encode the outputs of `frontend_id` (except those with a `why`, which are errors) into o->frame.
 * *n = their number; 0: nothing to send. */
FALLIBLE outbox_fill(struct outbox *o, uint32_t frontend_id, const struct outbox_step *step,
                     uint32_t *n, struct q_err *e);

#endif
