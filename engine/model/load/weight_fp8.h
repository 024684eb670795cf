/* SPDX-License-Identifier: Apache-2.0 */
/* weight_fp8 - matrices that the checkpoint holds as e4m3 (kernels/ops/e4m3.h) with scales: found,
 * checked, and read output by output. Internal to engine/model/load; called by weight_quant.c.
 *
 * W: [n_out, n_in] is P.weight [n_out, n_in] F8_E4M3, and its scales are P.weight_scale, or
 * P.weight_scale_inv (which is multiplied too, whatever its name says), F32, F16, BF16, or powers
 * of two as F8_E8M0 or U8 (scale_fmt ue8m0):
 *
 *     [] or [1]                      one for all       fp8, float-quantized by tensor
 *     [n_out] or [n_out, 1]          one an output     fbgemm_fp8, float-quantized by channel
 *     [ceil(n_out / R), ceil(n_in / C)]   one a block of R outputs and C inputs, where the config
 *                                    has block sizes (weight_block_size [R, C])
 *
 *     w[o,k] = scale[o / R, k / C] * e4m3(q[o,k])
 *
 * Such a checkpoint may have a scale for the matrix's inputs, of all rows, found by calibration:
 * P.input_scale or (transformers) P.activation_scale, F32, F16 or BF16, one number. Devices
 * multiply in it (packed.x_scale) where all parts of a fused matrix have one, by the largest of
 * them, and so for a layer's experts. It is not used beside scales of blocks, where the config says
 * that inputs are dynamic, and where it is 0 (an expert that no text of the calibration reached):
 * then each row gets its own (ops_fp8.h). The CPU, whose inputs stay floats, has no use for it. The
 * log says which. Source: the checkpoints of llm-compressor and modelopt, as vLLM reads them.
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_FP8_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_FP8_H
#include "engine/model/load/weight_source.h"

/* Is `name` ("….weight") stored as e4m3? Then s->quant says where, all of it checked; s->dtype is
 * F32, which holds its numbers. Errors: Q_NOT_FOUND, Q_MISMATCH, Q_CORRUPT (file, tensor, expected
 * and found). */
FALLIBLE weight_fp8_find(struct weight_source *s, const struct weight_finder *f, const char *name,
                         struct q_err *e);
/* Outputs o … o + n - 1 as f32: [n, n_in]. */
void weight_fp8_rows(float *out, const struct weight_source *s, uint32_t o, uint32_t n);

/* Has it scales of blocks that devices multiply by as they are (ops_fp8.h): of whole groups of
 * outputs and whole blocks of 128 inputs? */
bool weight_fp8_is_blocks(const struct weight_source *s);
/* So: e4m3 as the checkpoint has it, and its scales [n][ceil(cols / 128)]. */
void weight_fp8_block(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o,
                      uint32_t n);

/* Is it e4m3 with a scale for each output, or one for all? Then it can be packed as it is. */
bool weight_fp8_is_plain(const struct weight_source *s);
/* So: e4m3 as the checkpoint has it, and its scales [n]. */
void weight_fp8_bytes(uint8_t *q, float *scales, const struct weight_source *s, uint32_t o,
                      uint32_t n);

#endif
