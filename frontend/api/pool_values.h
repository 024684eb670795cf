/* SPDX-License-Identifier: Apache-2.0 */
/* pool_values - how an answer has the numbers of a vector: encoding_format, embed_dtype and
 * endianness of a request, with vLLM's names and meaning.
 *
 * float is JSON's numbers of f32, whatever embed_dtype is. base64 and bytes are the numbers one
 * after another, rounded to embed_dtype (to nearest, ties to even) with bytes in the order of
 * endianness. Threads: values. */
#ifndef QUIRE_FRONTEND_API_POOL_VALUES_H
#define QUIRE_FRONTEND_API_POOL_VALUES_H
#include <stdbool.h>
#include "common/buf.h"

enum pool_encoding {
    POOL_FLOAT,
    POOL_BASE64,
    POOL_BYTES,     /* the body is all vectors; a header says where each is */
    POOL_BYTES_ONLY /* without the header */
};
#define POOL_ENCODING_WORDS "float base64 bytes bytes_only"
#define POOL_DTYPE_WORDS    "float32 float16 bfloat16 fp8_e4m3 fp8_e5m2"
#define POOL_ENDIAN_WORDS   "native big little"

struct pool_values { /* all zero: float */
    enum pool_encoding encoding;
    uint8_t i_dtype;  /* of the words */
    bool is_reversed; /* the bytes of a number are not in this machine's order */
};
/* Each is one of its words. */
struct pool_values pool_values_of(const char *encoding, const char *dtype, const char *endianness);
static inline bool pool_values_is_body(const struct pool_values *v)
{
    return v->encoding == POOL_BYTES || v->encoding == POOL_BYTES_ONLY;
}
/* Bytes of n numbers in base64 (before it) or bytes. */
size_t pool_values_bytes(const struct pool_values *v, size_t n);
/* Append x [n]: a JSON array, a JSON string, or bytes. */
void pool_values_add(const struct pool_values *v, struct buf *out, const float *x, size_t n);

#endif
