/* SPDX-License-Identifier: Apache-2.0 */
/* rows - the blocks of a GGUF file's tensors as floats.
 *
 * A block is a few numbers (32 or 256) with their scales; the numbers of a row are whole blocks.
 * Layouts are pictured in rows.c. Threads: pure functions. */
#ifndef QUIRE_COMMON_GGUF_ROWS_H
#define QUIRE_COMMON_GGUF_ROWS_H
#include "common/gguf/gguf.h"

/* out: [n_block * t->block]. t->read_as is GGUF_BLOCKS; data has n_block * t->bytes bytes, without
 * alignment. Each number is what the format says, rounded to f32 after each operation. */
void gguf_rows(float *out, const struct gguf_type *t, const unsigned char *data, size_t n_block);
/* How a matrix of integers in groups of 32 has a block of Q4_0: its scale (f16 bits), and 32
 * integers from 0 to 15 of which 8 stands for zero. */
void gguf_q4_0(uint16_t *scale, uint8_t q[32], const unsigned char *data);

#endif
