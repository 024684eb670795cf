/* SPDX-License-Identifier: Apache-2.0 */
/* weight_hqq - matrices as HQQ stores them in safetensors (transformers 4.46 and later, hqq 0.2.1
 * and later): found, checked, and read output by output. Internal to engine/model/load; called by
 * weight_quant.c.
 *
 * W: [n_out, n_in] of P.weight, G inputs that share a scale, is n = n_out n_in / G rows of G
 * integers, row r the group r % (n_in / G) of output r / (n_in / G):
 *
 *     P.W_q    U8 [n / v, G]: v integers in a byte, 1 (of 5 to 8 bits), 2 (4 bits) or 4 (2 bits);
 *              I32 [ceil(n / 10), G]: ten of 3 bits, in the lowest 30. The first one, in the
 *              highest bits, is of row r, the next of row r + m, r + 2 m …; m: rows of P.W_q
 *     P.scale, P.zero   F32, F16 or BF16 [n, 1]
 *
 *     w[o,k] = scale[r] * (q[r, k % G] - zero[r])      zeros are no whole numbers
 *
 * which is computed as one rounding of scale * (q - c) + min, where min is scale * (c - zero),
 * rounded as well, and c the middle of q's range: so the kernels' codes stand for the same f32.
 * The other parts (P.nbits, P.shape, P.axis …) say what the shapes of these three do.
 * Sources: hqq's quantize.py and bitpack.py; the config.json that transformers writes.
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_HQQ_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_HQQ_H
#include "engine/model/load/weight_source.h"

/* Is `name` ("….weight") stored so? Then s->quant says where, all of it checked; s->dtype is F32.
 * Errors: Q_NOT_FOUND, Q_MISMATCH, Q_CORRUPT (file, tensor, expected and found), Q_UNSUPPORTED. */
FALLIBLE weight_hqq_find(struct weight_source *s, const struct weight_finder *f, const char *name,
                         struct q_err *e);
/* Is `found` one of the tensors that HQQ has for `name`? */
bool weight_hqq_is_part(const char *name, const char *found);
/* Outputs o … o + n - 1 as f32: [n, n_in]. */
void weight_hqq_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n);
/* Output o as codes [n_in]: KERN_CODES_SIGNED, of more than 4 bits _BYTES; scales and mins
 * [n_in / G] of its groups. */
void weight_hqq_codes(uint8_t *q, float *scales, float *mins, const struct weight_source *s,
                      uint32_t o);

#endif
