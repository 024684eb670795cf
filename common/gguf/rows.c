/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of blocks, in bytes. f16: IEEE half; nibbles: two numbers of 4 bits in a byte, the low
 * half first.
 *
 *     Q4_0    f16 d, 16 nibbles: byte i has numbers i and i + 16       d (q - 8)
 *     Q4_1    f16 d, f16 m, nibbles as Q4_0                            d q + m
 *     Q5_0    f16 d, u32 of fifth bits, nibbles as Q4_0                d (q - 16)
 *     Q5_1    f16 d, f16 m, u32 of fifth bits, nibbles as Q4_0         d q + m
 *     Q8_0    f16 d, 32 int8                                           d q
 *     IQ4_NL  f16 d, nibbles as Q4_0                                   d table[q]
 *     MXFP4   u8 e, nibbles as Q4_0                                    2^(e - 127) e2m1[q]
 *
 * Of 256 numbers, in sub-blocks of 16 or 32 with scales of few bits:
 *
 *     Q2_K    16 u8 (scale, min: 4 bits each), 64 bytes of 2 bits, f16 d, f16 dmin
 *     Q3_K    32 bytes of third bits, 64 bytes of 2 bits, 12 bytes of 6-bit scales, f16 d
 *     Q4_K    f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 nibbles
 *     Q5_K    as Q4_K with 32 bytes of fifth bits before the nibbles
 *     Q6_K    128 nibbles, 64 bytes of 2 bits, 16 int8 scales, f16 d
 *     IQ4_XS  f16 d, u16 of high bits of scales, 4 bytes of low ones, 128 nibbles
 *
 * There numbers i, i + 32, i + 64 … of 128 share a byte of 2 bits, and i and i + 32 of 64 one of
 * nibbles. Source: ggml (ggml-common.h). */
#include "common/gguf/rows.h"
#include <math.h>
#include <string.h>
#include "common/dtype.h"

#define SMALL 32u
#define LARGE 256u

static uint16_t load_u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float load_f16(const unsigned char *p)
{
    return f16_to_f32(load_u16(p));
}

/* Values of IQ4_NL and IQ4_XS. */
static const float table_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

/* Number i of 32 nibbles. */
static unsigned nibble(const unsigned char *p, uint32_t i)
{
    return i < 16 ? p[i] & 15u : p[i - 16] >> 4;
}

static void q4_0(float *out, const unsigned char *b)
{
    const float d = load_f16(b);
    for (uint32_t i = 0; i < SMALL; i++)
        out[i] = d * (float)((int)nibble(b + 2, i) - 8);
}

static void q4_1(float *out, const unsigned char *b)
{
    const float d = load_f16(b), m = load_f16(b + 2);
    for (uint32_t i = 0; i < SMALL; i++)
        out[i] = d * (float)nibble(b + 4, i) + m;
}

static unsigned fifth_bit(const unsigned char *p, uint32_t i)
{
    return (p[i / 8] >> i % 8 & 1u) << 4;
}

static void q5_0(float *out, const unsigned char *b)
{
    const float d = load_f16(b);
    for (uint32_t i = 0; i < SMALL; i++)
        out[i] = d * (float)((int)(nibble(b + 6, i) | fifth_bit(b + 2, i)) - 16);
}

static void q5_1(float *out, const unsigned char *b)
{
    const float d = load_f16(b), m = load_f16(b + 2);
    for (uint32_t i = 0; i < SMALL; i++)
        out[i] = d * (float)(nibble(b + 8, i) | fifth_bit(b + 4, i)) + m;
}

static void q8_0(float *out, const unsigned char *b)
{
    const float d = load_f16(b);
    for (uint32_t i = 0; i < SMALL; i++)
        out[i] = d * (float)(int8_t)b[2 + i];
}

static void iq4_nl(float *out, const unsigned char *b)
{
    const float d = load_f16(b);
    for (uint32_t i = 0; i < SMALL; i++)
        out[i] = d * table_nl[nibble(b + 2, i)];
}

static void mxfp4(float *out, const unsigned char *b)
{
    static const float e2m1[16] = {0, 0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const float d = ldexpf(1, b[0] - 127);
    for (uint32_t i = 0; i < SMALL; i++)
        out[i] = d * e2m1[nibble(b + 1, i)];
}

/* Number i of bytes of 2 bits. */
static unsigned two_bits(const unsigned char *p, uint32_t i)
{
    return p[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3u;
}

/* Number i of 256 nibbles of Q4_K, Q5_K. */
static unsigned nibble_k(const unsigned char *p, uint32_t i)
{
    return p[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15u;
}

static void q2_k(float *out, const unsigned char *b)
{
    const float d = load_f16(b + 80), dmin = load_f16(b + 82);
    for (uint32_t i = 0; i < LARGE; i++) {
        const unsigned scale = b[i / 16];
        const float by = d * (float)(scale & 15), min = dmin * (float)(scale >> 4);
        out[i] = by * (float)two_bits(b + 16, i) - min;
    }
}

/* Scale j of 16: its low 4 bits are nibbles of 8 bytes, its high 2 bits are in 4 more. */
static int scale_q3(const unsigned char *p, uint32_t j)
{
    const unsigned low = p[j % 8] >> (j / 8 * 4) & 15u, high = p[8 + j % 4] >> (j / 4 * 2) & 3u;
    return (int)(low | high << 4) - 32;
}

static void q3_k(float *out, const unsigned char *b)
{
    const float d = load_f16(b + 108);
    for (uint32_t i = 0; i < LARGE; i++) {
        const int third = b[i % 32] >> (i / 32) & 1 ? 0 : 4;
        const float by = d * (float)scale_q3(b + 96, i / 16);
        out[i] = by * (float)((int)two_bits(b + 32, i) - third);
    }
}

/* Scale and min j of 8, 6 bits each: those of the first four lie whole in bytes 0 to 3 and 4 to 7,
 * whose high 2 bits are those of the other four; bytes 8 to 11 have the low 4 bits of both. */
static void scales_k(float *scale, float *min, const unsigned char *p, uint32_t j)
{
    unsigned s = p[j % 4] & 63u, m = p[4 + j % 4] & 63u;
    if (j >= 4) {
        s = (p[4 + j] & 15u) | (p[j - 4] >> 6) << 4;
        m = p[4 + j] >> 4 | (p[j] >> 6) << 4;
    }
    *scale = (float)s;
    *min = (float)m;
}

static void q4_k(float *out, const unsigned char *b)
{
    const float d = load_f16(b), dmin = load_f16(b + 2);
    for (uint32_t j = 0; j < LARGE / SMALL; j++) {
        float scale, min;
        scales_k(&scale, &min, b + 4, j);
        scale *= d;
        min *= dmin;
        for (uint32_t i = j * SMALL; i < (j + 1) * SMALL; i++)
            out[i] = scale * (float)nibble_k(b + 16, i) - min;
    }
}

static void q5_k(float *out, const unsigned char *b)
{
    const float d = load_f16(b), dmin = load_f16(b + 2);
    for (uint32_t j = 0; j < LARGE / SMALL; j++) {
        float scale, min;
        scales_k(&scale, &min, b + 4, j);
        scale *= d;
        min *= dmin;
        for (uint32_t i = 0; i < SMALL; i++) {
            const unsigned fifth = (b[16 + i] >> j & 1u) << 4;
            const unsigned q = nibble_k(b + 48, j * SMALL + i) | fifth;
            out[j * SMALL + i] = scale * (float)q - min;
        }
    }
}

static void q6_k(float *out, const unsigned char *b)
{
    const float d = load_f16(b + 208);
    for (uint32_t i = 0; i < LARGE; i++) {
        const unsigned low = b[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15u;
        const int q = (int)(low | two_bits(b + 128, i) << 4) - 32;
        const float by = d * (float)(int8_t)b[192 + i / 16];
        out[i] = by * (float)q;
    }
}

/* Nibbles lie as those of 8 small blocks. */
static void iq4_xs(float *out, const unsigned char *b)
{
    const float d = load_f16(b);
    const uint32_t high = load_u16(b + 2);
    for (uint32_t j = 0; j < LARGE / SMALL; j++) {
        const unsigned low = b[4 + j / 2] >> (j % 2 * 4) & 15u;
        const float by = d * (float)((int)(low | (high >> 2 * j & 3) << 4) - 32);
        for (uint32_t i = 0; i < SMALL; i++)
            out[j * SMALL + i] = by * table_nl[nibble(b + 8 + j * 16, i)];
    }
}

static const struct {
    const char *name;
    void (*block)(float *out, const unsigned char *b);
} readers[] = {
    {"Q4_0", q4_0},   {"Q4_1", q4_1},     {"Q5_0", q5_0},     {"Q5_1", q5_1}, {"Q8_0", q8_0},
    {"Q2_K", q2_k},   {"Q3_K", q3_k},     {"Q4_K", q4_k},     {"Q5_K", q5_k}, {"Q6_K", q6_k},
    {"MXFP4", mxfp4}, {"IQ4_NL", iq4_nl}, {"IQ4_XS", iq4_xs},
};

void gguf_rows(float *out, const struct gguf_type *t, const unsigned char *data, size_t n_block)
{
    size_t i = 0;
    while (i < sizeof readers / sizeof *readers && strcmp(readers[i].name, t->name) != 0)
        i++;
    Q_ASSERT(i < sizeof readers / sizeof *readers); /* every BLOCKS of types.def has one */
    for (size_t k = 0; k < n_block; k++)
        readers[i].block(out + k * t->block, data + k * t->bytes);
}

void gguf_q4_0(uint16_t *scale, uint8_t q[32], const unsigned char *data)
{
    *scale = load_u16(data);
    for (uint32_t i = 0; i < SMALL; i++)
        q[i] = (uint8_t)nibble(data + 2, i);
}
