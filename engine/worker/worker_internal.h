/* SPDX-License-Identifier: Apache-2.0 */
/* worker_internal - what is behind worker_run. Internal to engine/worker: worker.c starts and
 * ends it, worker_step.c computes steps, worker_device.c those of a device. Threads: the
 * worker's loop and its team. */
#ifndef QUIRE_ENGINE_WORKER_WORKER_INTERNAL_H
#define QUIRE_ENGINE_WORKER_WORKER_INTERNAL_H
#include <stdatomic.h>
#include "engine/worker/draft.h"
#include "engine/worker/gpu/gpu.h"
#include "engine/worker/grammars.h"
#include "engine/worker/masks.h"
#include "engine/worker/ring.h"
#include "engine/worker/slots.h"
#include "engine/worker/speculate.h"

struct flight_row { /* a row of logits of a step that is on its way: its slot may have another
                       sequence when it lands */
    struct logit_row row;
    uint32_t n_admitted;               /* of the slot */
    uint32_t token;                    /* of a prompt */
    uint32_t n_top;                    /* SAMPLE_NO_LOGPROBS: no logprobs are wanted */
    bool has_mask, is_forced, is_here; /* is_here: the host samples it */
};

struct flight { /* a step that the device computes and that has no result yet */
    bool is_open;
    bool is_ahead; /* its tokens are not waited for: rows are reserved */
    uint64_t i;    /* of gpu_launch_sampling */
    uint64_t number;
    void *result; /* entry of the ring */
    uint32_t n_row, n_top;
    int64_t start_us;
    struct flight_row *rows; /* [logit_rows_max] */
};

struct worker {
    struct ring *ring; /* borrowed */
    const struct worker_config *config;
    struct kern_table kern;
    struct team *team;
    struct model *model;
    struct model_scratch *scratch;
    struct gpu *gpu;          /* NULL: the CPU computes. Its pools are its own */
    struct kv_cache kv, swap; /* swap: with limits.copies_max */
    bool kv_made;
    struct slots slots;
    struct draft *draft;                  /* NULL: none */
    const struct mask_provider *provider; /* NULL: our own; borrowed */
    struct grammars *grammars;            /* our own */
    struct masks *masks;
    struct sample_scratch *samplers; /* [n_thread] */
    uint32_t n_thread, vocab_size;
    float *logits; /* [logits_max, vocab_size], a mapping; not of a device */
    size_t logits_bytes;
    uint32_t logits_max; /* rows that are made at a time */
    struct step_limits limits;
    size_t step_bytes, result_bytes;
    /* the step being computed */
    const struct step_view *step; /* while its copies are done */
    struct step_result result;
    atomic_uint next_row;
    int64_t forward_end_us, sampled_us; /* sampled_us: before the forward pass ended */
    int64_t ended_us;                   /* the step before; 0: there was none */
    struct flight flights[GPU_STEPS];
    uint32_t *rows_here; /* [logit_rows_max] of a device's step: those that the host samples */
    uint32_t n_here, first_here;
    float *logits_here; /* of the rows from first_here on */
    int64_t landed_us;
};

/* ---- worker_step.c ---- */
/* Compute the step that lies at `step`, write its result and say so; one that cannot be computed
 * gets an empty result that says why. On a device it may stay on its way: the result then comes
 * with a later call, or by worker_land. */
void worker_step(struct worker *w, void *step, void *result);
/* One row of logits to row i of the result. */
void worker_finish_row(struct worker *w, uint32_t i, float *logits, struct sample_scratch *s);
/* Every sequence that speculates gets its guesses, as many as the step has room for. */
FALLIBLE worker_guess(struct worker *w, const struct step_view *v, struct q_err *e);
/* SAMPLE_BAD foresees nothing. */
static inline uint32_t worker_sampled(const struct step_row *row)
{
    return sample_failed(row) ? SAMPLE_BAD : row->token;
}
/* An empty result that says why. */
void worker_answer_error(struct worker *w, void *result, uint64_t number, enum q_code rc);

/* ---- worker_device.c ---- */
FALLIBLE worker_device_make(struct worker *w, struct q_err *e);
void worker_device_release(struct worker *w);
/* worker_step of a step that was checked, on a device. */
FALLIBLE worker_device_step(struct worker *w, const struct step_view *v, void *result,
                            struct q_err *e);
/* Is there a step on its way that is done before another came? Waits until one of both is so. */
bool worker_land_now(struct worker *w);
/* Wait for the step on its way and give its result. Errors: those of the device; the result says so
 * then. */
FALLIBLE worker_land(struct worker *w, struct q_err *e);

#endif
