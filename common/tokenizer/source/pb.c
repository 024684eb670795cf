/* SPDX-License-Identifier: Apache-2.0 */
/* Source: the encoding page of the Protocol Buffers documentation. */
#include "common/tokenizer/source/pb.h"
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

void pb_init(struct pb *m, struct tok_str bytes)
{
    *m = (struct pb){.p = bytes.s, .end = bytes.s + bytes.n};
}

static bool varint(struct pb *m, uint64_t *out)
{
    uint64_t x = 0;
    for (unsigned shift = 0; shift < 64 && m->p < m->end; shift += 7) {
        unsigned char byte = (unsigned char)*m->p++;
        x |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = x;
            return true;
        }
    }
    return false;
}

static bool fixed(struct pb *m, size_t n)
{
    m->number = 0;
    if ((size_t)(m->end - m->p) < n)
        return false;
    memcpy(&m->number, m->p, n); /* little-endian, as every machine quire runs on */
    m->p += n;
    return true;
}

static bool bytes(struct pb *m)
{
    uint64_t n;
    if (!varint(m, &n) || n > (uint64_t)(m->end - m->p))
        return false;
    m->bytes = (struct tok_str){m->p, (size_t)n};
    m->p += n;
    return true;
}

static bool value(struct pb *m, unsigned kind)
{
    switch (kind) {
    case VARINT:
        return varint(m, &m->number);
    case FIXED64:
        return fixed(m, 8);
    case BYTES:
        return bytes(m);
    case FIXED32:
        return fixed(m, 4);
    default:
        return false; /* groups went out of use before SentencePiece was written */
    }
}

bool pb_next(struct pb *m)
{
    uint64_t key;
    if (m->bad || m->p == m->end)
        return false;
    m->bytes = (struct tok_str){"", 0};
    m->bad = !varint(m, &key) || key >> 3 == 0 || key >> 3 > 0x1fffffff || !value(m, key & 7);
    m->field = m->bad ? 0 : (uint32_t)(key >> 3);
    return !m->bad;
}

float pb_float(const struct pb *m)
{
    float x;
    uint32_t bits = (uint32_t)m->number;
    memcpy(&x, &bits, sizeof x);
    return x;
}
