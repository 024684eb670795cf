/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.h - serve a model of your own: the C ABI between the engine and a plugin.
 *
 * A plugin is a shared object that exports quire_plugin_1 (QUIRE_PLUGIN_ENTRY). It describes
 * ARCHITECTURES: names that config.json may have under "architectures", each as a variation of a
 * built-in one. What it leaves out is the base's. It may
 *
 *     1  read other config keys, tensor names, settings of a layer    config, maps, layer
 *     2  have own tensors and change the layer program with them       tensors, program
 *     3  take inputs that are no tokens                               modalities
 *     4  bring operations of its own, with device code                operations
 *     5  compute the whole forward pass itself                        forward
 *
 * All else is the engine's: paged KV cache, continuous batching, chunked prefill, prefix cache,
 * preemption, quantization, sampling, the server. The same request gives the same bits in any batch
 * as long as callbacks keep rule 2.
 *
 * Rules for callbacks. 1. They return 0, or another number after writing error->message; they never
 * print, exit or wait. 2. A row of the output depends on that row of the input, the weights and the
 * position, never on how many rows are asked for at once. 3. Callbacks that compute allocate
 * nothing. 4. Pointers that the engine passes live until the callback returns; what a plugin's
 * structs point to lives as long as the shared object. 5. A crash in a callback is a crash of the
 * process that calls it: count_tokens and check_item in the engine, those that compute in its
 * worker. A callback that does not return ends as one that crashes. The process is restarted, and
 * the request that ends it each time ends with an error.
 *
 * Sizes are texts: a decimal number, a key of config.json (also one that only the plugin knows), or
 * a product of both: "hidden_size", "3", "num_heads * head_dim".
 * Versions: each struct that a plugin fills begins with its size, so that later versions of this
 * header may add fields behind. Another QUIRE_PLUGIN_ABI is refused when the plugin is loaded.
 * deploy/plugins/README.md is the tutorial, deploy/plugins/terra the example. */
#ifndef QUIRE_PLUGIN_H
#define QUIRE_PLUGIN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_PLUGIN_ABI   2u
#define QUIRE_PLUGIN_ENTRY quire_plugin_1 /* const struct quire_plugin *quire_plugin_1(void) */

struct quire_plugin_error {
    char message[512]; /* one sentence without newline: what is wrong, and what is accepted */
};

struct quire_model; /* a model that is being loaded, or is loaded */
struct quire_program;
struct quire_host; /* the engine's functions: below */

/* ---- 1: config and tensors ---- */

/* A key of config.json in the base's spelling. Rules apply in order, before the base reads it; its
 * model_type becomes the base's. */
struct quire_config_rule {
    const char *key;   /* the base's: "num_hidden_layers" */
    const char *from;  /* a size: "n_layers", "frames * patches"; NULL: only the default */
    const char *value; /* JSON that counts where config.json has neither; NULL: none */
};

/* A field of struct arch_layer in words: {"norm", "layer"}, {"qk_norm", "heads"}. Unknown keys and
 * values are refused with those there are. */
struct quire_setting {
    const char *key, *value;
};

/* Names of a checkpoint. The first rule whose pattern matches a tensor's whole name counts. */
enum quire_transform {
    QUIRE_AS_IS,
    /* Rows of each head from (2j, 2j + 1) pairs to halves: q and k of checkpoints for interleaved
     * rope (Mistral's own names). */
    QUIRE_UNPERMUTE_Q,
    QUIRE_UNPERMUTE_K,
    QUIRE_SKIP, /* known and not needed */
    /* The same of a tensor that holds q, k and v: of q and k alone. With QUIRE_UNPERMUTE_Q or _K of
     * such a tensor one of them is meant, too. Of quantized matrices the rule has to give all their
     * tensors (weights, scales, zeros) their names. */
    QUIRE_UNPERMUTE_QK
};
struct quire_tensor_map {
    const char *pattern; /* PCRE2 expression of the name in the checkpoint */
    /* Name in the base's table or of a tensor below, with $1 … of the pattern. Several, separated
     * by commas: the tensor is these stacked by rows (fused q, k and v; gate and up). */
    const char *name;
    enum quire_transform transform;
};

/* ---- 2: tensors and operations of its own ---- */

enum quire_tensor_kind {
    QUIRE_VECTOR, /* f32: norms, biases */
    QUIRE_TABLE,  /* rows that are looked up */
    QUIRE_MATRIX  /* packed for products; quantized as the model's other matrices */
};
/* quire_tensor.flags */
enum { QUIRE_TENSOR_OPTIONAL = 1, QUIRE_TENSOR_NOT_QUANTIZED = 2 };
struct quire_tensor {
    const char *id;   /* operations call it so */
    const char *name; /* in the checkpoint; "%u" stands for the layer's number */
    enum quire_tensor_kind kind;
    const char *rows, *cols; /* sizes; cols NULL: a vector */
    uint32_t flags;
};

struct quire_param {
    const char *name;
    double value;
};
#define QUIRE_OP_PARAMS_MAX 8u
/* An operation of the layer program: one of quire_plugin.operations, or
 *
 *     embed       out = scale * weight[token id]            scale
 *     positions   out += weight[first + (position / div) % mod]   first, div, mod
 *     norm        out = norm(in) * weight (+ bias)          eps, layer (1: LayerNorm)
 *     matmul      out = weight in (+ bias), of a tensor of the plugin
 *     add         out += scale * in                         scale
 *     activate    out = hidden_act(in)                      gated (1: gate, then up)
 *     scale       out = in times scale, in place            scale
 *     soft cap    out = cap * tanh(in / cap), in place      cap
 *
 * All but embed and positions take in_col and in_cols (columns of `in`, else all). Own operations
 * take in2_col, in2_cols and out_cols too, and read and write f32. Outputs are f32; a buffer of a
 * new name is made. */
struct quire_op {
    size_t size;
    const char *kind;     /* "positions", "norm", "matmul", "add", "scale", … */
    const char *in, *in2; /* buffers: "x" the residual stream, "ids", …, or names of its own */
    const char *out;
    const char *weight, *bias; /* ids of tensors, or weights as --program shows; NULL: none */
    struct quire_param params[QUIRE_OP_PARAMS_MAX]; /* the first without a name ends them */
};
#define QUIRE_NO_LAYER UINT32_MAX

/* ---- 3: modalities ---- */

enum quire_dtype { QUIRE_F32, QUIRE_U8, QUIRE_I32 };
#define QUIRE_DIMS_MAX 4u

struct quire_item { /* one item of a request, checked against its modality */
    uint32_t index; /* of the request's items of this modality, from 0 */
    enum quire_dtype dtype;
    uint32_t n_dim, dims[QUIRE_DIMS_MAX];
    const void *data; /* row-major, little-endian, aligned to 16 bytes */
    size_t n_byte;
    uint32_t n_token; /* rows that it becomes */
};

struct quire_rows { /* f32 */
    float *rows;    /* [n, n_col] `stride` floats apart */
    uint32_t n, n_col;
    size_t stride;
};

struct quire_modality {
    size_t size;
    const char *name; /* key of multi_modal_data: "actions" */
    /* Type of content parts in chat that are items, "action": {"type": "action", "action": [0.1,
     * 0.2, 0.3]}, one item or a list of them. Such an item has one placeholder in the rendered
     * prompt, which becomes its n_token rows. NULL: chat takes none. */
    const char *part_type;
    /* The id that stands in a prompt for each row of an item: negative (then it is no token), or a
     * token of the vocabulary. */
    int64_t placeholder;
    bool expand; /* a placeholder stands for all rows of an item, and becomes n_token of them */
    enum quire_dtype dtype;
    const char *dims[QUIRE_DIMS_MAX]; /* sizes; "" is any, from 1 to the maximum beside it */
    uint32_t n_dim;
    uint32_t dims_max[QUIRE_DIMS_MAX]; /* of dims that are ""; else not read */
    const char *n_token;               /* size; NULL: count_tokens */
    const char *max_items;             /* size: items of a request unless --limit-mm-per-prompt */
    /* Rows of an item whose shape is right: 1 … 2^20, the most for the largest item, whose data is
     * NULL. NULL with n_token. */
    uint32_t (*count_tokens)(const struct quire_model *m, const struct quire_item *item);
    /* Are its numbers as the model wants them? NULL: any are (NaN and infinity are refused). */
    int (*check_item)(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, struct quire_plugin_error *error);
    /* The rows that stand for it in place of the token embedding (when it fails, its request ends
     * with error->message, and the others go on): out->n is item->n_token,
     * out->n_col the hidden size. Called by one thread, for several items at once by several. */
    int (*embed_item)(const struct quire_host *host, const struct quire_model *m,
                      const struct quire_item *item, const struct quire_rows *out,
                      struct quire_plugin_error *error);
    /* Bytes of work memory that host->scratch gives embed_item at most, by the largest item's shape
     * (its data is NULL). NULL: none. */
    size_t (*scratch_bytes)(const struct quire_model *m, const struct quire_item *largest);
};

/* ---- 4: operations of its own ---- */

struct quire_op_call { /* rows first … first + n - 1 of the step */
    const float *in, *in2;
    float *out;                               /* may be in */
    size_t in_stride, in2_stride, out_stride; /* floats */
    uint32_t n_row, in_cols, in2_cols, out_cols;
    const uint32_t *token_ids, *positions; /* [n_row]; NULL behind the final norm */
    const float *weight, *bias;            /* VECTOR or TABLE, f32; NULL: none */
    const double *params;                  /* in the order of quire_operation.params */
    void *stream; /* launch: CUDA's stream; all pointers are the device's then */
};
struct quire_operation {
    size_t size;
    const char *name;
    const char *params[QUIRE_OP_PARAMS_MAX]; /* names that quire_op.params may have */
    /* The reference: a thread's rows on the CPU. When it fails, the step is computed again for each
     * sequence by itself: the requests of those that fail end with error->message. */
    int (*run)(const struct quire_op_call *call, struct quire_plugin_error *error);
    /* The same on a device, as a launch that a CUDA graph may capture; NULL: the model is refused
     * there by the operation's name. It sees pointers and no values, so it fails only when it
     * cannot launch: at the start that is the engine's error; in a step all requests of that step
     * end with error->message, and the engine goes on. */
    int (*launch)(const struct quire_op_call *call, struct quire_plugin_error *error);
};

/* ---- 5: a forward pass of its own ---- */

struct quire_sequence {  /* of a step */
    uint32_t row, n_row; /* its rows */
    uint32_t start;      /* position of the first; so many positions are in the KV cache */
};
struct quire_step {
    const struct quire_host *host;
    const struct quire_model *model;
    uint32_t n_row, n_seq, n_logit;
    const uint32_t *token_ids, *positions;  /* [n_row]; an item's rows have token id 0 */
    const float *const *item_rows;          /* [n_row] NULL: a token; NULL: no items in this step */
    const struct quire_sequence *sequences; /* [n_seq] */
    const uint32_t *logit_rows;             /* [n_logit] */
    float *logits;                          /* [n_logit, vocab_size] */
    uint32_t ith, nth; /* this thread of those that all call forward with the same step */
};

/* ---- the engine's functions ---- */

struct quire_host {
    size_t size;
    const char *version; /* "0.1.0" */
    /* config.json, with rules applied. false: it has no such key, or of another type. Keys of
     * objects within are joined by dots. */
    bool (*config_number)(const struct quire_model *m, const char *key, double *out);
    bool (*config_text)(const struct quire_model *m, const char *key, const char **out);
    void (*log)(const char *text); /* a line at level info, with the plugin's name */

    /* In quire_architecture.program. Behind the first operation with that name in the layer
     * (QUIRE_NO_LAYER: outside of layers); "": before its first operation. Names as --program
     * prints, "matmul", with the weight, "matmul down", or the second one, "add#2". Behind "embed"
     * rows of items are in their places. */
    int (*insert_after)(struct quire_program *p, uint32_t layer, const char *name,
                        const struct quire_op *op, struct quire_plugin_error *error);
    int (*remove)(struct quire_program *p, uint32_t layer, const char *name,
                  struct quire_plugin_error *error);
    uint32_t (*n_layer)(const struct quire_model *m);
    const struct quire_model *(*program_model)(const struct quire_program *p);

    /* Arithmetic on rows, for embed_item: by the CPU's kernels, on the calling thread, with bits
     * that do not depend on n. Tensors by id. 0, or another number and error when there is no such
     * tensor or shapes differ. A bias that is NULL, or optional and absent, is none. Of a model on
     * a device, tensors that the program does not read stay on the host, for items; those that it
     * reads are not to be had here. */
    int (*linear)(const struct quire_model *m, const char *matrix, const char *bias,
                  const struct quire_rows *in, const struct quire_rows *out,
                  struct quire_plugin_error *error);
    int (*layer_norm)(const struct quire_model *m, const char *weight, const char *bias, double eps,
                      const struct quire_rows *rows, struct quire_plugin_error *error);
    int (*rms_norm)(const struct quire_model *m, const char *weight, double eps,
                    const struct quire_rows *rows, struct quire_plugin_error *error);
    int (*activate)(const char *activation, const struct quire_rows *rows,
                    struct quire_plugin_error *error); /* "silu", "gelu", … as hidden_act */
    /* softmax(q k^T scale) v of one head, all rows seeing all rows; rows are head_dim wide. The
     * memory from out's first row to its last holds nothing of q, k and v. */
    int (*attend)(const struct quire_rows *q, const struct quire_rows *k,
                  const struct quire_rows *v, double scale, const struct quire_rows *out,
                  struct quire_plugin_error *error);
    const float *(*tensor)(const struct quire_model *m, const char *id, uint32_t layer,
                           uint32_t *n_row, uint32_t *n_col); /* VECTOR or TABLE as f32; NULL */
    void *(*scratch)(const struct quire_model *m); /* of the calling thread: scratch_bytes */

    /* For forward: all threads of a step call these in the same order with their own step->ith, and
     * fail alike. Rows are of the whole step. A function returns when this thread has done its
     * share; barrier waits for the others. Weights by id, the plugin's or the family's ("qkv",
     * "attn_norm", …: --program); a product adds the vector "<id>.bias" where there is one, and
     * that of "gate_up" is the gated one. */
    void (*barrier)(const struct quire_step *s);
    int (*step_embed)(const struct quire_step *s, const struct quire_rows *out,
                      struct quire_plugin_error *error);
    int (*step_linear)(const struct quire_step *s, const char *matrix, uint32_t layer,
                       const struct quire_rows *in, const struct quire_rows *out,
                       struct quire_plugin_error *error);
    int (*step_rms_norm)(const struct quire_step *s, const char *weight, uint32_t layer,
                         const struct quire_rows *in, const struct quire_rows *out,
                         struct quire_plugin_error *error);
    int (*step_rope)(const struct quire_step *s, uint32_t n_head, const struct quire_rows *rows,
                     struct quire_plugin_error *error);
    /* k and v into the layer's cache, then causal attention of q over it. */
    int (*step_attention)(const struct quire_step *s, uint32_t layer, const struct quire_rows *qkv,
                          const struct quire_rows *out, struct quire_plugin_error *error);
    /* [n_row, n_col] of quire_architecture.buffers[i], the same for all threads. */
    float *(*step_buffer)(const struct quire_step *s, uint32_t i);
};

/* ---- what a plugin gives ---- */

#define QUIRE_BUFFERS_MAX 16u
struct quire_architecture {
    size_t size;
    const char *name;                       /* "LlamaActionForCausalLM" */
    const char *base;                       /* "LlamaForCausalLM" */
    const struct quire_config_rule *config; /* [n_config] */
    uint32_t n_config;
    const struct quire_setting *layer; /* [n_layer] */
    uint32_t n_layer;
    const struct quire_tensor_map *maps; /* [n_map] */
    uint32_t n_map;
    const struct quire_tensor *tensors; /* [n_tensor] */
    uint32_t n_tensor;
    const struct quire_modality *const *modalities; /* [n_modality] */
    uint32_t n_modality;
    /* Is the config one that the plugin serves? NULL: any that the base takes. */
    int (*check)(const struct quire_host *host, const struct quire_model *m,
                 struct quire_plugin_error *error);
    /* Changes the base's program before it is fused and checked. NULL: none. */
    int (*program)(const struct quire_host *host, struct quire_program *p,
                   struct quire_plugin_error *error);
    /* Computes a step in place of the program, on the CPU. NULL: the program runs. A step that
     * fails is computed again for each sequence by itself: the requests of those that fail end with
     * error->message. The engine keeps logits of a whole step for it. */
    int (*forward)(const struct quire_step *s, struct quire_plugin_error *error);
    const char *buffers[QUIRE_BUFFERS_MAX]; /* of step_buffer: sizes, columns of each; NULL ends */
};

struct quire_plugin {
    size_t size;
    uint32_t abi;                                          /* QUIRE_PLUGIN_ABI */
    const char *name;                                      /* for logs and errors: "terra" */
    const char *version;                                   /* of the plugin: "1.0" */
    const struct quire_architecture *const *architectures; /* [n_architecture] */
    uint32_t n_architecture;
    const struct quire_operation *const *operations; /* [n_operation] */
    uint32_t n_operation;
};
#ifndef QUIRE_NO_PLUGIN_ENTRY
__attribute__((visibility("default"))) const struct quire_plugin *quire_plugin_1(void);
#endif

#ifdef __cplusplus
}
#endif
#endif
