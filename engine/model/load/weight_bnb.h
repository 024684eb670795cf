/* SPDX-License-Identifier: Apache-2.0 */
/* weight_bnb - matrices that bitsandbytes quantized: found, checked, and read output by output.
 * Internal to engine/model/load; called by weight_quant.c.
 *
 * W: [n_out, n_in] of P.weight. With 4 bits its numbers are one row of n_out * n_in codes, two in a
 * byte, the first in the high half, in blocks of B (64, as a rule) that know nothing of outputs:
 *
 *     P.weight                 the bytes, of any element type and shape
 *     P.weight.absmax          [n_block] F32; or U8, then a block's scale is
 *                              nested_quant_map[absmax] * nested_absmax[block / N] + nested_offset
 *     P.weight.quant_map       [16] F32: what a code stands for
 *     P.weight.nested_absmax [n_block / N], P.weight.nested_quant_map [256], F32
 *     P.weight.quant_state.bitsandbytes__nf4 (or __fp4) U8: JSON with shape, blocksize (B),
 *                              nested_blocksize (N), nested_offset
 *
 *     w[i] = absmax[i / B] * quant_map[code[i]]
 *
 * With 8 bits (LLM.int8): P.weight I8 [n_out, n_in], P.SCB F32 [n_out], the largest magnitude of
 * an output; P.weight_format U8, 0: rows as they are.
 *
 *     w[o,k] = SCB[o] / 127 * q[o,k]
 *
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_BNB_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_BNB_H
#include "engine/model/load/weight_source.h"
#include "kernels/ops/ops_codes.h"

/* Is `name` ("….weight") stored so? Then s->quant says where, all of it checked; s->dtype is F32.
 * Errors: Q_NOT_FOUND, Q_MISMATCH, Q_CORRUPT (file, tensor, expected and found), Q_UNSUPPORTED,
 * Q_NO_MEMORY. */
FALLIBLE weight_bnb4_find(struct weight_source *s, const struct weight_finder *f, const char *name,
                          struct q_err *e);
FALLIBLE weight_bnb8_find(struct weight_source *s, const struct weight_finder *f, const char *name,
                          struct q_err *e);
/* Is `found` one of the tensors that stand beside `name`? */
bool weight_bnb_is_part(const char *name, const char *found);
/* With 4 bits: outputs o … o + n - 1 as f32: [n, n_in]. */
void weight_bnb4_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n);
/* Output o as codes [n_in] and scales [n_in / group]; blocks divide rows. */
void weight_bnb4_codes(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o);
/* Do its codes stand for the kernels' values of this kind? */
bool weight_bnb4_has_codes(const struct weight_source *s, enum kern_codes kind);

#endif
