/* SPDX-License-Identifier: Apache-2.0 */
/* weight_torchao - matrices as torchao's tensor classes are flattened into safetensors: a parameter
 * P.weight is stored as P._weight_PART. G = inputs that share a scale. Internal to
 * engine/model/load.
 *
 *     Int8Tensor, Float8Tensor    as int-quantized and fp8 (weight_quant.h, weight_fp8.h)
 *     IntxUnpackedToInt8Tensor    qdata [n_out, n_in] int8, one integer of 1 to 8 bits each; scale
 *                                 [n_out, n_in / G]; zero_point int8 of that shape, may be absent.
 *                                 compressed-tensors' W4A8 has the same
 *     Int4Tensor                  qdata [n_out, n_in / 2] bytes: input 2j in the low half of byte
 *                                 j, -8 … 7; scale and zero_point [n_in / G, n_out] floats
 *     Int4TilePackedTo4dTensor    qdata [m_out / 8, m_in / 128, 32, 4] int32, scale_and_zero
 *                                 [m_in / G, m_out, 2] floats; m_out, m_in: n_out, n_in and what
 *                                 they are padded with, to multiples of 8 and 1024
 *
 *     w[o,k] = scale[o,g] * (q[o,k] - zero[o,g])         integers with integer zero points
 *     w[o,k] = scale[o,g] * q[o,k] + zero[o,g]           int4, q from -8 to 7, one rounding
 *
 * A tile of 8 outputs and 128 inputs is 32 x 4 int32. Word (t, j) has output t / 4 and eight inputs
 * from 32 j + 2 (t % 4) on: those at 0, 8, 16, 24 in bits 0 to 15, a half byte each, their right
 * neighbours in bits 16 to 31; q + 8 is stored.
 *
 *     bits   0    4    8   12   16   20   24   28
 *     input +0   +8  +16  +24   +1   +9  +17  +25
 *
 * Sources: torchao 0.18 (its flatten_tensor_state_dict and the classes' docstrings), mslk's
 * pack_int4, ATen's matrix_to_m16n8k16_Bint4_layout. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_TORCHAO_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_TORCHAO_H
#include "engine/model/load/weight_source.h"

/* What a matrix of int8 with one scale for each output, or one for all, and zero points that are 0
 * is: QUANT_INT8, which the caller finds. */
enum weight_torchao {
    WEIGHT_TORCHAO_NOT,
    WEIGHT_TORCHAO_FP8,
    WEIGHT_TORCHAO_INT8,
    WEIGHT_TORCHAO_FOUND
};

/* Is `name` stored so? WEIGHT_TORCHAO_FOUND: s->quant says where, all of it checked; ..._FP8,
 * ..._INT8: it is what other methods have as well.
 * Errors: Q_MISMATCH, Q_CORRUPT, Q_NOT_FOUND, Q_UNSUPPORTED (file, tensor, expected and found). */
FALLIBLE weight_torchao_find(enum weight_torchao *is, struct weight_source *s,
                             const struct weight_finder *f, const char *name, struct q_err *e);
/* Is a matrix of int8 of compressed-tensors, whose parts are in q, one of those? Then QUANT_INTX:
 * s->quant says where, all of it checked. Errors: as above. */
bool weight_torchao_is_intx(const struct quant_tensors *q, const struct weight_finder *f,
                            const char *name);
FALLIBLE weight_torchao_find_intx(struct weight_source *s, const struct weight_finder *f,
                                  const char *name, struct q_err *e);
/* Of QUANT_INTX: integers of outputs o … o + n - 1 plus half of their range (8, of more than 4 bits
 * 128) as [n, n_in]; those past 4 bits are clamped. The zero of a group, moved likewise. */
void weight_torchao_integers(uint8_t *out, const struct weight_source *s, uint32_t o, uint32_t n);
uint32_t weight_torchao_zero(const struct weight_source *s, uint32_t o, uint32_t g);
/* Of QUANT_TORCHAO: outputs o … o + n - 1 as f32 [n, n_in]. */
void weight_torchao_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n);
/* Of QUANT_TORCHAO, and of int8 beside it: codes [n_in] as KERN_CODES_SIGNED (of int8 _BYTES),
 * scales and (of QUANT_TORCHAO) mins [n_group] of output o. */
struct weight_torchao_codes {
    uint8_t *q;
    float *scales, *mins;
};
void weight_torchao_codes(const struct weight_torchao_codes *to, const struct weight_source *s,
                          uint32_t o);

#endif
