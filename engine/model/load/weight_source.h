/* SPDX-License-Identifier: Apache-2.0 */
/* weight_source - where one slot's numbers come from: a tensor of floats, several that hold it as
 * integers, rows of one that holds more, or dummy numbers. Threads: values; pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_SOURCE_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_SOURCE_H
#include <string.h>
#include "common/hub/safetensors.h"
#include "engine/model/arch.h"
#include "engine/model/load/weight_names.h"
#include "engine/model/pipeline_stage.h"

/* How QUANT_FP4's matrices are stored: numbers, scales. */
enum quant_float { QUANT_NVFP4, QUANT_MXFP4_PACKED, QUANT_MXFP8, QUANT_E4M3 };

struct quant_tensors { /* a matrix stored as integers; layouts: weight_quant.h */
    enum quant_method method;
    uint32_t bits, group, n_group;
    uint32_t row_block;                          /* fp8, int8: outputs that share their scales */
    const struct tensor *q;                      /* NULL: the matrix is not stored so */
    const struct tensor *scales, *zeros, *order; /* zeros, order: NULL where there are none */
    bool needs_zeros;
    bool is_even;         /* with an order: each group has `group` inputs */
    uint32_t zero_offset; /* what a stored zero is less than it stands for */
    uint32_t per_word; /* integers in an int32 that has bits left over; 0: they go on in the next */
    bool has_x_scale;  /* fp8: the checkpoint has a scale for its inputs … */
    float x_scale;     /* … and this is it; 0: each row of inputs has its own */
    bool is_made;      /* no kernel reads it: it becomes floats, or what is made of these */
    bool is_torchao;   /* its tensors have torchao's names */
    bool tiled;        /* QUANT_TORCHAO: in tiles; scales and zeros are one tensor */
    enum quant_float kind; /* QUANT_FP4 */
    float whole_scale;     /* QUANT_FP4: of all groups */
    bool divides;          /* their scales are divided by it, not multiplied */
    /* QUANT_BNB4: the numbers that codes stand for, [16]; where `scales` are codes as well, of
     * `nested.group` with a scale: the numbers that these stand for, [256], and what is added. */
    const struct tensor *codes;
    struct {
        const struct tensor *scales, *codes;
        uint32_t group;
        float offset;
    } nested;
};

/* Rows of a tensor that holds several slots (W_QKV, W_QKV_HEADS, W_GATE_UP …): row r of the source
 * is row first + r / block * stride + r % block of the tensor, or of an expert's part of it. */
struct weight_slice {
    uint32_t first, block, stride; /* block 0: the source is the whole tensor */
    /* Above 0: of each head of so many rows of the source, pairs (2j, 2j + 1) are stored that stand
     * for the halves' (j, j + pairs / 2). */
    uint32_t pairs;
};

/* Heads that a tensor has with `stored` of `head` elements, the others of which are 0: they are its
 * rows, or its columns. */
struct weight_pad {
    uint32_t head, stored; /* head 0: it has all */
    bool of_cols;
};

struct weight_source { /* where one slot's numbers come from */
    bool present;
    const struct arch_tensor *spec; /* the family's; NULL where it is not present */
    struct arch_place place;        /* of its name */
    const struct tensor *tensor;    /* NULL: dummy numbers, or `quant` */
    enum dtype dtype;               /* of the source */
    uint32_t rows, cols;            /* cols 1 for vectors */
    struct weight_slice slice;
    uint32_t stored_rows; /* of the tensor, or of an expert's part: `rows`, unless it is a slice */
    bool transposed;      /* the tensor is [cols, stored_rows] */
    bool stacked;         /* the tensor has [stored_rows, cols] of each expert, one after the other;
                             rows are those of the expert `place.expert` */
    /* Above 1, of a vector: it is so many tensors, one a head, of which `tensor` is the first. */
    uint32_t n_head;
    const struct tensor_set *files; /* with heads: the others */
    bool unit;                      /* its rows are divided by their lengths */
    const struct tensor *by;        /* a number for each row, which it is multiplied by, or NULL */
    struct weight_pad pad;          /* rows and cols are those of whole heads */
    float plus;                     /* what its numbers are stored less than they stand for */
    double fade;                    /* ARCH_RATES: the layer's factor of rates */
    uint32_t seed;                  /* of dummy numbers: differs from tensor to tensor */
    struct quant_tensors quant;     /* instead of `tensor` */
};

struct weight_finder {
    const struct arch *arch;
    const struct model_config *config;
    const struct tensor_set *files; /* NULL: dummy */
    enum dtype dummy_dtype;
    bool is_mapped; /* names are those that a plugin's maps give */
    enum weight_names names;
    struct pipeline_stage stage; /* other tensors of the model are not looked for */
};

/* The name in the files. */
static inline void weight_finder_name(char out[ARCH_NAME_MAX], const struct weight_finder *f,
                                      const struct arch_tensor *t, struct arch_place at)
{
    char pattern[ARCH_NAME_MAX];
    weight_names_pattern(pattern, f->names, f->arch, t->name);
    arch_tensor_name(out, pattern, at);
}

/* Numbers of the tensor before those of the source's expert. */
static inline size_t weight_source_first(const struct weight_source *s)
{
    return s->stacked ? (size_t)s->place.expert * s->stored_rows * s->cols : 0;
}

/* Are its rows where the tensor has them, as they are? */
static inline bool weight_source_has_rows(const struct weight_source *s)
{
    return s->tensor && !s->transposed && !s->unit && !s->by && !s->pad.head;
}

/* The tensor's row that is row r. */
static inline uint32_t weight_source_row(const struct weight_source *s, uint32_t r)
{
    const struct weight_slice *v = &s->slice;
    if (v->pairs) {
        const uint32_t in_head = r % v->pairs, half = v->pairs / 2;
        r = r - in_head + in_head % half * 2 + in_head / half;
    }
    return v->block ? v->first + r / v->block * v->stride + r % v->block : r;
}

/* Rows of the tensor from one of the source's to the next, in a run. Rows that are the tensor's
 * columns are read together, also where those of two sources alternate. */
static inline uint32_t weight_source_step(const struct weight_source *s)
{
    return s->tensor && s->transposed && s->slice.block == 1 ? s->slice.stride : 1;
}

/* Rows from r on, r among them, that are neighbours in the tensor, or a step apart. */
static inline uint32_t weight_source_run(const struct weight_source *s, uint32_t r)
{
    if (s->slice.pairs)
        return 1;
    if (weight_source_step(s) > 1)
        return s->rows - r;
    return s->slice.block ? s->slice.block - r % s->slice.block : s->rows - r;
}

/* The source's tensor; NULL: dummy numbers. */
static inline const struct tensor *weight_source_tensor(const struct weight_source *s)
{
    return s->quant.q ? s->quant.q : s->tensor;
}

/* Does the checkpoint hold integers or small floats and scales beside them? Not so: blocks of a
 * GGUF file, whose scales are in the block. */
static inline bool weight_source_is_scaled(const struct weight_source *s)
{
    return s->quant.q && s->quant.method != QUANT_GGUF;
}

/* With heads: the tensor of one, which the finder has found. */
const struct tensor *weight_source_head(const struct weight_source *s, uint32_t head);
/* Number i of a vector that no checkpoint has (arch.h). Rates: of head i of n,
 * ln(2^(-8 (i + 1) / n) * fade). Source: arXiv:2307.14995. */
float weight_source_made(const struct weight_source *s, uint32_t i);
/* The tensor's name as the family has it. */
const char *weight_source_name(char buffer[ARCH_NAME_MAX], const struct weight_source *s);

#endif
