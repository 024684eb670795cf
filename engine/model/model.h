/* SPDX-License-Identifier: Apache-2.0 */
/* model - a checkpoint's weights, and the layer program that runs them.
 *
 * A family is data: a table of tensor names and shapes, and how a layer is made of operations
 * (archs.def lists them). model_load checks every tensor, packs the matrices for the kernels and
 * compiles family and config into a list of operations (forward/program.h); model_forward runs the
 * list for one ragged batch, writing K and V into the paged cache and giving logits for the rows
 * that asked.
 *
 * Numbers. The residual stream is f32. --dtype float32: weights as f32 (f16 and bf16 checkpoints
 * stay packed as they are, which is exact), products in f32. bfloat16: weights bf16, the inputs of
 * every matrix product rounded to bf16, sums in f32. float16: weights f16, products in f32.
 * QUANTIZE_INT8: weights of every matrix int8 with a scale for each output, inputs of every matrix
 * product int8 with a scale for each token, sums of integers (exact); all else in f32, and the
 * dtype says only what KV is by default. QUANTIZE_INT4: the same, but weights of the layers'
 * matrices have 4 bits, with a scale and a zero for each output and group of 128, 64 or 32 inputs,
 * the largest that divides them; a matrix that none divides, and the one of the logits, is int8.
 * A device that computes in 16 bits reads inputs of 4-bit matrices as such (forms.h).
 * QUANTIZE_FP8, on a device: weights of the layers' matrices e4m3 with a scale for each output,
 * their inputs e4m3 with a scale for each token; the logits' matrix, and what a checkpoint in fp8
 * has left as floats, as the dtype says.
 * The router of a mixture of experts is never quantized: its weights and inputs are floats.
 * Determinism: ops.h. Threads: model_load by one; model_forward is called by every thread
 * of the team with its own ith. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_H
#define QUIRE_ENGINE_MODEL_MODEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/hub/config.h"
#include "common/hub/pooling.h"
#include "common/team.h"
#include "engine/model/batch.h"
#include "engine/model/model_cache.h"
#include "engine/model/load/load_options.h"
#include "kernels/device.h"

struct pooler;
struct arch;

struct model_lengths { /* tokens of a sequence */
    uint32_t usual;    /* of the config: max_position, times the rope factor where it stretches */
    uint32_t max;      /* that max_model_len may be; UINT32_MAX: any */
};
struct model_lengths model_lengths(const struct arch *arch, const struct model_config *c);

struct model_options {
    const char *dir;         /* model folder */
    const char *weights_dir; /* where the tensors are; NULL = dir */
    enum load_format
        format;      /* LOAD_DUMMY: random weights of the config's shapes, seeded, no file needed */
    bool dtype_auto; /* take the checkpoint's: f32 -> float32, bf16 -> bfloat16, f16 -> float16 */
    enum dtype dtype; /* F32, BF16 or F16, when not auto */
    bool kv_given; /* false: KV is bfloat16 when computing in it, and on a device in float16, else
                      float32 */
    enum dtype kv_dtype;            /* F32, BF16, I8 or, on a device, F8_E4M3, when given; free of
                                       the compute dtype */
    enum quantization quantization; /* of every matrix, when loading */
    struct pipeline_stage stage; /* the part that is loaded and run; on a device the whole only */
    struct model_shard shard;    /* of each matrix, on the CPU; not with a packed cache */
    uint32_t max_model_len; /* tokens; 0 = config's max_position (times rope factor where the family
                               does) */
    const char
        *packed_cache; /* folder of packed weights (load/packed_cache.h); NULL: none. The path of
                                 reloads does not use it */
    const struct kern_table *kern; /* borrowed */
    struct team *team;             /* packs in parallel; borrowed */
    uint64_t memory_bytes; /* that packed weights may take on the CPU at most; 0 = not known */
    const struct device_link *link; /* where weights lie and steps run, with the kernels it has
                                       instead of `kern`; NULL: the CPU. Borrowed */
    bool no_fusion; /* for tests, on the CPU: each operation of the program is a stage of its own,
                       gate and up (but those of experts) lie apart */
    uint32_t lora_rank; /* above 0, on the CPU: rows may have adapters (lora/lora.h) of at most this
                           rank; gate and up lie apart then */
    bool takes_items;   /* rows of its input may be images (modality.h), as of a plugin's model */
    bool generates;     /* prompts come in chunks and tokens one at a time: layers that attend both
                       ways are refused */
    const struct pooling *pooling; /* borrowed while loading; NULL, or one that generates: the model
                                      gives logits. Else one vector of each sequence */
    void (*progress)(void *ctx, uint64_t bytes_done, uint64_t bytes_total); /* may be NULL */
    void *progress_ctx;
};

/* Errors: Q_NOT_FOUND, Q_CORRUPT or Q_MISMATCH (file, tensor, expected and found shape),
 * Q_UNSUPPORTED (architecture or option, with what is supported), Q_NO_MEMORY. */
FALLIBLE model_load(struct model **out, const struct model_options *o, struct q_err *e);
/* Would it, as far as config.json, the options and the headers of the weights show? on_device:
 * o->link is not opened yet, and what depends on it is not asked, nor are the tensors' shapes.
 * Errors: as model_load. */
FALLIBLE model_check(const struct model_options *o, bool on_device, struct q_err *e);
void model_free(struct model *m);
/* The numbers of another checkpoint of the same model, from o->weights_dir, which may have a
 * config.json (then it must mean the same) or not. Matrices are packed over the old ones; only a
 * checkpoint of another element type may need memory beside them. On an error the old weights are
 * as they were. Nobody may compute with `m` meanwhile. Errors: as model_load; Q_MISMATCH names what
 * differs. */
FALLIBLE model_reload(struct model *m, const struct model_options *o, struct q_err *e);
/* Would model_reload take o->weights_dir for a model of this config? Reads headers only. */
FALLIBLE model_check_weights(const struct model_config *c, const struct model_options *o,
                             struct q_err *e);

struct model_shape { /* what others must know */
    uint32_t vocab_size, hidden_size, n_kv_head, n_head, head_dim;
    uint32_t n_output; /* columns of a row of logits: vocab_size, or hidden_size where it pools */
    uint32_t n_type;   /* types of tokens; 0: it has none */
    bool pools, both_ways; /* both ways: a sequence has to be in one step */
    uint32_t n_layer;      /* of the stage, as are the bytes, numbers and costs below */
    uint32_t n_kv_layer;   /* of these, layers with K and V of their own */
    uint32_t max_model_len;
    enum dtype compute_dtype; /* F32, BF16, F16 */
    enum dtype kv_dtype;      /* F32, BF16, I8 or F8_E4M3 */
    enum quantization quantization;
    uint64_t weight_bytes;   /* resident, packed */
    bool weights_mapped;     /* they are pages of the packed cache's file */
    uint64_t kv_block_bytes; /* one block of KERN_BLOCK tokens, K and V, all layers */
    uint64_t state_bytes;    /* state of a sequence that is no K and V, all layers; 0: none */
    uint64_t n_param;
    /* What computing costs, for benchmarks: multiplications and additions of one token's row in the
     * layers' matrices, of one row of logits, and of one token with one of its context; bytes of
     * matrices that a step reads however few rows it has: of experts those of one row. */
    uint64_t row_ops, logit_ops, context_ops, step_bytes;
    /* The parts of row_ops and context_ops that the CPU computes for rows alone whose logits are
     * asked for (forward/cpu_asked.h). */
    uint64_t asked_row_ops, asked_context_ops;
};
const struct model_shape *model_shape(const struct model *m);
/* Say in the log in what pages the weights are. Takes milliseconds. */
void model_log_pages(const struct model *m);
/* Packed weights, [model_shape.weight_bytes], on the CPU or the device. */
const void *model_weights(const struct model *m);
/* Counts the reloads that gave launches other addresses, or other numbers by value (scales of
 * inputs): graphs that were recorded before are wrong then. */
uint32_t model_generation(const struct model *m);
const struct model_config *model_config(const struct model *m);
/* Makes a request's vector of a row of logits, until a reload; NULL: the model gives logits. */
const struct pooler *model_pooler(const struct model *m);
bool model_takes_items(const struct model *m);   /* batch.item_rows may have some */
const char *model_plugin(const struct model *m); /* name and version of its plugin; "": none */

struct model_scratch; /* activations for batches up to the given limits */
FALLIBLE model_scratch_new(struct model_scratch **out, const struct model *m, uint32_t n_token_max,
                           uint32_t n_thread, struct q_err *e);
void model_scratch_free(struct model_scratch *s);
uint64_t model_scratch_bytes(const struct model *m, uint32_t n_token_max, uint32_t n_thread);

/* logits: [n_logit, vocab_size] f32, or NULL: they are asked for by model_logits, or the stage has
 * no head. Call from every thread of `team` (NULL when nth is 1); on return of all threads the
 * logits are complete. Allocates nothing. */
void model_forward(const struct model *m, const struct batch *b, const struct kv_cache *kv,
                   struct model_scratch *s, float *logits, struct team *team, uint32_t ith,
                   uint32_t nth);

/* After model_forward and model_logits: why a plugin (its forward pass, an operation of its own)
 * could not compute this sequence of the batch; NULL: it did. */
const char *model_failure(const struct model_scratch *s, uint32_t i_seq);

/* Rows of logits that a caller keeps at a time: a row is as large as the vocabulary, and the last
 * matrix is read again for so many. */
#define MODEL_LOGIT_ROWS 64u
struct model_logits {
    float *rows;       /* [n, vocab_size] */
    uint32_t first, n; /* of the batch's logit_rows */
};
/* Of a model whose stage has the head: some rows of logits of the step that model_forward has run
 * last in this scratch; the same bits, whichever are asked for together. Called by every thread as
 * model_forward is; on return of one thread they are complete. */
void model_logits(const struct model *m, const struct batch *b, struct model_scratch *s,
                  const struct model_logits *out, struct team *team, uint32_t ith, uint32_t nth);

/* Hidden states, for tests and distillation: when set, model_forward copies row hidden states after
 * the embedding (layer 0) and after each layer, and after the final norm (layer n_layer), into
 * out[layer] ([n_token, hidden_size] f32; NULL: not wanted). Not of a plugin's own forward pass. */
void model_scratch_tap(struct model_scratch *s, float *const *out);
/* What attention of one layer with K and V reads, for distillation: when set, model_forward copies
 * its rows, normed and rotated as they are for attention, before K and V are rounded to the cache's
 * type. Borrowed while steps run. Not of a plugin's own forward pass. */
struct model_attention_tap {
    uint32_t layer;
    float *q;     /* [n_token, n_head * head_dim] */
    float *k, *v; /* [n_token, n_kv_head * head_dim] */
};
void model_scratch_tap_attention(struct model_scratch *s, const struct model_attention_tap *t);

#endif
