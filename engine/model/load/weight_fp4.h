/* SPDX-License-Identifier: Apache-2.0 */
/* weight_fp4 - matrices that the checkpoint holds as floats of 4 bits (e2m1) or 8 bits (e4m3) with
 * scales of groups, as modelopt and compressed-tensors write them: found, checked, and read output
 * by output. Internal to engine/model/load; called by weight_quant.c.
 *
 * W: [n_out, n_in] of P.weight. Each matrix is what its own tensors say:
 *
 *     nvfp4   P.weight_packed U8 [n_out, n_in / 2], P.weight_scale F8_E4M3 [n_out, n_in / 16],
 *             P.weight_global_scale F32 [1], by which the scales are divided; or, of modelopt,
 *             P.weight instead, and P.weight_scale_2 F32 [], by which they are multiplied
 *     mxfp4   P.weight_packed U8 [n_out, n_in / 2], P.weight_scale U8 or F8_E8M0
 *             [n_out, n_in / 32]
 *     mxfp8   P.weight F8_E4M3 [n_out, n_in], P.weight_scale likewise
 *     fp8     P.weight F8_E4M3, P.weight_scale of floats: weight_fp8.h
 *
 *     w[o,k] = scale[o, k / group] * q[o,k]       input 2j in the low half of byte j
 *
 * Scales of activations (P.input_scale, P.input_global_scale) are not used: activations stay
 * floats. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_FP4_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_FP4_H
#include "engine/model/load/weight_source.h"

/* Is `name` ("….weight") stored so? Then s->quant says where, all of it checked; s->dtype is F32.
 * Errors: Q_NOT_FOUND, Q_MISMATCH, Q_CORRUPT (file, tensor, expected and found), Q_UNSUPPORTED. */
FALLIBLE weight_fp4_find(struct weight_source *s, const struct weight_finder *f, const char *name,
                         struct q_err *e);
/* Outputs o … o + n - 1 as f32: [n, n_in]. */
void weight_fp4_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n);
/* Of 4 bits: output o as codes [n_in] of e2m1, and half the scales [n_in / group]. */
void weight_fp4_codes(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o);

#endif
