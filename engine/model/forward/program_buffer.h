/* SPDX-License-Identifier: Apache-2.0 */
/* program_buffer - the buffers of a layer program (program.h), and references to their columns.
 * Threads: constants. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_BUFFER_H
#define QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_BUFFER_H
#include <stdbool.h>
#include <stdint.h>

/* of a buffer */
enum program_rows {
    PROGRAM_ROWS_STEP,   /* one for each token of the step: kept between passes */
    PROGRAM_ROWS_BLOCK,  /* one for each row of a block: within a pass */
    PROGRAM_ROWS_PLACES, /* one for each row and each expert that it takes */
    PROGRAM_ROWS_CACHE   /* the KV cache of a layer; or what the batch says */
};
/* those of every program; a plugin's come behind */
enum program_buffer_id {
    PROGRAM_B_NONE,
    PROGRAM_B_IDS,       /* of the batch, as the next */
    PROGRAM_B_POSITIONS, /* each row's in its sequence */
    PROGRAM_B_TYPES,     /* each row's type of token */
    PROGRAM_B_STREAM_IN, /* of the stage before */
    PROGRAM_B_X,         /* the residual stream */
    PROGRAM_B_LAYER_IN,  /* inputs that layers have of the token */
    PROGRAM_B_EMBED,     /* the embedding's columns, where the stream has others */
    PROGRAM_B_STREAMS,   /* of several residual streams what was predicted for x, and the others */
    PROGRAM_B_STREAMS_OUT, /* the others, joined to x at the end */
    PROGRAM_B_LOW_RANK,    /* the low-rank branch: its input, then with its output */
    PROGRAM_B_RANKS,       /* between its products */
    PROGRAM_B_H,           /* input of the next matmul */
    PROGRAM_B_H_Q,         /* the same as bytes */
    PROGRAM_B_QKV,         /* q, then k, then v; latent attention: q or its latent, the latent of K
                            and V, the rotated part of the key */
    PROGRAM_B_Q_LATENT,    /* q's latent, normed */
    PROGRAM_B_Q_LATENT_Q,
    PROGRAM_B_Q,        /* of q's latent */
    PROGRAM_B_Q_HEADS,  /* q in the columns of the latent, then rotated */
    PROGRAM_B_A_HEADS,  /* attention's output in the columns of the latent */
    PROGRAM_B_CACHE,    /* K and V of the layer */
    PROGRAM_B_MIX,      /* output of a mixer's first product; behind it, of a delta net, its own */
    PROGRAM_B_MIX_CONV, /* output of its convolution */
    PROGRAM_B_MIX_ACT,  /* the same, activated; behind it, of Mamba, what is made of it */
    PROGRAM_B_MIX_Q,    /* parts of it as a product reads them */
    PROGRAM_B_MIX_O,    /* output of a mixer that stands beside attention */
    PROGRAM_B_A_GATED,  /* attention's output in front of its gate */
    PROGRAM_B_A,        /* attention's output, or what stands in its place */
    PROGRAM_B_A_Q,
    PROGRAM_B_O, /* a branch's output before it is added to x */
    PROGRAM_B_G, /* gate, then up */
    PROGRAM_B_ACT,
    PROGRAM_B_ACT_Q,
    PROGRAM_B_SCORES,   /* the router's */
    PROGRAM_B_ROUTES,   /* experts of each row, with their weights */
    PROGRAM_B_EXPERT_H, /* experts' input, where they read columns of their own */
    PROGRAM_B_EXPERT_H_Q,
    PROGRAM_B_EXPERT_G, /* gate, then up, of places */
    PROGRAM_B_EXPERT_ACT,
    PROGRAM_B_EXPERT_ACT_Q,
    PROGRAM_B_EXPERT_O,
    PROGRAM_B_EXPERT_SUM, /* of what they write, in the same columns */
    PROGRAM_B_EXPERT_SUM_Q,
    PROGRAM_B_SHARED_O, /* output of the expert that all rows use */
    PROGRAM_B_ADAPTED,  /* A x of the adapters: their ranks */
    PROGRAM_B_LOGITS,
    PROGRAM_B_STREAM_OUT, /* of the batch: for the stage behind */
    PROGRAM_BUFFERS
};
#define PROGRAM_BUFFERS_MAX 64u

struct program_buffer {
    const char *name;
    uint32_t n_col;         /* the most that a reference has */
    enum program_rows rows; /* set by program_fuse */
    bool is_stored;         /* a stage reads what another one wrote: it needs memory */
};
struct program_ref { /* columns of a buffer */
    uint16_t buffer; /* PROGRAM_B_NONE: no reference */
    uint16_t dtype;  /* enum dtype */
    uint32_t col, n_col;
};

#endif
