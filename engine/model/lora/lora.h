/* SPDX-License-Identifier: Apache-2.0 */
/* lora - low-rank adapters (LoRA) of a model: read from PEFT folders (common/hub/adapter.h), and
 * the rows of a step that have them.
 *
 * An adapter has factors A and B for some of the layers' matrices. Where several tensors of the
 * model are one matrix (q, k and v; gate and up), each has its own part of the factors, so that
 * adapters of q_proj alone and of a fused qkv_proj are the same thing here (ops_lora.h). The layer
 * program adds B (A x) to each such product (PROGRAM_SHRINK, PROGRAM_EXPAND). Any number of
 * adapters may be in memory; a step takes those that its rows have, at most LORA_GROUPS_MAX.
 * Threads: loading by one; an adapter is then only read. */
#ifndef QUIRE_ENGINE_MODEL_LORA_LORA_H
#define QUIRE_ENGINE_MODEL_LORA_LORA_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/dtype.h"
#include "common/err.h"
#include "kernels/ops/ops_lora.h"

#define LORA_GROUPS_MAX 64u  /* adapters of a step: the limit of --max-loras */
#define LORA_PRODUCTS   6u   /* of a layer that may have adapters */
#define LORA_RANK_MAX   512u /* the limit of --max-lora-rank */

struct lora;
struct model_config;

struct lora_options {
    const char *dir;   /* of the adapter */
    enum dtype dtype;  /* of the factors in memory: F32, BF16 or F16 */
    uint32_t rank_max; /* --max-lora-rank */
};
/* The adapter of `dir`, for a model of this config.
 * Errors: those of adapter_config_load and adapter_tensors_open; Q_MISMATCH (a module that the
 * model has not, a shape, with what is expected); Q_UNSUPPORTED (a module that takes no adapter;
 * the rank); Q_CORRUPT (a factor is missing). Cost: reads the files once. */
FALLIBLE lora_load(struct lora **out, const struct model_config *c, const struct lora_options *o,
                   struct q_err *e);
/* Would lora_load take it? Reads the config and the headers of the tensors. */
FALLIBLE lora_check(const struct model_config *c, const struct lora_options *o, struct q_err *e);
void lora_free(struct lora *a);

/* Of a product: w is an enum program_weight; NULL: the adapter has none for it. Not of an adapter
 * that was given to a device. */
const struct lora_factors *lora_factors_of(const struct lora *a, uint32_t w, uint32_t layer);
uint64_t lora_bytes(const struct lora *a);
/* The number of the product with this weight (enum program_weight) in its layer; LORA_PRODUCTS: it
 * takes no adapter. */
uint32_t lora_product(uint32_t w);
/* May a product with this weight (enum program_weight) have an adapter? */
bool lora_is_adapted(uint32_t w);

struct lora_rows { /* of a batch, with one adapter */
    const struct lora *adapter;
    const uint32_t *rows; /* [n_row] ascending */
    uint32_t n_row;
};
struct lora_batch {
    struct lora_rows groups[LORA_GROUPS_MAX]; /* [n_group] each adapter once */
    uint32_t n_group;
};

struct lora_seq {               /* neighbouring rows of a batch */
    const struct lora *adapter; /* NULL: none */
    uint32_t row, n_row;
};
/* Group the rows of n sequences, which are in ascending order. rows: [all rows of them].
 * Errors: Q_TOO_LARGE (more than LORA_GROUPS_MAX adapters). */
FALLIBLE lora_batch_make(struct lora_batch *b, uint32_t *rows, const struct lora_seq *seqs,
                         uint32_t n, struct q_err *e);

#endif
