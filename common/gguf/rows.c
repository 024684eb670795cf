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
 *     NVFP4   of 64: 4 e4m3 d, four times 16 nibbles as Q4_0           d e2m1[q], a d for each 16
 *     Q1_0    of 128: f16 d, 128 bits                                  d or, where it is 0, -d
 *
 * Of 256 numbers, in sub-blocks of 16 or 32 with scales of few bits:
 *
 *     Q2_K    16 u8 (scale, min: 4 bits each), 64 bytes of 2 bits, f16 d, f16 dmin
 *     Q3_K    32 bytes of third bits, 64 bytes of 2 bits, 12 bytes of 6-bit scales, f16 d
 *     Q4_K    f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 nibbles
 *     Q5_K    as Q4_K with 32 bytes of fifth bits before the nibbles
 *     Q6_K    128 nibbles, 64 bytes of 2 bits, 16 int8 scales, f16 d
 *     IQ4_XS  f16 d, u16 of high bits of scales, 4 bytes of low ones, 128 nibbles
 *     TQ1_0   52 bytes of 5 numbers to base 3, the last 4 of 4; f16 d  d (q - 1)
 *     TQ2_0   64 bytes of 2 bits, f16 d                                d (q - 1)
 *     IQ1_S … IQ3_S                                                    rows_grid.c
 *
 * There numbers i, i + 32, i + 64 … of 128 share a byte of 2 bits, and i and i + 32 of 64 one of
 * nibbles. Each reader takes a block apart into codes with their scales, as rows.h says; floats are
 * made of these. Source: ggml (ggml-common.h). */
#include "common/gguf/rows.h"
#include <math.h>
#include <string.h>
#include "common/gguf/rows_internal.h"

#define SMALL      32u
#define LARGE      256u
#define GROUPS_MAX 16u /* of a block */

/* ---- blocks of 32, 64 and 128 ---- */

/* 32 nibbles. */
static void nibbles(uint8_t *q, const unsigned char *p)
{
    for (uint32_t i = 0; i < SMALL / 2; i++) {
        q[i] = p[i] & 15u;
        q[i + SMALL / 2] = p[i] >> 4;
    }
}

static void q4_0(const struct gguf_codes *to, const unsigned char *b)
{
    *to->scales = load_f16(b);
    nibbles(to->q, b + 2);
}

static void q4_1(const struct gguf_codes *to, const unsigned char *b)
{
    *to->scales = load_f16(b);
    *to->mins = load_f16(b + 2);
    nibbles(to->q, b + 4);
}

/* Nibbles with fifth bits, less `zero`. */
static void five_bits(uint8_t *q, const unsigned char *fifth, const unsigned char *low, int zero)
{
    nibbles(q, low);
    for (uint32_t i = 0; i < SMALL; i++)
        q[i] = (uint8_t)((q[i] | (fifth[i / 8] >> i % 8 & 1) << 4) - zero);
}

static void q5_0(const struct gguf_codes *to, const unsigned char *b)
{
    *to->scales = load_f16(b);
    five_bits(to->q, b + 2, b + 6, 16);
}

static void q5_1(const struct gguf_codes *to, const unsigned char *b)
{
    *to->scales = load_f16(b);
    *to->mins = load_f16(b + 2);
    five_bits(to->q, b + 4, b + 8, 0);
}

static void q8_0(const struct gguf_codes *to, const unsigned char *b)
{
    *to->scales = load_f16(b);
    memcpy(to->q, b + 2, SMALL);
}

/* The values are twice those of e2m1. */
static void mxfp4(const struct gguf_codes *to, const unsigned char *b)
{
    *to->scales = ldexpf(1, b[0] - 128);
    nibbles(to->q, b + 1);
}

/* Half of an e4m3 without a sign; the byte of its NaN stands for 0. */
static float half_e4m3(unsigned char e)
{
    const int exponent = e >> 3 & 15, mantissa = e & 7;
    if (e == 0x7f)
        return 0;
    return exponent ? ldexpf((float)(8 + mantissa), exponent - 11) : ldexpf((float)mantissa, -10);
}

static void nvfp4(const struct gguf_codes *to, const unsigned char *b)
{
    for (uint32_t j = 0; j < 4; j++) {
        to->scales[j] = half_e4m3(b[j]);
        for (uint32_t i = 0; i < 8; i++) {
            to->q[16 * j + i] = b[4 + 8 * j + i] & 15u;
            to->q[16 * j + i + 8] = b[4 + 8 * j + i] >> 4;
        }
    }
}

static void q1_0(const struct gguf_codes *to, const unsigned char *b)
{
    for (uint32_t g = 0; g < 4; g++)
        to->scales[g] = load_f16(b);
    for (uint32_t i = 0; i < 128; i++)
        to->q[i] = b[2 + i / 8] >> i % 8 & 1 ? 8 + 1 : 8 - 1;
}

/* ---- blocks of 256 ---- */

/* Number i of bytes of 2 bits. */
static unsigned two_bits(const unsigned char *p, uint32_t i)
{
    return p[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3u;
}

static void q2_k(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b + 80);
    *to->super_mins = -load_f16(b + 82);
    for (uint32_t j = 0; j < LARGE / 16; j++) {
        to->parts[j] = b[j] & 15;
        to->part_mins[j] = b[j] >> 4;
    }
    for (uint32_t i = 0; i < LARGE; i++)
        to->q[i] = (uint8_t)two_bits(b + 16, i);
}

/* Scale j of 16: its low 4 bits are nibbles of 8 bytes, its high 2 bits are in 4 more. */
static int scale_q3(const unsigned char *p, uint32_t j)
{
    const unsigned low = p[j % 8] >> (j / 8 * 4) & 15u, high = p[8 + j % 4] >> (j / 4 * 2) & 3u;
    return (int)(low | high << 4) - 32;
}

/* A third bit that is not set stands for -4; codes are 8 more than their numbers. */
static void q3_k(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b + 108);
    for (uint32_t j = 0; j < LARGE / 16; j++)
        to->parts[j] = (int8_t)scale_q3(b + 96, j);
    for (uint32_t i = 0; i < LARGE; i++)
        to->q[i] = (uint8_t)(two_bits(b + 32, i) + (b[i % 32] >> (i / 32) & 1 ? 8 : 4));
}

/* Scale and min j of 8, 6 bits each: those of the first four lie whole in bytes 0 to 3 and 4 to 7,
 * whose high 2 bits are those of the other four; bytes 8 to 11 have the low 4 bits of both. */
static void scales_k(const struct gguf_codes *to, const unsigned char *p)
{
    for (uint32_t j = 0; j < LARGE / SMALL; j++) {
        unsigned s = p[j % 4] & 63u, m = p[4 + j % 4] & 63u;
        if (j >= 4) {
            s = (p[4 + j] & 15u) | (p[j - 4] >> 6) << 4;
            m = p[4 + j] >> 4 | (p[j] >> 6) << 4;
        }
        to->parts[j] = (int8_t)s;
        to->part_mins[j] = (int8_t)m;
    }
}

/* 256 nibbles: two runs of 32 in 32 bytes. */
static void nibbles_k(uint8_t *q, const unsigned char *p)
{
    for (uint32_t i = 0; i < LARGE; i++)
        q[i] = p[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15u;
}

static void q4_k(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b);
    *to->super_mins = -load_f16(b + 2);
    scales_k(to, b + 4);
    nibbles_k(to->q, b + 16);
}

static void q5_k(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b);
    *to->super_mins = -load_f16(b + 2);
    scales_k(to, b + 4);
    nibbles_k(to->q, b + 48);
    for (uint32_t i = 0; i < LARGE; i++)
        to->q[i] = (uint8_t)(to->q[i] | (b[16 + i % SMALL] >> i / SMALL & 1u) << 4);
}

static void q6_k(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b + 208);
    memcpy(to->parts, b + 192, LARGE / 16);
    for (uint32_t i = 0; i < LARGE; i++) {
        const unsigned low = b[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15u;
        to->q[i] = (uint8_t)((int)(low | two_bits(b + 128, i) << 4) - 32);
    }
}

/* Nibbles lie as those of 8 small blocks. */
static void iq4_xs(const struct gguf_codes *to, const unsigned char *b)
{
    const uint32_t high = load_u16(b + 2);
    *to->supers = load_f16(b);
    for (uint32_t j = 0; j < LARGE / SMALL; j++) {
        const unsigned low = b[4 + j / 2] >> (j % 2 * 4) & 15u;
        to->parts[j] = (int8_t)((int)(low | (high >> 2 * j & 3) << 4) - 32);
        nibbles(to->q + (size_t)j * SMALL, b + 8 + (size_t)j * SMALL / 2);
    }
}

/* One d for all. */
static void ternary(const struct gguf_codes *to, const unsigned char *d)
{
    *to->supers = load_f16(d);
    memset(to->parts, 1, LARGE / SMALL);
}

static void tq2_0(const struct gguf_codes *to, const unsigned char *b)
{
    ternary(to, b + 64);
    for (uint32_t i = 0; i < LARGE; i++)
        to->q[i] = (uint8_t)(two_bits(b, i) + 8 - 1);
}

/* A byte is the digits after the point of a number below 1, to base 3, times 256 and rounded up. Of
 * n_byte bytes the first digits are the first numbers, then the second digits … */
static void digits(uint8_t *q, const unsigned char *p, uint32_t n_byte, uint32_t n_digit)
{
    for (uint32_t i = 0; i < n_byte; i++) {
        unsigned left = p[i];
        for (uint32_t k = 0; k < n_digit; k++, left = left * 3 & 255u)
            q[k * n_byte + i] = (uint8_t)((left * 3 >> 8) + 8 - 1);
    }
}

static void tq1_0(const struct gguf_codes *to, const unsigned char *b)
{
    ternary(to, b + 52);
    digits(to->q, b, 32, 5);
    digits(to->q + 160, b + 32, 16, 5);
    digits(to->q + 240, b + 48, 4, 4);
}

static const struct reader {
    const char *name;
    void (*block)(const struct gguf_codes *to, const unsigned char *b);
    struct gguf_form form;
} readers[] = {
    {"Q4_0", q4_0, {GGUF_VALUES_SIGNED, GGUF_SCALES_F16, false, 32}},
    {"Q4_1", q4_1, {GGUF_VALUES_HALVES, GGUF_SCALES_F16, true, 32}},
    {"Q5_0", q5_0, {GGUF_VALUES_BYTES, GGUF_SCALES_F16, false, 32}},
    {"Q5_1", q5_1, {GGUF_VALUES_BYTES, GGUF_SCALES_F16, true, 32}},
    {"Q8_0", q8_0, {GGUF_VALUES_BYTES, GGUF_SCALES_F16, false, 32}},
    {"Q2_K", q2_k, {GGUF_VALUES_HALVES, GGUF_SCALES_BY_256, true, 16}},
    {"Q3_K", q3_k, {GGUF_VALUES_SIGNED, GGUF_SCALES_BY_256, false, 16}},
    {"Q4_K", q4_k, {GGUF_VALUES_HALVES, GGUF_SCALES_BY_256, true, 32}},
    {"Q5_K", q5_k, {GGUF_VALUES_SIX, GGUF_SCALES_BY_256, true, 32}},
    {"Q6_K", q6_k, {GGUF_VALUES_SIX, GGUF_SCALES_BY_256, false, 16}},
    {"MXFP4", mxfp4, {GGUF_VALUES_E2M1, GGUF_SCALES_F32, false, 32}},
    {"IQ4_NL", q4_0, {GGUF_VALUES_NL, GGUF_SCALES_F16, false, 32}},
    {"IQ4_XS", iq4_xs, {GGUF_VALUES_NL, GGUF_SCALES_BY_256, false, 32}},
    {"NVFP4", nvfp4, {GGUF_VALUES_E2M1, GGUF_SCALES_F32, false, 16}},
    {"Q1_0", q1_0, {GGUF_VALUES_SIGNED, GGUF_SCALES_F16, false, 32}},
    {"TQ1_0", tq1_0, {GGUF_VALUES_SIGNED, GGUF_SCALES_BY_256, false, 32}},
    {"TQ2_0", tq2_0, {GGUF_VALUES_SIGNED, GGUF_SCALES_BY_256, false, 32}},
    {"IQ1_S", gguf_iq1_s, {GGUF_VALUES_IQ1, GGUF_SCALES_BY_256, false, 32}},
    {"IQ1_M", gguf_iq1_m, {GGUF_VALUES_IQ1, GGUF_SCALES_BY_256, false, 16}},
    {"IQ2_XXS", gguf_iq2_xxs, {GGUF_VALUES_IQ2, GGUF_SCALES_BY_256, false, 32}},
    {"IQ2_XS", gguf_iq2_xs, {GGUF_VALUES_IQ2, GGUF_SCALES_BY_256, false, 16}},
    {"IQ2_S", gguf_iq2_s, {GGUF_VALUES_IQ2, GGUF_SCALES_BY_256, false, 16}},
    {"IQ3_XXS", gguf_iq3_xxs, {GGUF_VALUES_IQ3_XXS, GGUF_SCALES_BY_256, false, 32}},
    {"IQ3_S", gguf_iq3_s, {GGUF_VALUES_IQ3_S, GGUF_SCALES_BY_256, false, 32}},
};

static const struct reader *reader_of(const struct gguf_type *t)
{
    size_t i = 0;
    while (i < sizeof readers / sizeof *readers && strcmp(readers[i].name, t->name) != 0)
        i++;
    Q_ASSERT(i < sizeof readers / sizeof *readers); /* every BLOCKS of types.def has one */
    return &readers[i];
}

struct gguf_form gguf_form_of(const struct gguf_type *t)
{
    return reader_of(t)->form;
}

float gguf_value(enum gguf_values values, uint8_t code)
{
    static const float tables[][16] = {
        [GGUF_VALUES_HALVES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        [GGUF_VALUES_SIGNED] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
        [GGUF_VALUES_NL] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
                            113},
        [GGUF_VALUES_E2M1] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
        [GGUF_VALUES_IQ1] = {-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7},
        [GGUF_VALUES_IQ2] = {8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43},
        [GGUF_VALUES_IQ3_XXS] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52,
                                 -62},
        [GGUF_VALUES_IQ3_S] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15},
    };
    return values == GGUF_VALUES_BYTES || values == GGUF_VALUES_SIX ? (float)(int8_t)code
                                                                    : tables[values][code & 15];
}

void gguf_codes(const struct gguf_codes *to, const struct gguf_type *t, const unsigned char *data,
                size_t n_block)
{
    const struct reader *r = reader_of(t);
    const uint32_t n_group = t->block / r->form.group;
    struct gguf_codes at = *to;
    for (size_t i = 0; i < n_block; i++, data += t->bytes) {
        r->block(&at, data);
        at.q += t->block;
        if (r->form.scales == GGUF_SCALES_BY_256) {
            at.supers++;
            at.super_mins++;
            at.parts += n_group;
            at.part_mins += n_group;
        } else {
            at.scales += n_group;
            at.mins += n_group;
        }
    }
}

/* out: [t->block]. d q is exact in f32 where there is a min, so that one rounding follows. */
static void block_floats(float *out, const struct gguf_type *t, const struct gguf_codes *c)
{
    const struct gguf_form f = gguf_form_of(t);
    const bool by_256 = f.scales == GGUF_SCALES_BY_256;
    for (uint32_t i = 0; i < t->block; i++) {
        const uint32_t g = i / f.group;
        const float scale = by_256 ? *c->supers * (float)c->parts[g] : c->scales[g];
        const float product = scale * gguf_value(f.values, c->q[i]);
        out[i] = !f.has_min ? product
                 : by_256   ? product + *c->super_mins * (float)c->part_mins[g]
                            : product + c->mins[g];
    }
}

void gguf_rows(float *out, const struct gguf_type *t, const unsigned char *data, size_t n_block)
{
    uint8_t q[LARGE];
    int8_t parts[GROUPS_MAX], part_mins[GROUPS_MAX];
    float scales[GROUPS_MAX], mins[GROUPS_MAX], super, super_min;
    const struct gguf_codes c = {q, scales, mins, parts, part_mins, &super, &super_min};
    for (size_t k = 0; k < n_block; k++) {
        gguf_codes(&c, t, data + k * t->bytes, 1);
        block_floats(out + k * t->block, t, &c);
    }
}

void gguf_q4_0(uint16_t *scale, uint8_t q[32], const unsigned char *data)
{
    *scale = load_u16(data);
    nibbles(q, data + 2);
}
