/* SPDX-License-Identifier: Apache-2.0 */
/* executor_device_internal - struct executor_device: the memory of a program's buffers on a device
 * (device_buffers.c), the stages (executor_device.c), those of experts (executor_device_experts.c),
 * of mixers with states (executor_device_state.c), of models that pool (executor_device_pool.c) and
 * of adapters (executor_device_lora.c). Threads: as executor_device.h. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_EXECUTOR_DEVICE_INTERNAL_H
#define QUIRE_ENGINE_MODEL_FORWARD_EXECUTOR_DEVICE_INTERNAL_H
#include "engine/model/forward/executor_device.h"
#include "engine/model/forward/matmul.h"
#include "engine/model/model_state.h"

/* Memory of one buffer, in the device: n_row rows of `stride` elements, and beside rows of bytes
 * what quant_rows and its like write with them. ROUTES: numbers of experts [n_row, n_used], then
 * their weights. */
struct device_buffer {
    unsigned char *data;
    size_t stride;          /* elements */
    struct quant_row *rows; /* NULL: no bytes */
    int16_t *sums;          /* NULL: none reads them */
    float *scales;          /* of blocks; NULL likewise */
    size_t scale_stride;
};

struct device_places { /* the rows of a step sorted by their experts, some rows at a time */
    uint32_t n_row;    /* at a time */
    uint32_t *starts;  /* [n_expert + 1] */
    uint32_t *rows;    /* [n_row * n_used] */
    uint32_t *places;  /* [n_row, n_used] */
};

struct executor_device {
    const struct model *m;
    struct region memory;
    struct device_limits limits;
    struct kern_exec x;
    struct device_buffer buffers[PROGRAM_BUFFERS_MAX];
    struct device_places places;
    /* A product's input in the order of its matrix (act-order), where nothing else puts it so; or
     * that of experts times its weights. */
    void *ordered;
    struct quant_row *ordered_rows;
    float *ordered_scales; /* of blocks */
    size_t ordered_scale_stride;
};

struct device_run { /* a step */
    const struct executor_device *d;
    const struct device_step *s;
    const struct kern_table *k;
    uint32_t first, n; /* rows that are computed now */
    bool asked;        /* of those asked for */
};

/* Give all buffers memory. Errors: Q_NO_MEMORY. */
FALLIBLE device_buffers_make(struct executor_device *d, struct q_err *e);

/* Workspace of the device that suffices for all layers. */
size_t device_workspace_bytes(const struct model *m, const struct device_limits *l);

/* The rows that are computed now of an operation's buffer. */
struct matmul_rows device_rows_of(const struct device_run *r, struct program_ref ref);
/* How many these are. */
uint32_t device_row_count(const struct device_run *r, struct program_ref ref);
/* The weight of an operation. expert: where it has one each. */
const struct packed *device_matrix(const struct device_run *r, const struct program_op *op,
                                   uint32_t expert);

/* One stage that is not of experts, of a plugin or with states. */
void device_stage(const struct device_run *r, const struct program_stage *s);
/* An operation with a state of each sequence. */
void device_state(const struct device_run *r, const struct program_op *op);
/* An RMS norm of each unit of a row. */
void device_norm_units(const struct device_run *r, const struct program_op *op);
/* Types of tokens onto the stream; the pooled rows in place of logits. */
void device_types(const struct device_run *r, const struct program_op *op);
void device_pool(const struct device_run *r, const struct program_op *op);
/* A x and B of the adapters that rows have, onto a product's output. */
void device_shrink(const struct device_run *r, const struct program_op *op);
void device_expand(const struct device_run *r, const struct program_op *op);
/* n stages from s on, which are (program_repeated), for all rows of the step. */
void device_experts(const struct device_run *r, const struct program_stage *s, uint32_t n);

#endif
