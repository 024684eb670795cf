/* SPDX-License-Identifier: Apache-2.0 */
/* load_plan - what becomes of a checkpoint: one row for everything that a loaded model has.
 *
 *     list       each line of load_dests.def, for the model, each layer and each expert, becomes a
 *                row: its sources (checked), its form and why, its place, its bytes
 *     allocate   weights.c: a region of n_bytes, or one from the packed cache, whose key is the
 *                rows' text
 *     fill       fill.h: every row with a place in the region, by all threads
 *     report     load_plan_log and load_plan_text count and print the rows
 *
 * A row is listed once and not changed afterwards, but for load_plan_place, which says where the
 * memory is. What distinguishes one matrix from another is a column: several sources are stacked
 * (q, k, v) or interleaved (gate, up); stored integers keep an order of inputs (act-order) or
 * scales of blocks (fp8); numbers are the embedding's (tied); data lies in the region, where the
 * file is mapped, or with another row.
 *
 * No tensor's numbers are read, but scales and orders. Threads: one makes it; then it is read. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_LOAD_PLAN_H
#define QUIRE_ENGINE_MODEL_LOAD_LOAD_PLAN_H
#include "common/buf.h"
#include "engine/model/load/load_form.h"
#include "kernels/kern.h"

enum load_dest {
#define DEST(name, of, member, kind, join, role, when, ...) DEST_##name,
#include "engine/model/load/load_dests.def"
    DEST_COUNT
};
enum load_owner { OF_MODEL, OF_LAYER, OF_EXPERT }; /* which has the destination */
enum load_kind { KIND_MATRIX, KIND_TABLE, KIND_NORM, KIND_VECTOR, KIND_BIAS };
enum load_place {
    PLACE_REGION, /* at `at` of the region */
    PLACE_HOST,   /* the same of the host's, beside a device's */
    PLACE_FILE,   /* where its tensor is mapped */
    PLACE_SHARED  /* it is the data of the row that it is tied to: embedding and lm_head */
};

#define DEST_OWN DEST_COUNT /* load_row.own says which */

struct load_row {
    enum load_dest dest;
    const struct arch_own *own; /* a plugin's tensor; NULL: none */
    struct arch_place of;       /* its layer and expert, where it is of one */
    enum load_kind kind;
    enum load_place place;
    uint32_t i_source, n_source; /* load_plan_sources */
    enum load_why why;           /* of dtype, group and blocks below */
    /* As the kernels see it: outputs (rows of a table, length of a vector), inputs, dtype, group,
     * gated (interleaved, of a bias too), blocks, x_scale. load_plan_place sets data and order. */
    struct packed form;
    struct shard_outputs part; /* of a matrix: the outputs that are packed, all or a rank's */
    bool ordered;              /* the order of its inputs lies at order_at, n_in uint32 */
    bool tied;                 /* its sources are the embedding's, which are counted there */
    size_t order_at, at;       /* bytes into the region */
    size_t bytes;              /* of it in the region, without the order; 0 in another place */
};

struct load_plan {
    struct load_row *rows; /* [n_row] in the order of their places */
    size_t n_row, row_cap;
    struct weight_source *sources; /* of all rows */
    size_t n_source, source_cap;
    size_t n_bytes;              /* of the region */
    size_t n_host_bytes;         /* of that of PLACE_HOST */
    uint64_t n_param;            /* numbers of the checkpoint */
    uint32_t n_in_max;           /* longest row of a source */
    uint32_t n_unused;           /* tensors of the files that no row reads … */
    const struct tensor *unused; /* … and the first of them; NULL: none */
    struct tensor table;         /* a dummy embedding, of which a tied lm_head is made */
    const struct arch *arch;
    const struct tensor_set *files; /* borrowed; NULL: dummy numbers */
};

/* `f` is used here; tensors stay borrowed. Errors: Q_NOT_FOUND, Q_MISMATCH, Q_CORRUPT (file,
 * tensor, expected and found), Q_UNSUPPORTED, Q_NO_MEMORY. */
FALLIBLE load_plan_new(struct load_plan **out, const struct weight_finder *f,
                       const struct load_options *o, struct q_err *e);
void load_plan_free(struct load_plan *p);
/* [n_source]; with a bias or interleaved parts those that are not `present` are zeros. */
const struct weight_source *load_plan_sources(const struct load_plan *p, const struct load_row *r);
/* The region is at `base`: sets data and order of every row. */
void load_plan_place(struct load_plan *p, unsigned char *base);
/* The same of rows of PLACE_HOST. */
void load_plan_place_host(struct load_plan *p, unsigned char *base);
/* Does all of both lie in the same way, so that one can be packed over the other? */
bool load_plan_same_layout(const struct load_plan *a, const struct load_plan *b);
/* Of two that do: are scales of matrices' inputs the same, which launches take by value? */
bool load_plan_same_scales(const struct load_plan *a, const struct load_plan *b);

/* ---- rows in words (load_plan_print.c) ---- */
#define LOAD_NAME_MAX 96u
/* "layers.3.experts.7.gate_up" */
void load_row_name(char out[LOAD_NAME_MAX], const struct load_row *r);
#define LOAD_FORM_MAX 128u
/* "int4 in groups of 128, interleaved, act-order" */
void load_row_form(char out[LOAD_FORM_MAX], const struct load_row *r);
/* Which files, every row with its sources, then what they come to, by form and reason. */
void load_plan_text(struct buf *out, const struct load_plan *p);
void load_plan_json(struct buf *out, const struct load_plan *p);
/* The totals alone: lines, and an array. */
void load_plan_sums_text(struct buf *out, const struct load_plan *p);
void load_plan_sums_json(struct buf *out, const struct load_plan *p);
const char *load_plan_format(const struct load_plan *p); /* as --load-format has it */

/* ---- what the rows come to, in the log (load_plan_log.c) ---- */
void load_plan_log(const struct load_plan *p, const struct load_options *o,
                   const struct quant_config *stored);

#endif
