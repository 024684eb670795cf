/* SPDX-License-Identifier: Apache-2.0 */
/* config_quant_internal - what the files of config_quant share. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_CONFIG_QUANT_INTERNAL_H
#define QUIRE_COMMON_HUB_CONFIG_QUANT_INTERNAL_H
#include "common/hub/config_quant.h"

#define QUANT_GROUP_MAX (1 << 20)
#define COULD_USE                                                                              \
    "use the original model, with --quantization int8 or int4 if it does not fit, or a gptq, " \
    "awq, fp8, bitsandbytes or compressed-tensors checkpoint of it"

struct quant_bits {
    const char *key;
    uint32_t accepted; /* bit b: b bits */
    const char *text;  /* these, for a message */
};
/* q->bits of a key. Errors: Q_CORRUPT, Q_UNSUPPORTED. */
FALLIBLE config_quant_bits(struct quant_config *q, const struct hub_json_at *at,
                           const struct quant_bits *b, struct q_err *e);
/* q->group_size of the key group_size. Errors: Q_CORRUPT. */
FALLIBLE config_quant_group(struct quant_config *q, const struct hub_json_at *at, struct q_err *e);
/* q->row_block and q->group_size of a key. Errors: Q_CORRUPT. */
FALLIBLE config_quant_blocks(struct quant_config *q, const struct hub_json_at *at, const char *key,
                             struct q_err *e);

/* quantization_config of quant_method compressed-tensors, and of modelopt, whose object may also be
 * that of hf_quant_config.json (config_quant_compressed.c). Errors: as config_quant_load. */
FALLIBLE config_quant_compressed(struct quant_config *q, const struct hub_json_at *at,
                                 struct q_err *e);
FALLIBLE config_quant_modelopt(struct quant_config *q, const struct hub_json_at *at,
                               struct q_err *e);
/* Of quant_method hqq (config_quant_hqq.c). Errors: as config_quant_load. */
FALLIBLE config_quant_hqq(struct quant_config *q, const struct hub_json_at *at, struct q_err *e);
/* Of quant_method torchao (config_quant_torchao.c). Errors: as config_quant_load. */
FALLIBLE config_quant_torchao(struct quant_config *q, const struct hub_json_at *at,
                              struct q_err *e);

#endif
