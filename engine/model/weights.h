/* SPDX-License-Identifier: Apache-2.0 */
/* weights - a checkpoint's tensors, checked, packed for the kernels and laid out in one region.
 *
 *     model.layers.N.self_attn.{q,k,v}_proj.weight  -->  qkv      one matrix, q then k then v
 *     model.layers.N.mlp.{gate,up}_proj.weight      -->  gate_up  one matrix, by turns (ops.h)
 *     model.layers.N.mlp.gate.weight                -->  router   floats, whatever the experts are;
 *                                                        behind it shared_expert_gate
 *     model.layers.N.mlp.experts.E.{gate,up}_proj   -->  gate_up of expert E, as above; its down
 *     norms and biases                              -->  f32 vectors
 *     embedding                                     -->  its rows are read out of the packed
 *                                                        lm_head when that is the same numbers,
 *                                                        else where the file is mapped
 *
 * Matrices keep the checkpoint's 16-bit type where that loses nothing (weights_dtype). Internal to
 * engine/model. Threads: weights_load by one (it runs the team); loaded weights are only read. */
#ifndef QUIRE_ENGINE_MODEL_WEIGHTS_H
#define QUIRE_ENGINE_MODEL_WEIGHTS_H
#include "common/buf.h"
#include "common/hub/safetensors.h"
#include "engine/model/arch.h"
#include "engine/model/model.h"
#include "engine/model/region.h"
#include "engine/model/upload.h"

struct expert_weights {
    struct packed gate_up, down;
};

struct layer_weights {
    const float *attn_norm, *mlp_norm; /* [hidden] */
    const float *q_norm, *k_norm;      /* [head_dim] or NULL */
    struct packed qkv, out, gate_up, down;
    struct packed
        router; /* [n_expert, hidden], of layers with experts; [n_expert + 1] with a shared
                             one, how much of which a row takes is the last */
    struct expert_weights
        *experts; /* [n_expert], then gate_up and down are those of the shared one,
                                       or not there; or NULL */
    const float *qkv_bias, *out_bias, *gate_up_bias, *down_bias; /* [n_out] or NULL = none */
};

struct weights {
    const void *embed; /* [vocab, hidden], in `files` or in `memory` */
    enum dtype embed_dtype;
    bool embed_packed;       /* it is lm_head's data */
    const float *final_norm; /* [hidden] */
    struct packed lm_head;
    struct layer_weights *layers; /* [n_layer] */
    uint32_t n_layer, n_expert;
    struct expert_weights *experts; /* [n_layer, n_expert]; unused where a layer has none */
    uint64_t n_param;
    struct region memory;
    struct cache_writer *writer; /* while the memory is being written to the packed cache */
    struct tensor_set *files;    /* NULL for dummy weights */
};

/* `o->dtype` is already decided (o->dtype_auto is not looked at). Errors: as model_load. */
FALLIBLE weights_load(struct weights *w, const struct arch *arch, const struct model_config *c,
                      const struct model_options *o, struct q_err *e);
/* Other numbers of the same shapes, from o->weights_dir: into the memory of the old ones where the
 * packed types are the same and the memory is not a file's, else beside them, which go then. On an
 * error `w` is as it was. Nobody may compute with `w` meanwhile. Errors: as model_load. */
FALLIBLE weights_reload(struct weights *w, const struct arch *arch, const struct model_config *c,
                        const struct model_options *o, struct q_err *e);
/* Are all tensors there, with the right shapes? Headers only. Errors: as model_load. */
FALLIBLE weights_check(const struct arch *arch, const struct model_config *c,
                       const struct model_options *o, struct q_err *e);
void weights_release(struct weights *w);
/* Packed, padding and scales included; as `link` packs when it is not NULL. */
size_t weights_matrix_bytes(const struct packed *w, const struct device_link *link);

/* --- finding (weights_find.c) --- */
struct quant_tensors { /* a matrix stored as integers; layouts: weights_quant.h */
    enum quant_method method;
    uint32_t bits, group, n_group;
    uint32_t row_block;                          /* fp8: outputs that share their scales */
    const struct tensor *q;                      /* NULL: the matrix is not stored so */
    const struct tensor *scales, *zeros, *order; /* zeros, order: NULL where there are none */
    bool needs_zeros;
    bool is_even;         /* with an order: each group has `group` inputs */
    uint32_t zero_offset; /* what a stored zero is less than it stands for */
    bool input_scale;     /* fp8: the checkpoint has one for its activations, which is not used */
};
struct weight_source { /* where one slot's numbers come from */
    bool present;
    const struct tensor *tensor; /* NULL: dummy numbers */
    enum dtype dtype;            /* of the source */
    uint32_t rows, cols;         /* cols 1 for vectors */
    uint32_t seed;               /* of dummy numbers: differs from tensor to tensor */
    struct quant_tensors quant;  /* instead of `tensor` */
};
struct weight_finder {
    const struct arch *arch;
    const struct model_config *config;
    const struct tensor_set *files; /* NULL: dummy */
    enum dtype dummy_dtype;
};
#define WEIGHTS_GLOBAL UINT32_MAX
/* sources: [W_COUNT]. layer: a number, or WEIGHTS_GLOBAL for embedding, final norm and lm_head.
 * Errors: Q_NOT_FOUND, Q_MISMATCH (file, tensor, expected and found). */
FALLIBLE weights_find(struct weight_source *sources, const struct weight_finder *f, uint32_t layer,
                      struct q_err *e);
/* The same of one expert of a layer that has experts. */
FALLIBLE weights_find_expert(struct weight_source *sources, const struct weight_finder *f,
                             struct arch_place at, struct q_err *e);
/* Log one warning when the files hold tensors that the family's table does not know. */
void weights_warn_extra(const struct weight_finder *f);

/* --- planning (weights_plan.c) --- */
/* Errors: Q_NO_MEMORY. */
FALLIBLE weights_plan_probe(struct buf *plan, const struct weights *w,
                            const struct kern_table *kern, struct q_err *e);
void weights_plan_matrix(struct buf *plan, const struct packed *p, size_t at);

/* --- filling (weights_fill.c) --- */
#define WEIGHT_PARTS_MAX 3 /* q, k, v */
struct weight_matrix {     /* to be packed: outputs of all parts, one after the other */
    struct packed dst;
    struct weight_source parts[WEIGHT_PARTS_MAX];
    uint32_t n_part;
};
struct weight_filler {
    const struct kern_table *kern;
    struct team *team;
    struct upload *upload; /* to a device; NULL: the CPU's memory is filled */
    struct region buffer;  /* rows that are made on their way into panels, one part a thread; on a
                              device those that are put into an order, and a part for that */
    uint32_t n_thread;
    size_t part_bytes;
    bool by_owner; /* each thread packs what it will read, for machines whose memory is not all
                      equally near */
    void (*progress)(void *ctx, uint64_t bytes_done); /* of these sources; may be NULL */
    void *progress_ctx;
};
/* Pack all matrices with all threads. */
void weights_fill(const struct weight_filler *f, const struct weight_matrix *m, uint32_t n);
/* `one`: dummy numbers are 1 (norms) instead of small. */
void weights_fill_vector(float *dst, const struct weight_source *s, bool one);
/* Into every other turn of `dst` (gated weights, ops.h). */
void weights_fill_turns(float *dst, const struct weight_source *s);
/* Row-major dummy table (the embedding): s->rows rows of it, from `first` on. */
void weights_fill_table(const struct weight_filler *f, void *dst, enum dtype dtype,
                        const struct weight_source *s, uint32_t first);

/* --- filling a device's memory (weights_upload.c); f->upload is set --- */
void weights_upload(const struct weight_filler *f, const struct weight_matrix *m, uint32_t n);
void weights_upload_vector(const struct weight_filler *f, float *dst, const struct weight_source *s,
                           bool one);
/* Outputs that a thread puts into an order of inputs at a time: so many bytes an input are enough
 * for the order too. */
#define WEIGHTS_ORDERED 16u
/* The order of a matrix's inputs (struct packed). */
void weights_upload_order(const struct weight_filler *f, uint32_t *dst,
                          const struct weight_source *s);
/* Biases of gated weights, n with those that no part has. */
void weights_upload_turns(const struct weight_filler *f, float *dst,
                          const struct weight_source *const parts[2], uint32_t n);
/* Do both travel in the same form into a matrix like w? Then they can be its gate and up. */
bool weights_upload_alike(const struct packed *w, const struct weight_source *a,
                          const struct weight_source *b);
void weights_upload_table(const struct weight_filler *f, void *dst, const struct weight_source *s);
/* Rows from … of a source that is no tensor, n of them, as f32. */
void weights_make_rows(float *rows, const struct weight_source *s, uint32_t from, uint32_t n);

#endif
