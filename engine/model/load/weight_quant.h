/* SPDX-License-Identifier: Apache-2.0 */
/* weight_quant - matrices that the checkpoint holds as integers with scales: found, checked, and
 * read output by output for the kernels' layouts. Internal to engine/model/load.
 *
 * W: [n_out, n_in] of P.weight is stored as other tensors instead, b bits, v = 32 / b integers in
 * an int32, lowest bits first, G = inputs that share a scale:
 *
 *     gptq         P.qweight [n_in / v, n_out], P.qzeros [n_in / G, n_out / v] (one less than the
 *                  zero, in the first format), P.scales [n_in / G, n_out], P.g_idx [n_in]: the
 *                  group of each input (act-order), may be absent
 *     awq          P.qweight [n_in, n_out / 8], P.qzeros [n_in / G, n_out / 8], P.scales as gptq;
 *                  the eight of an int32 are outputs 0 2 4 6 1 3 5 7
 *     awq gemv     P.qweight [n_out, n_in / 8], P.qzeros [n_out, z], P.scales [n_out, 8 z], in
 *                  order; 8 z is n_in / G or, as its kernels need it, more
 *     pack-quantized  P.weight_packed [n_out, n_in / v], P.weight_scale [n_out, n_in / G],
 *                  P.weight_zero_point [n_out / v, n_in / G] unless symmetric (then 2^(b-1)),
 *                  P.weight_g_idx [n_in], may be absent; 2 to 8 bits
 *     int-quantized   P.weight [n_out, n_in] int8, P.weight_scale [n_out, 1]; of fewer bits, in
 *                  groups or with P.weight_zero_point as torchao's IntxUnpackedToInt8Tensor
 *     torchao      weight_torchao.h: the same and fp8 under other names, integers in groups, int4
 *     fp8, float-quantized   weight_fp8.h
 *     mxfp4        weight_mxfp4.h
 *     fp4          weight_fp4.h: nvfp4, mxfp4, mxfp8 of compressed-tensors and modelopt
 *     bitsandbytes weight_bnb.h
 *     hqq          weight_hqq.h
 *     gguf         weight_gguf.h
 *
 *     w[o,k] = scale[o,g] * (q[o,k] - zero[o,g])
 *
 * Integers of 3, 5, 6 and 7 bits lie one after the other, also across the end of an int32; in older
 * pack-quantized files an int32 has 32 / b of them, rounded down, and bits left over, which the
 * shape tells where 32 divides n_in.
 *
 * What has 2 to 4 bits in groups that 32 divides stays as it is, bit for bit (scales in bf16 or
 * f32 are rounded to f16). With act-order its inputs are packed group by group (`order` of struct
 * packed) and activations follow; matrices that make one must then agree on the order, as those do
 * that were quantized with the same inputs. All else becomes int8 with a scale for each output:
 * exactly when it is that already, else by packing its f32 values. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_QUANT_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_QUANT_H
#include "engine/model/load/weight_source.h"
#include "kernels/kern.h"

struct int4_arrays {
    uint8_t *q;
    uint16_t *scales;
    uint8_t *zeros;
    uint32_t group; /* that they are for: the checkpoint's, or a part of it */
};
/* Outputs o … below are the tensor's: weight_source_row of those of a slice, no further than
 * weight_source_run. Is `name` ("….weight") stored as integers? Then s->quant says where, all of it
 * checked.
 * Errors: Q_MISMATCH, Q_CORRUPT (file, tensor, expected and found). */
FALLIBLE weight_quant_find(struct weight_source *s, const struct weight_finder *f, const char *name,
                           struct q_err *e);
/* Is `found` one of the tensors that may stand for `name`? */
bool weight_quant_is_part(const char *name, const char *found);
/* The group it can be packed with by kern_int4_set, or 0. */
uint32_t weight_quant_group(const struct weight_source *s);
/* Are the inputs of both in the same groups, in the same order? */
bool weight_quant_same_order(const struct weight_source *a, const struct weight_source *b);
/* order[c]: the input that comes as number c when groups are neighbours, [n_in]; within a group
 * inputs ascend. Their own order, when the checkpoint has none. weight_quant_group is above 0. */
void weight_quant_order(uint32_t *order, const struct weight_source *s);
/* Does it stand for floats, so that it is packed by its values where it has no form of codes? */
bool weight_quant_is_made(const struct weight_source *s);
/* Can it be packed by kern_int8_set? */
bool weight_quant_is_int8(const struct weight_source *s);

/* Outputs o … o + n - 1 into rows row … of `dst`, by kern_int4_set or kern_int8_set, inputs in
 * dst->order. buffer: n * n_in * 4 bytes. */
void weight_quant_set(const struct packed *dst, uint32_t row, const struct weight_source *s,
                      uint32_t o, uint32_t n, void *buffer);
/* The same into arrays: q [n, n_in], scales (f16) and zeros [n][n_in / group]. */
void weight_quant_int4(const struct int4_arrays *to, const struct weight_source *s, uint32_t o,
                       uint32_t n);
/* int8 as the checkpoint has it, and its scales [n]. */
void weight_quant_int8(int8_t *q, float *scales, const struct weight_source *s, uint32_t o,
                       uint32_t n);
/* Outputs o … o + n - 1 as f32 [n, n_in]. */
void weight_quant_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n);

#endif
