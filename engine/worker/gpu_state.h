/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_state - what is behind struct gpu. Internal to engine/worker: gpu.c makes it, gpu_step.c
 * computes with it. Threads: as gpu.h. */
#ifndef QUIRE_ENGINE_WORKER_GPU_STATE_H
#define QUIRE_ENGINE_WORKER_GPU_STATE_H
#include "engine/model/device_walk.h"
#include "engine/worker/gpu.h"

struct gpu_layout { /* bytes from the start of a step's arrays; each 256-byte aligned */
    size_t ids, positions, places, seqs, rows, plan;
};

struct gpu {
    const struct worker_config *config; /* borrowed */
    uint32_t index;
    struct device_link link;
    struct device_stream *copier; /* between pool and swap space */
    struct device_event *copied, *done;
    bool is_copying; /* `copied` is to be waited for */
    const struct model *model;
    struct device_walk *walk;
    struct device_limits limits;
    struct kv_cache kv, swap;
    bool kv_made;
    uint32_t *tables; /* [max_num_seqs][table_len] of the device */
    uint32_t table_len;
    unsigned char *host,
        *device; /* a step's arrays, and behind them `updates_max` changes of tables */
    size_t plan_bytes, updates_at;
    uint32_t updates_max;
    float *logits, *host_logits; /* [n_logit_max][vocab_size] */
    struct gpu_graph {
        uint32_t n_seq;
        struct device_graph *graph;
    } graphs[RING_GRAPHS_MAX]; /* [n_graph] ascending */
    uint32_t n_graph;
};

/* Where the arrays of a step with these counts lie; the same in host and device memory. */
struct gpu_layout gpu_layout_of(uint32_t n_token, uint32_t n_seq, uint32_t n_logit);
/* Decode rows i … n - 1 of the arrays in host memory that belong to no sequence. */
void gpu_pad(const struct gpu *g, const struct gpu_layout *at, uint32_t i, uint32_t n);
/* Send the arrays of a step with these counts. seqs: in host memory. */
void gpu_send(const struct gpu *g, const struct gpu_layout *at, const struct batch *counts);
/* The walk over arrays that lie, or will lie, in device memory. */
void gpu_walk(const struct gpu *g, const struct gpu_layout *at, const struct batch *counts,
              const struct kv_cache *kv);
/* Record the graphs, largest first. Errors: those of the device. */
FALLIBLE gpu_record(struct gpu *g, struct q_err *e);

#endif
