/* SPDX-License-Identifier: Apache-2.0 */
/* weight_mxfp4 - matrices that the checkpoint holds as MXFP4 (OCP Microscaling Formats 1.0): 4-bit
 * floats (e2m1) in blocks of 32 inputs, each with a power of two as its scale (e8m0): found,
 * checked, and read output by output. Internal to engine/model/load; called by weight_quant.c.
 *
 * W: [n_out, n_in] of all experts of a layer, which the family names P, is
 *     P_blocks [n_expert, n_out, n_in / 32, 16] U8, input 2j of a block in the low half of byte j
 *     P_scales [n_expert, n_out, n_in / 32] U8
 * and outputs are rows, also where a tensor of floats of that name has inputs as rows.
 *
 *     w[o,k] = 2^(scale[o, k / 32] - 127) * e2m1(q[o,k])
 *
 * bfloat16 holds every such number, so nothing is lost where such a matrix becomes bfloat16.
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_MXFP4_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_MXFP4_H
#include "engine/model/load/weight_source.h"

/* Is `name` stored so? Then s->quant says where, all of it checked; s->dtype is BF16. Errors:
 * Q_NOT_FOUND, Q_MISMATCH, Q_CORRUPT (file, tensor, expected and found). */
FALLIBLE weight_mxfp4_find(struct weight_source *s, const struct weight_finder *f, const char *name,
                           struct q_err *e);
/* Is `found` one of the tensors that stand for `name`? */
bool weight_mxfp4_is_part(const char *name, const char *found);
/* Outputs o … o + n - 1 of the source's expert as f32: [n, n_in]. */
void weight_mxfp4_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n);
/* Output o as codes [n_in] of e2m1, and half the scales [n_in / 32]. */
void weight_mxfp4_codes(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o);

#endif
