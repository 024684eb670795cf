/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/pool_values.h"
#include <openssl/evp.h>
#include <string.h>
#include "common/dtype.h"

#define PIECE_BYTES 3072u /* converted at once; a multiple of 3, for base64, and of a number */

static void put_f32(unsigned char *out, float x)
{
    memcpy(out, &x, sizeof x);
}

static void put_f16(unsigned char *out, float x)
{
    const uint16_t bits = f32_to_f16(x);
    memcpy(out, &bits, sizeof bits);
}

static void put_bf16(unsigned char *out, float x)
{
    const uint16_t bits = f32_to_bf16(x);
    memcpy(out, &bits, sizeof bits);
}

static void put_e4m3(unsigned char *out, float x)
{
    *out = f32_to_f8(x, DT_F8_E4M3);
}

static void put_e5m2(unsigned char *out, float x)
{
    *out = f32_to_f8(x, DT_F8_E5M2);
}

static const struct {
    const char *name;
    size_t n_byte;
    void (*put)(unsigned char *out, float x);
} dtypes[] = {
    {"float32", 4, put_f32},   {"float16", 2, put_f16},   {"bfloat16", 2, put_bf16},
    {"fp8_e4m3", 1, put_e4m3}, {"fp8_e5m2", 1, put_e5m2},
};

/* The place of a word; 0 where it is none. */
static uint8_t place_of(const char *word, const char *const *words, uint8_t n)
{
    for (uint8_t i = 0; i < n; i++)
        if (!strcmp(word, words[i]))
            return i;
    return 0;
}

struct pool_values pool_values_of(const char *encoding, const char *dtype, const char *endianness)
{
    static const char *const encodings[] = {"float", "base64", "bytes", "bytes_only"};
    const char *native = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "little" : "big";
    struct pool_values v = {
        .encoding = place_of(encoding, encodings, 4),
        .is_reversed = strcmp(endianness, "native") != 0 && strcmp(endianness, native) != 0,
    };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        v.i_dtype = strcmp(dtype, dtypes[i].name) ? v.i_dtype : (uint8_t)i;
    return v;
}

size_t pool_values_bytes(const struct pool_values *v, size_t n)
{
    return n * dtypes[v->i_dtype].n_byte;
}

/* x [n], n * bytes of a number <= PIECE_BYTES. The number of bytes. */
static size_t put_piece(const struct pool_values *v, unsigned char *out, const float *x, size_t n)
{
    const size_t n_byte = dtypes[v->i_dtype].n_byte;
    for (size_t i = 0; i < n; i++, out += n_byte) {
        dtypes[v->i_dtype].put(out, x[i]);
        for (size_t k = 0; v->is_reversed && k < n_byte / 2; k++) {
            const unsigned char byte = out[k];
            out[k] = out[n_byte - 1 - k];
            out[n_byte - 1 - k] = byte;
        }
    }
    return n * n_byte;
}

static void add_numbers(struct buf *out, const float *x, size_t n)
{
    buf_add_char(out, '[');
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%.9g", i ? "," : "", (double)x[i]);
    buf_add_char(out, ']');
}

void pool_values_add(const struct pool_values *v, struct buf *out, const float *x, size_t n)
{
    const bool is_text = v->encoding == POOL_BASE64;
    const size_t most = PIECE_BYTES / dtypes[v->i_dtype].n_byte;
    unsigned char piece[PIECE_BYTES], text[PIECE_BYTES / 3 * 4 + 1];
    if (v->encoding == POOL_FLOAT) {
        add_numbers(out, x, n);
        return;
    }
    if (is_text)
        buf_add_char(out, '"');
    for (size_t at = 0; at < n; at += most) {
        const size_t n_byte = put_piece(v, piece, x + at, n - at < most ? n - at : most);
        if (is_text)
            buf_add(out, text, (size_t)EVP_EncodeBlock(text, piece, (int)n_byte));
        else
            buf_add(out, piece, n_byte);
    }
    if (is_text)
        buf_add_char(out, '"');
}
