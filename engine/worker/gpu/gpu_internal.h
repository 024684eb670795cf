/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_internal - the state of struct gpu. Internal to engine/worker: gpu.c makes it, gpu_slots.c
 * keeps its tables and histories, gpu_step.c computes steps, gpu_sample.c samples, gpu_pool.c
 * brings pooled rows.
 *
 * Host memory of a step exists twice: while the device may still read one, the next step is
 * written. Device memory exists once, because a stream executes in order.
 * Threads: as gpu.h. */
#ifndef QUIRE_ENGINE_WORKER_GPU_GPU_INTERNAL_H
#define QUIRE_ENGINE_WORKER_GPU_GPU_INTERNAL_H
#include <limits.h>
#include "engine/model/forward/executor_device.h"
#include "engine/model/lora/lora_device.h"
#include "engine/worker/gpu/gpu.h"

struct gpu_layout { /* bytes from the start of a step's arrays; each 256-byte aligned */
    size_t from;    /* position of each row's token in the histories */
    size_t positions, slot_mapping, seqs, rows;
    size_t state_parts;           /* of models with states */
    size_t types;                 /* of tokens, for models that have some */
    size_t item_ids;              /* of models that take items: executor_device.h */
    size_t lora_tiles, lora_rows; /* of models with adapters: lora_device.h */
    size_t rope_cos_sin;          /* (cos, sin) of each row, for models with dynamic rope */
    size_t plan, wide_plan;
};

struct gpu_updates { /* of tables and histories: single words by scatter, more by copies */
    uint32_t *host[GPU_STEPS]; /* [GPU_UPDATES] indices, [GPU_UPDATES] values, [text_max] tokens
                                * of long runs */
    uint32_t *device;          /* the first two */
    uint32_t n, n_given;       /* single words, and the number of those launched */
    uint32_t n_text, text_max;
};
#define GPU_UPDATES 16384u

struct gpu_sent {        /* the device's state of a slot */
    uint32_t n_admitted; /* number of the slot's sequence */
    uint32_t n_block, n_token;
};

/* Rows' sampling parameters and results; layout: gpu_sample.c. */
struct gpu_sampling {
    unsigned char *host[GPU_STEPS], *device;
    uint32_t *masks[GPU_STEPS], *device_masks; /* [n_logit_max][SAMPLE_MASK_WORDS] */
    unsigned char *picks[GPU_STEPS], *device_picks;
};

/* Events of a step in its stream, for three steps: one being launched, one in flight, and the one
 * before, because a gap is measured between two steps. */
struct gpu_step_events {
    struct device_event *begun, *forward_done; /* before and after the forward pass */
    struct device_event *picking;              /* sampling begins */
    struct device_event *done;                 /* end of the step; its tokens are on the host */
    struct device_event *copying, *copied;
    bool has_copies;
};
#define GPU_STEP_EVENTS (GPU_STEPS + 1u)

struct gpu_graph {
    uint32_t n_seq;
    struct device_graph *graph, *with_lora; /* with_lora: of steps that have adapters */
};

struct gpu_model { /* a model on the device, and the memory of its steps */
    const struct model *model;
    struct executor_device *executor;
    struct device_limits limits;
    struct device_limits wide; /* executor_device_wide_limits */
    struct lora_device *lora;  /* NULL: it takes no adapters */
    struct kv_cache kv, swap;
    bool kv_made;
    unsigned char *host[GPU_STEPS], *device; /* a step's arrays */
    size_t plan_bytes, wide_plan_bytes;      /* the second is 0 where one plan serves all layers */
    uint32_t *ids;                           /* [rows] of the device: their tokens */
    /* [rows][hidden_size], of models that take items: rows of items, in host memory and there */
    float *host_items[GPU_STEPS], *items;
    float *logits; /* [n_logit_max][model_shape.n_output] */
};

struct gpu {
    const struct worker_config *config; /* borrowed */
    uint32_t index;
    char tune_dir[PATH_MAX]; /* folder of the tuner's choices */
    struct device_link link;
    struct device_stream *copier;                        /* between pool and swap space */
    struct gpu_step_events step_events[GPU_STEP_EVENTS]; /* by number */
    uint64_t n_step;                                     /* number of the step being launched */
    bool is_copying;                                     /* `copied` is to be waited for */
    struct gpu_model model, draft;                       /* draft.model NULL: none */
    /* words of the device: block tables [max_num_seqs][table_len], then histories
     * [max_num_seqs][history_len] */
    uint32_t *words;
    size_t histories; /* where they begin */
    uint32_t table_len, history_len;
    struct gpu_sent *sent; /* [max_num_seqs] */
    uint32_t *seq_slots;   /* [max_num_seqs] of a step's sequences */
    struct gpu_updates updates;
    struct gpu_sampling sampling;
    float *host_logits;       /* [GPU_LOGITS][vocab_size] */
    float *pooled[GPU_STEPS]; /* [n_logit_max][n_output] in host memory; NULL: it samples */
    uint32_t n_item;          /* rows of items in the step being sent */
    uint32_t i_buffer;        /* of GPU_STEPS: whose host memory is written now */
    struct gpu_graph graphs[RING_GRAPHS_MAX]; /* [n_graph] ascending */
    uint32_t n_graph;
    uint32_t generation;  /* model_generation of the weights that the graphs were recorded with */
    struct q_err refusal; /* of the last gpu_launch; Q_OK: none */
};

/* ---- gpu_step.c ---- */
/* Layout of the arrays of a step with these counts; the same in host and device memory. */
struct gpu_layout gpu_layout_of(const struct gpu_model *l, const struct batch *counts);
/* Fill decode rows i … n - 1 of the arrays in host memory as padding, which belongs to no
 * sequence. */
void gpu_pad(const struct gpu *g, const struct gpu_model *l, const struct gpu_layout *at,
             uint32_t i, uint32_t n);
/* Send the arrays of a step with these counts. */
void gpu_send(const struct gpu *g, const struct gpu_model *l, const struct gpu_layout *at,
              const struct batch *counts);
/* Fill the adapters of a step of n rows. b: placed, or NULL. Without adapters it does nothing. */
void gpu_fill_lora(const struct gpu *g, const struct gpu_model *l, const struct gpu_layout *at,
                   const struct lora_batch *b, uint32_t n);
struct gpu_pass {
    const struct gpu_model *l;
    const struct gpu_layout *at;
    const struct batch *counts;
    const struct kv_cache *kv;
    bool is_recorded; /* the launches serve every step of these counts */
    bool has_lora;    /* a row has an adapter */
};
/* The forward pass over the arrays in device memory. Errors: as executor_device_run. */
FALLIBLE gpu_forward(const struct gpu *g, const struct gpu_pass *p, struct q_err *e);
/* The same, and waits for it: after an error too, so that its memory may go. */
FALLIBLE gpu_forward_done(const struct gpu *g, const struct gpu_pass *p, struct q_err *e);
/* Record the graphs, largest first. Errors: those of the device. */
FALLIBLE gpu_record(struct gpu *g, struct q_err *e);
/* What was recorded goes; the sizes stay. */
void gpu_drop_graphs(struct gpu *g);

/* ---- gpu_slots.c ---- */
FALLIBLE gpu_slots_make(struct gpu *g, const struct step_limits *l, struct q_err *e);
void gpu_slots_release(struct gpu *g);
/* This step's host memory is in use by the stream; switch to the other. */
void gpu_next_buffer(struct gpu *g);
static inline struct gpu_step_events *gpu_events_now(struct gpu *g)
{
    return &g->step_events[g->n_step % GPU_STEP_EVENTS];
}
static inline size_t gpu_history_at(const struct gpu *g, uint32_t slot, uint32_t position)
{
    return g->histories + (size_t)slot * g->history_len + position;
}

static inline bool gpu_has_types(const struct gpu_model *l)
{
    return model_shape(l->model)->n_type > 1;
}

/* ---- gpu_pool.c ---- */
/* Of a model that pools: host memory of pooled rows. */
FALLIBLE gpu_pool_make(struct gpu *g, struct q_err *e);
void gpu_pool_release(struct gpu *g);
/* Copy the step's n pooled rows to the host. */
void gpu_pool(struct gpu *g, uint32_t n);

/* ---- gpu_sample.c ---- */
FALLIBLE gpu_sampling_make(struct gpu *g, struct q_err *e);
void gpu_sampling_release(struct gpu *g);
/* Launch the sampling of the batch of `s` after its logits. masks: may be NULL. */
void gpu_sample(struct gpu *g, const struct slots *s, struct masks *masks);

#endif
