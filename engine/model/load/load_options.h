/* SPDX-License-Identifier: Apache-2.0 */
/* load_options - what the loader of weights is asked for, with nothing left to decide: model_load.c
 * makes it of struct model_options and config.json. Threads: values. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_LOAD_OPTIONS_H
#define QUIRE_ENGINE_MODEL_LOAD_LOAD_OPTIONS_H
#include "common/dtype.h"
#include "common/hub/weight_files.h"
#include "common/team.h"
#include "engine/model/model_shard.h"
#include "engine/model/pipeline_stage.h"
#include "kernels/device.h"

enum load_format { LOAD_AUTO, LOAD_SAFETENSORS, LOAD_PT, LOAD_MISTRAL, LOAD_GGUF, LOAD_DUMMY };
enum quantization { QUANTIZE_NOT, QUANTIZE_INT8, QUANTIZE_INT4, QUANTIZE_FP8 };

struct load_options {
    const char *dir;                    /* folder of the tensors; borrowed */
    enum load_format format;            /* LOAD_DUMMY: seeded random numbers, no file is read */
    enum dtype dtype;                   /* F32, BF16 or F16: what products are computed in */
    enum quantization quantization;     /* of every matrix that may be */
    struct pipeline_stage stage;        /* whose tensors are read */
    struct model_shard shard;           /* whose panels of matrices are packed, on the CPU */
    const char *packed_cache;           /* folder (packed_cache.h); NULL: none; borrowed */
    const struct kern_table *kern;      /* borrowed */
    struct team *team;                  /* packs in parallel; NULL: one thread; borrowed */
    uint64_t memory_bytes;              /* that packed weights may take on the CPU; 0: not known */
    const struct device_link *device;   /* where the weights lie; NULL: the CPU; borrowed */
    bool gate_up_apart;                 /* gate and up are stacked, but those of experts */
    enum kern_act gate_act;             /* of gated products; on a device another one than silu has
                                           gate and up stacked, also of experts */
    const struct kern_table *host_kern; /* the CPU's, also with a device */
    /* [CONFIG_OWN_MAX / 64] a bit for each tensor of a plugin that the program reads; of a model on
     * a device the others stay on the host. NULL: all are read. */
    const uint64_t *own_read;
    void (*progress)(void *ctx, uint64_t bytes_done, uint64_t bytes_total); /* may be NULL */
    void *progress_ctx;
};

/* The files that are read; WEIGHTS_AUTO for LOAD_DUMMY, which reads none. */
enum weight_format load_format_files(enum load_format f);
/* "int8", "int4", "fp8"; "" for QUANTIZE_NOT. */
const char *quantization_name(enum quantization q);

#endif
