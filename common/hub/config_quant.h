/* SPDX-License-Identifier: Apache-2.0 */
/* config_quant - config.json's quantization_config: how a checkpoint's matrices are stored when
 * they are integers with scales. Which matrices are, the tensors say; their layouts are pictured in
 * engine/model/load/weight_quant.h. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_CONFIG_QUANT_H
#define QUIRE_COMMON_HUB_CONFIG_QUANT_H
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/hub/hub_json.h"

enum quant_method {
    QUANT_NONE,
    QUANT_GPTQ,
    QUANT_AWQ,      /* "gemm" */
    QUANT_AWQ_ROWS, /* "gemv": output by output */
    QUANT_PACKED,   /* compressed-tensors pack-quantized: several weights in an int32 */
    QUANT_INT8,     /* compressed-tensors int-quantized, torchao: int8, one scale for each output */
    QUANT_INTX,     /* the same: integers of 1 to 8 bits in int8, in groups, with zero points */
    QUANT_TORCHAO,  /* torchao int4 with zeros that are floats; others of torchao's beside it */
    QUANT_MXFP4,    /* e2m1 in blocks of 32 with a power of two each: gpt-oss's experts */
    QUANT_FP8,  /* fp8, fbgemm_fp8, modelopt, torchao, compressed-tensors float-quantized: e4m3 */
    QUANT_GGUF, /* blocks of a GGUF file; 4 bits: of Q4_0, 0: they stand for floats */
    QUANT_FP4,  /* modelopt, compressed-tensors nvfp4, mxfp4: e2m1, and e4m3, as tensors say */
    QUANT_BNB4, /* bitsandbytes nf4 and fp4: codes of 4 bits, scales of blocks */
    QUANT_BNB8, /* bitsandbytes LLM.int8: int8, one scale for each output */
    QUANT_HQQ,  /* integers of 2 to 8 bits in groups of inputs, with zero points that are floats */
    QUANT_COUNT
};

struct quant_config {
    enum quant_method method;
    uint32_t bits;       /* 2 to 8; of QUANT_GGUF 4 or 0 */
    uint32_t group_size; /* inputs that share a scale; 0 = all inputs of an output */
    uint32_t row_block;  /* fp8: outputs that share a scale; 0 = given by the tensors */
    bool zeros_less_one; /* GPTQ's first format stores zero points minus one */
    bool symmetric;      /* compressed-tensors: no zero points */
    bool dynamic_inputs; /* fp8: each row of inputs has a scale of its own, whatever tensors say */
    bool is_torchao;     /* quant_method torchao: tensors have its names */
    uint8_t group_bits;  /* int8, intx: most bits of integers in groups of inputs, and of those */
    uint8_t whole_bits;  /* of whole outputs; 0: there are none */
    bool by_tensor;      /* matrices differ: their tensors say bits, groups and zero points; bits
                            is 4 then, the fewest that the kernels have */
};

/* Fills *q from the key quantization_config (or compression_config) of at->object; QUANT_NONE where
 * there is none. Errors: Q_CORRUPT, Q_UNSUPPORTED (the method, format or number by name, and what
 * is accepted). */
FALLIBLE config_quant_load(struct quant_config *q, const struct hub_json_at *at, struct q_err *e);
/* text: a folder's config.json, to which the quantization of a file beside it is added where it has
 * none: hf_quant_config.json, quantize_config.json or quant_config.json. Errors: Q_CORRUPT (file,
 * found, expected), Q_IO, Q_NO_MEMORY. */
FALLIBLE config_quant_add_file(struct buf *text, const char *dir, const char *config_path,
                               struct q_err *e);
/* "gptq", "awq", "compressed-tensors", "torchao", "mxfp4", "fp8", "gguf", "fp4", "bitsandbytes",
 * "hqq"; "" for QUANT_NONE. */
const char *quant_method_name(enum quant_method m);
/* The same of a checkpoint, whose integers and fp8 are torchao's where it says so. */
const char *quant_config_name(const struct quant_config *q);
/* Are its matrices multiplied as floats (which they become while they are packed, where no kernel
 * reads them), or what --quantization makes of these? */
bool quant_config_becomes_floats(const struct quant_config *q);

#endif
