/* SPDX-License-Identifier: Apache-2.0 */
/* weight_gguf - matrices and tables that a GGUF file holds in blocks (common/gguf/rows.h): read
 * output by output. Internal to engine/model/load; called by weight_quant.c.
 *
 * W: [n_out, n_in], a row is n_in / t->block blocks. Blocks of Q4_0 are integers of 4 bits with a
 * scale for 32 inputs, which the kernels have: in a model of them (config: 4 bits) they stay as
 * they are, bit for bit. All other blocks are codes with scales (weight_codes.h), or floats where
 * something else is made of these. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_GGUF_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_GGUF_H
#include "common/gguf/rows.h"
#include "engine/model/load/weight_source.h"

/* The tensor t, of the source's shape, is in blocks: s->quant says so, s->dtype is what its numbers
 * become. Errors: Q_UNSUPPORTED (a vector in blocks). */
FALLIBLE weight_gguf_use(struct weight_source *s, const struct weight_finder *f,
                         const struct tensor *t, struct q_err *e);
/* Outputs o … o + n - 1 as f32: [n, n_in]. */
void weight_gguf_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n);
/* Output o in s->dtype (F32, F16 or BF16). */
void weight_gguf_table_row(void *out, const struct weight_source *s, uint32_t o);
/* The codes of output o, as they are: to's arrays have room for a row. */
void weight_gguf_codes(const struct gguf_codes *to, const struct weight_source *s, uint32_t o);
/* Of Q4_0: the integers of outputs o …, [n, n_in], and the scale (f16 bits) of group g of output o;
 * 8 stands for zero. */
void weight_gguf_integers(uint8_t *out, const struct weight_source *s, uint32_t o, uint32_t n);
uint16_t weight_gguf_scale(const struct weight_source *s, uint32_t o, uint32_t g);

#endif
