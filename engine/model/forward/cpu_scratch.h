/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_scratch - struct model_scratch: the memory that a step of a layer program uses on the CPU.
 * Internal to engine/model.
 *
 * A step has n rows and computes R of them at a time (block_rows), so that the output of a product
 * is still in the caches when the next product reads it. A buffer of the step has n rows. A buffer
 * of a block has R rows, or CPU_OWN_ROWS for each thread where threads may have copies of their
 * own; a buffer of places has R * n_used rows. Threads: as model.h. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_CPU_SCRATCH_H
#define QUIRE_ENGINE_MODEL_FORWARD_CPU_SCRATCH_H
#include <stdatomic.h>
#include "engine/model/forward/cpu_asked.h"
#include "engine/model/forward/cpu_plan.h"
#include "engine/model/forward/matmul.h"
#include "engine/model/model_state.h"
#include "engine/plugin.h"
#include "kernels/ops/ops_share.h"

/* Floats that hold the columns of a rank of a product of n_col columns, the most of any rank. */
uint32_t cpu_columns_most(const struct model_shard *s, uint32_t n_col);
/* Rows of an expert that a thread multiplies at a time, of which it has a copy then. */
#define CPU_PICK_ROWS 128u

/* A place is a row and one of the experts that it takes; places of one expert are neighbours, its
 * rows ascending. P = R * n_used places. */
struct cpu_experts {
    uint32_t *experts; /* [in_rows, n_used] of each row, ascending */
    float *weights;    /* [in_rows, n_used] */
    /* Each thread has its own of these: */
    uint32_t *ends;            /* [n_expert] one past the last place of each expert */
    uint32_t *rows;            /* [P] the row of each place */
    uint32_t *places;          /* [R, n_used] where a row's results are */
    float *of_places;          /* [P] the weight of each place */
    float *shares;             /* [R] of the expert that all rows use */
    struct matmul_rows picked; /* [CPU_PICK_ROWS, hidden] rows of one expert */
};

/* What a stage asks of a buffer, in one cache line: weights push all else out of the caches between
 * two stages. */
struct cpu_buffer {
    struct matmul_rows all;
    bool of_step, of_places;
};
_Static_assert(sizeof(struct cpu_buffer) <= 64, "one cache line");

struct cpu_own {   /* of a model whose plugin computes the forward pass itself; else nothing */
    float *logits; /* [n_token_max, vocab_size]; pages that no step has written take no memory */
    struct quire_sequence *sequences;  /* [n_token_max] */
    float *buffers[QUIRE_BUFFERS_MAX]; /* [n_token_max, columns] */
    struct matmul_rows inputs;         /* [n_token_max] of a product, in its type */
    uint32_t *logit_rows;              /* [n_token_max] of the pass */
    /* Of a plugin with operations of its own, too: */
    atomic_bool has_failed;            /* the pass */
    struct quire_plugin_error *errors; /* [n_token_max] of each sequence; "": none */
};

struct cpu_exchange { /* with the ranks that have other columns of products; else nothing */
    float *mine;      /* [n] of this rank */
    float *all;       /* [ranks][n] */
    size_t n;
};

struct model_scratch {
    struct region memory;
    struct cpu_exchange exchange;
    struct cpu_own own;
    uint32_t n_token_max, n_thread;
    uint32_t block_rows;
    uint32_t in_rows; /* block_rows, or enough for CPU_OWN_ROWS of each thread */
    struct matmul_rows buffers[PROGRAM_BUFFERS_MAX]; /* dtype: of the widest reference */
    uint64_t overlaps[PROGRAM_BUFFERS_MAX];          /* program_memory.h */
    struct cpu_line { /* [PROGRAM_BUFFERS_MAX] the same, for stages */
        _Alignas(64) struct cpu_buffer b;
    } * lines;
    struct cpu_stage *stages; /* [n_stage] of the program */
    uint32_t n_stage;
    uint32_t asked_pass;    /* the first that may go through spans */
    struct cpu_spans spans; /* of the step; [n_token_max] */
    struct cpu_experts e;   /* of a model with experts */
    float *made_of;         /* [n_thread, hidden] a row of floats that becomes bytes at once */
    size_t made_of_stride;
    float *rope; /* [n, head_dim / 2, 2] (cos, sin) of each row */
    float
        *local_rope; /* the same of layers with windows; NULL where these have no rope of theirs */
    float *parts;    /* [n_part] of long contexts that are split over threads */
    size_t n_part;
    uint32_t *rows;            /* 0, 1, 2 …: the row of `rope` that a row uses */
    struct kern_share *shares; /* [n_thread] */
    unsigned char *kern;       /* [n_thread][kern_bytes] */
    size_t kern_bytes;
    float *const *tap;
    const struct model_attention_tap *attention_tap;
};

#endif
