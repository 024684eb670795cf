/* SPDX-License-Identifier: Apache-2.0 */
/* rows_internal - grids, and readers of blocks by them for the table of rows.c. Private to
 * common/gguf. Threads: pure functions. */
#ifndef QUIRE_COMMON_GGUF_ROWS_INTERNAL_H
#define QUIRE_COMMON_GGUF_ROWS_INTERNAL_H
#include "common/dtype.h"
#include "common/gguf/rows.h"

static inline uint16_t load_u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline float load_f16(const unsigned char *p)
{
    return f16_to_f32(load_u16(p));
}

/* Rows of 8 numbers in 2 bits each (iq1, iq2), or of 4 in 3 bits, the first one in the lowest bits:
 * its place among the numbers of the grid (grids.c). */
extern const uint16_t gguf_grid_iq1[2048];
extern const uint16_t gguf_grid_iq2_xxs[256];
extern const uint16_t gguf_grid_iq2_xs[512];
extern const uint16_t gguf_grid_iq2_s[1024];
extern const uint16_t gguf_grid_iq3_xxs[256];
extern const uint16_t gguf_grid_iq3_s[512];

/* Each takes a block of 256 numbers apart as rows.h says. */
void gguf_iq1_s(const struct gguf_codes *to, const unsigned char *b);
void gguf_iq1_m(const struct gguf_codes *to, const unsigned char *b);
void gguf_iq2_xxs(const struct gguf_codes *to, const unsigned char *b);
void gguf_iq2_xs(const struct gguf_codes *to, const unsigned char *b);
void gguf_iq2_s(const struct gguf_codes *to, const unsigned char *b);
void gguf_iq3_xxs(const struct gguf_codes *to, const unsigned char *b);
void gguf_iq3_s(const struct gguf_codes *to, const unsigned char *b);

#endif
