/* SPDX-License-Identifier: Apache-2.0 */
/* weight_codes - matrices that the CPU keeps in the checkpoint's own 4 or 8 bits
 * (kernels/ops/ops_codes.h): which sources have such a form, and packing of it, without a rounding.
 * Internal to engine/model/load.
 *
 *     blocks of a GGUF file       all types
 *     mxfp4, nvfp4                but not e4m3, which is no integer
 *     bitsandbytes nf4, fp4       with blocks that divide rows, and the usual quant_map
 *     hqq                         with groups that 16 divides
 *
 * Parts of one matrix (q, k and v) that differ join in the form that holds all of them: values as
 * int8, the smaller group, a minimum where one has it. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_CODES_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_CODES_H
#include "engine/model/load/weight_source.h"
#include "kernels/kern.h"

/* false: the source has no such form. */
bool weight_codes_form(struct packed_codes *out, const struct weight_source *s);
/* *all becomes the form that holds both, each number as it is; false: there is none. */
bool weight_codes_join(struct packed_codes *all, const struct packed_codes *one);
/* Outputs o … o + n - 1 into rows row … of `dst`, whose form is the source's or was joined with it.
 * buffer: n_in * 4 bytes, aligned for floats. */
void weight_codes_set(const struct packed *dst, uint32_t row, const struct weight_source *s,
                      uint32_t o, uint32_t n, void *buffer);

#endif
