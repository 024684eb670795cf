/* SPDX-License-Identifier: Apache-2.0 */
/* worker_internal - the state of worker_run. Internal to engine/worker: worker.c starts and ends
 * it, worker_step.c computes steps, worker_device.c computes steps on a device. Threads: the
 * worker's loop and its team. */
#ifndef QUIRE_ENGINE_WORKER_WORKER_INTERNAL_H
#define QUIRE_ENGINE_WORKER_WORKER_INTERNAL_H
#include <stdatomic.h>
#include "common/hub/pooling.h"
#include "engine/worker/adapters.h"
#include "engine/worker/draft.h"
#include "engine/worker/gpu/gpu.h"
#include "engine/worker/grammars.h"
#include "engine/worker/items.h"
#include "engine/worker/masks.h"
#include "engine/worker/ring.h"
#include "engine/worker/slots.h"
#include "engine/worker/speculate.h"

struct
    inflight_row { /* a logits row of a step in flight; its slot may have another sequence when the
                     * step completes */
    struct logit_row row;
    uint32_t n_admitted;               /* of the slot */
    uint32_t token;                    /* of a prompt */
    uint32_t n_top;                    /* SAMPLE_NO_LOGPROBS: no logprobs are requested */
    bool has_mask, is_forced, on_host; /* on_host: the host samples it */
    bool is_raw;                       /* a vector without the model's activation */
};

struct inflight_step { /* a step on the device without a result yet */
    bool is_open;
    bool is_ahead; /* its rows are reserved before their tokens are known on the host */
    uint64_t i;    /* of gpu_launch_sampling */
    uint64_t number;
    void *result; /* entry of the ring */
    uint32_t n_row, n_top;
    int64_t start_us;
    struct inflight_row *rows; /* [logit_rows_max] */
    struct step_note *notes;   /* [n_note] room for max_num_seqs */
    uint32_t n_note;
};

struct worker {
    struct ring *ring; /* borrowed */
    const struct worker_config *config;
    struct kern_table kern;
    struct team *team;
    struct model *model;
    struct model_scratch *scratch;
    struct gpu *gpu;          /* NULL: computing on the CPU. It owns its pools */
    struct kv_cache kv, swap; /* swap: with limits.copies_max */
    bool kv_made;
    struct slots slots;
    struct modalities *modalities;        /* NULL: the model takes tokens only */
    struct items *items;                  /* likewise */
    const unsigned char *item_store;      /* likewise; borrowed from the ring */
    struct draft *draft;                  /* NULL: none */
    struct adapters *adapters;            /* NULL: without max_lora_rank */
    const struct mask_provider *provider; /* NULL: our own; borrowed */
    struct grammars *grammars;            /* our own */
    struct masks *masks;
    struct sample_scratch *samplers; /* [n_thread] */
    struct pooling pooling;          /* what the model makes of a prompt */
    float *pool_scratch; /* [n_thread, pooler_n_scratch]; NULL: the model does not pool */
    uint32_t n_thread, vocab_size;
    uint32_t n_output; /* columns of a row of logits: the vocabulary, or those of a pooled row */
    float *logits;     /* [logits_max, n_output], a mapping; not of a device */
    size_t logits_bytes;
    uint32_t logits_max; /* rows computed at a time */
    struct step_limits limits;
    size_t step_bytes, result_bytes;
    /* the step being computed */
    const struct step_view *step; /* during its copies */
    struct step_result result;
    atomic_uint next_row;
    int64_t forward_end_us, sampled_us; /* sampled_us: before the forward pass ended */
    int64_t ended_us;                   /* end of the previous step; 0: no previous step */
    struct step_note *notes;            /* [n_note] of the batch; room for max_num_seqs */
    uint32_t n_note;
    struct inflight_step inflight_steps[GPU_STEPS];
    uint32_t *host_rows; /* [logit_rows_max] rows of a device's step sampled on the host */
    uint32_t n_host_row, first_host_row;
    float *host_row_logits; /* of the rows from first_host_row on */
    int64_t completed_us;
};

/* ---- worker_step.c ---- */
/* Compute the step at `step`, write and publish its result; a step that cannot be computed gets an
 * empty result with the error. On a device the step may remain in flight: its result is then
 * written by a later call or by worker_complete_step. */
void worker_step(struct worker *w, void *step, void *result);
/* One row of logits to row i of the result. */
void worker_finish_row(struct worker *w, uint32_t i, float *logits, struct sample_scratch *s);
/* Propose draft tokens for every sequence that speculates, within the room of the step. */
FALLIBLE worker_propose(struct worker *w, const struct step_view *v, struct q_err *e);
/* slots_batch with the rows of items; w->notes says which sequences have items that failed. */
FALLIBLE worker_batch(struct worker *w, const struct step_view *v, struct q_err *e);
/* SAMPLE_BAD accepts no draft token. */
static inline uint32_t worker_sampled(const struct step_row *row)
{
    return sample_failed(row) ? SAMPLE_BAD : row->token;
}
/* The batch's sequence could not be computed; the first note of one counts. */
void worker_note(struct worker *w, const struct step_seq *q, const char *why);
/* The notes into w->result. */
FALLIBLE worker_put_notes(struct worker *w, const struct step_note *notes, uint32_t n,
                          struct q_err *e);
/* An empty result with the error. */
void worker_answer_error(struct worker *w, void *result, uint64_t number, enum q_code rc);

/* ---- vectors.c ---- */
struct worker_vector {
    const struct logit_row *row;
    bool is_raw;
    const float *pooled; /* its pooled row */
};
FALLIBLE worker_make_vectors(struct worker *w, struct q_err *e);
/* The vector of a request that pools, to row i of the result, as the alternatives of token 0. */
void worker_finish_vector(struct worker *w, uint32_t i, const struct worker_vector *v,
                          uint32_t ith);
/* All of a step on a device, whose pooled rows have arrived. */
void worker_complete_vectors(struct worker *w, const struct inflight_step *f);

/* ---- worker_device.c ---- */
FALLIBLE worker_device_make(struct worker *w, struct q_err *e);
void worker_device_release(struct worker *w);
/* worker_step of a checked step on a device. */
FALLIBLE worker_device_step(struct worker *w, const struct step_view *v, void *result,
                            struct q_err *e);
/* Wait for the step in flight or for the next step in the ring; true if the step in flight finished
 * first. */
bool worker_complete_now(struct worker *w);
/* Wait for the step in flight and publish its result. Errors: those of the device; the result then
 * contains the error. */
FALLIBLE worker_complete_step(struct worker *w, struct q_err *e);

#endif
