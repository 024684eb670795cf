/* SPDX-License-Identifier: Apache-2.0 */
/* ring - the memory shared by an engine core and its worker: steps to the worker, results back.
 *
 *     head (made by the engine)                   body (made by the worker after loading)
 *     +--------+-------+------+------------+      +--------+--------+----------+----------+
 *     | config | state | info | counters   |      | step 0 | step 1 | result 0 | result 1 |
 *     +--------+-------+------+------------+      +--------+--------+----------+----------+
 *
 * Step n is in entry n % RING_DEPTH; its result in the result entry of the same number. `sent`
 * counts steps published by the engine, `done` results published by the worker; an entry is free
 * after its result was read. The worker waits for `sent` with a short spin and then a futex; the
 * engine polls an eventfd with its sockets. The memory is a memfd, so the worker may be another
 * process; in one process both sides use the same struct ring. Threads: one engine side, one worker
 * side, as marked below. Allocates only in ring_new. */
#ifndef QUIRE_ENGINE_WORKER_RING_H
#define QUIRE_ENGINE_WORKER_RING_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/hub/config_source.h"
#include "engine/model/model.h"
#include "engine/model/plugins.h"
#include "engine/model/vision/vision_options.h"
#include "proto/step.h"

#define RING_DEPTH        2u /* steps in flight; SCHEDULER_IN_FLIGHT_MAX */
#define RING_ISA_MAX      32u
#define RING_POOLER_MAX   1024u /* --pooler-config */
#define RING_NAMES_MAX    4096u
#define RING_GRAPHS_MAX   256u
#define RING_ADAPTERS_MAX 256u /* LoRA adapters in memory */

enum speculation_method { SPECULATE_NOT, SPECULATE_NGRAM, SPECULATE_DRAFT };
struct speculation { /* engine/worker/speculate.h */
    enum speculation_method method;
    uint32_t n_draft_token;        /* maximum draft tokens per step and sequence */
    uint32_t ngram_min, ngram_max; /* tokens that must match */
    char draft_dir[PATH_MAX];
};

struct worker_config { /* the engine's settings; written once, before the worker starts */
    char model_dir[PATH_MAX];
    char weights_dir[PATH_MAX];    /* folder of the tensors; "" = model_dir */
    char tokenizer_path[PATH_MAX]; /* tokenizer of grammars; "" = model_dir */
    struct config_source source;   /* of model_dir's config.json */
    struct plugins_config plugins;
    struct vision_options images;
    enum load_format format;
    bool dtype_auto;
    enum dtype dtype;    /* when not auto */
    bool kv_given;       /* false: KV in the compute dtype */
    enum dtype kv_dtype; /* when given */
    enum quantization quantization;
    char packed_cache[PATH_MAX]; /* folder; "" = none */
    uint32_t max_model_len;      /* 0 = the model's */
    bool fit_length;             /* and less where the KV cache's memory holds less */
    uint32_t max_num_seqs, max_num_batched_tokens;
    uint32_t n_block;      /* 0 = from kv_bytes */
    uint64_t kv_bytes;     /* 0 = from memory_part */
    double memory_part;    /* fraction of the memory for everything; 0 = the default
                            * (worker/memory.h) */
    uint64_t swap_bytes;   /* maximum host memory for preempted requests; 0 = none */
    uint32_t n_swap_block; /* with is_again: exact number of swap blocks */
    uint32_t n_state;      /* with is_again: exact number of states */
    bool is_again;         /* it replaces a crashed worker: n_block is fixed */
    uint32_t n_thread;     /* 0 = one per physical core */
    char cpu_isa[RING_ISA_MAX];
    char device[RING_ISA_MAX];     /* "auto" or "", "cpu", "cuda", "cuda:1" (worker/gpu/gpu.h) */
    char device_library[PATH_MAX]; /* "" = libquire-cuda.so in the default places (device.h) */
    bool deterministic;            /* on a device; the CPU is always */
    bool enforce_eager;            /* no graphs */
    uint32_t graph_sizes[RING_GRAPHS_MAX]; /* [n_graph_size] sequences, ascending */
    uint32_t n_graph_size;                 /* 0: 1, 2, 4, 8, 16, 24 … max_num_seqs */
    bool pin;                              /* threads to cores */
    struct speculation speculation;
    char runner[RING_ISA_MAX], convert[RING_ISA_MAX], pooler[RING_POOLER_MAX]; /* pooling.h */
    uint32_t max_lora_rank; /* above 0: sequences may have LoRA adapters */
    uint32_t max_loras;     /* of a step; 0: LORA_GROUPS_MAX */
    bool lora_dtype_auto;   /* the compute dtype */
    enum dtype lora_dtype;  /* when not auto */
    uint32_t item_mib;      /* size of the item store; 0 = none */
    int log_level;          /* enum log_level, for a worker process */
    bool log_json;
};

/* commands of an engine to its worker besides steps */
enum ring_command {
    RING_NO_COMMAND,
    RING_FORGET_KV,    /* free the memory of the KV pool and of swap space with their
                       * contents */
    RING_RELOAD,       /* load the weights of another folder; a failure changes nothing */
    RING_LOAD_ADAPTER, /* the folder of a LoRA adapter, with its number */
    RING_DROP_ADAPTER  /* by its number */
};

enum worker_state { WORKER_LOADING, WORKER_READY, WORKER_FAILED };

struct worker_info { /* the worker's report when it is ready */
    struct model_shape shape;
    struct step_limits limits; /* of every step */
    uint32_t n_block, n_swap_block;
    uint32_t n_thread;
    char kernels[RING_NAMES_MAX];    /* "linear=avx512 attention=ref …" */
    size_t step_bytes, result_bytes; /* of one entry */
};

struct ring;

/* Engine: make head and eventfd.
 * Errors: Q_IO, Q_NO_MEMORY. Ownership: ring_free (frees the memory on this side only). */
FALLIBLE ring_new(struct ring **out, const struct worker_config *c, struct q_err *e);
/* Worker process: use the ring of the inherited descriptors and take ownership of them.
 * Errors: Q_MISMATCH (not a ring of this build), Q_IO. */
FALLIBLE ring_open(struct ring **out, int memory_fd, int event_fd, struct q_err *e);
void ring_free(struct ring *r);
/* Both sides, before ring_items: the descriptor of the item store; -1 = none. It is duplicated.
 * Errors: Q_IO. */
FALLIBLE ring_share_items(struct ring *r, int fd, struct q_err *e);
int ring_items_fd(const struct ring *r); /* -1 = none */
int ring_memory_fd(const struct ring *r);
int ring_event_fd(const struct ring *r); /* readable when state, progress or results changed */

/* Worker side */
const struct worker_config *ring_config(const struct ring *r);
/* Map the item store (config.item_mib) for reading, as long as the ring; NULL: there is none.
 * Errors: Q_MISMATCH (its size), Q_NO_MEMORY. */
FALLIBLE ring_items(struct ring *r, const unsigned char **items, struct q_err *e);
void ring_progress(struct ring *r, uint32_t percent);
/* Make the body for info->limits (fills step_bytes, result_bytes) and report READY.
 * Errors: Q_NO_MEMORY, Q_TOO_LARGE. */
FALLIBLE ring_ready(struct ring *r, struct worker_info *info, struct q_err *e);
/* Bytes of that body: steps and results of these limits. Errors: as ring_ready. */
FALLIBLE ring_body_bytes(uint64_t *bytes, const struct step_limits *l, struct q_err *e);
void ring_failed(struct ring *r, const struct q_err *e);
/* Wait for the next step; *step and *result are its entries. *step NULL: a command
 * (ring_command_now), to be executed before later steps. False: the engine ends the worker. */
bool ring_step_wait(struct ring *r, void **step, void **result);
/* Spin until ring_step_wait would not wait (true) or until done(ctx) (false). */
bool ring_step_before(const struct ring *r, bool (*done)(void *ctx), void *ctx);
enum ring_command ring_command_now(const struct ring *r);
void ring_command_path(const struct ring *r, char out[PATH_MAX]);
uint32_t ring_command_adapter(const struct ring *r);
/* Report its end; e: the error, or NULL. */
void ring_command_done(struct ring *r, const struct q_err *e);
void ring_step_done(struct ring *r); /* the result entry is filled */

/* Engine side */
/* State now. *percent of loading; on WORKER_FAILED `e` has the worker's error. */
enum worker_state ring_state(const struct ring *r, uint32_t *percent, struct q_err *e);
/* After READY: map the body. Errors: Q_CORRUPT (sizes that do not match the file), Q_NO_MEMORY. */
FALLIBLE ring_attach(struct ring *r, struct worker_info *info, struct q_err *e);
void *ring_step_space(
    struct ring *r); /* [step_bytes] to plan into; NULL when RING_DEPTH steps are in flight */
void ring_step_send(struct ring *r); /* publish the step in ring_step_space */
void *ring_result_next(
    struct ring *r); /* [result_bytes] of the oldest step in flight; NULL if it is not finished */
/* [step_bytes] the step that ring_result_next is the result of. */
void *ring_result_step(struct ring *r);
void ring_result_take(struct ring *r); /* release the entry of ring_result_next */
uint32_t ring_in_flight(const struct ring *r);
bool ring_computing(const struct ring *r); /* the worker has begun a step and not finished it */
/* Send a command. No step and no command may be in flight; later steps are computed after it. path:
 * of the folder for RING_RELOAD, else NULL. */
void ring_command(struct ring *r, enum ring_command command, const char *path);
/* The same of an adapter; path: for RING_LOAD_ADAPTER. */
void ring_adapter(struct ring *r, enum ring_command command, uint32_t adapter, const char *path);
bool ring_commanding(const struct ring *r); /* the command is not finished */
/* Result of the last command. */
FALLIBLE ring_command_result(const struct ring *r, struct q_err *e);
void ring_event_clear(struct ring *r);
void ring_stop(struct ring *r); /* the worker's ring_step_wait returns false; also while it loads */
bool ring_stopped(const struct ring *r);

#endif
