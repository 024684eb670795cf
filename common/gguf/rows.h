/* SPDX-License-Identifier: Apache-2.0 */
/* rows - the blocks of a GGUF file's tensors as codes with scales, and as floats.
 *
 * A block is a few numbers (32 or 256) with their scales; the numbers of a row are whole blocks.
 * Layouts are pictured in rows.c. Whatever the type, number i of a row is
 *     scale[g] * value(q[i]) (+ min[g]),  g = i / form.group
 * Threads: pure functions. */
#ifndef QUIRE_COMMON_GGUF_ROWS_H
#define QUIRE_COMMON_GGUF_ROWS_H
#include "common/gguf/gguf.h"

/* out: [n_block * t->block]. t->read_as is GGUF_BLOCKS; data has n_block * t->bytes bytes, without
 * alignment. Each number is what the format says, rounded to f32 after each operation. */
void gguf_rows(float *out, const struct gguf_type *t, const unsigned char *data, size_t n_block);

/* What a code stands for. */
enum gguf_values {
    GGUF_VALUES_BYTES,  /* itself, as int8 */
    GGUF_VALUES_HALVES, /* 0 … 15 */
    GGUF_VALUES_SIGNED, /* -8 … 7 */
    GGUF_VALUES_NL,     /* one of 16 integers, of IQ4_NL */
    GGUF_VALUES_E2M1,   /* twice an e2m1 */
    GGUF_VALUES_SIX,    /* itself, as int8, -32 … 31 */
    /* Codes 0 … 7 are the magnitudes of a grid's numbers, with 8 these below zero. */
    GGUF_VALUES_IQ1, /* 8 times a number of the grid of IQ1_S, -1 … 1, + 1 or, with 8, - 1 */
    GGUF_VALUES_IQ2,
    GGUF_VALUES_IQ3_XXS,
    GGUF_VALUES_IQ3_S
};
enum gguf_scales {
    GGUF_SCALES_F32,
    GGUF_SCALES_F16,   /* floats that f16 holds */
    GGUF_SCALES_BY_256 /* super of 256 numbers * part of a group; mins likewise */
};
struct gguf_form {
    enum gguf_values values;
    enum gguf_scales scales;
    bool has_min;
    uint32_t group;
};
struct gguf_form gguf_form_of(const struct gguf_type *t); /* t->read_as is GGUF_BLOCKS */
float gguf_value(enum gguf_values values, uint8_t code);

/* Where the numbers of n_block blocks go. Of scales, mins and of parts … super_mins those that the
 * form has are written: one a group, supers one a block (of 256). */
struct gguf_codes {
    uint8_t *q; /* [n_block * t->block] */
    float *scales, *mins;
    int8_t *parts, *part_mins;
    float *supers, *super_mins;
};
void gguf_codes(const struct gguf_codes *to, const struct gguf_type *t, const unsigned char *data,
                size_t n_block);
/* How a matrix of integers in groups of 32 has a block of Q4_0: its scale (f16 bits), and 32
 * integers from 0 to 15 of which 8 stands for zero. */
void gguf_q4_0(uint16_t *scale, uint8_t q[32], const unsigned char *data);

#endif
