/* SPDX-License-Identifier: Apache-2.0 */
/* The byte-level alphabet: printable Latin-1 bytes represent themselves, the other 68 bytes are
 * represented by U+0100 and up, in byte order. */
#include "common/tokenizer/tokenizer_internal.h"

#define N_MOVED 68 /* bytes that are not printable in Latin-1 */

static inline bool printable(unsigned char b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* How many bytes below b were moved to U+0100 and up. */
static uint32_t moved_below(unsigned char b)
{
    if (b < 0x21)
        return b;
    if (b < 0x7f)
        return 0x21;
    if (b < 0xa1)
        return 0x21 + (b - 0x7fu);
    return b <= 0xad ? 0x21 + 0x22 : N_MOVED;
}

uint32_t tok_byte_char(unsigned char byte)
{
    return printable(byte) ? byte : 0x100 + moved_below(byte);
}

static inline int char_byte(uint32_t cp)
{
    if (cp < 0x100)
        return printable((unsigned char)cp) ? (int)cp : -1;
    uint32_t i = cp - 0x100;
    if (i >= N_MOVED)
        return -1;
    if (i < 0x21)
        return (int)i;
    return i < 0x21 + 0x22 ? (int)(0x7f + i - 0x21) : 0xad;
}

int tok_char_byte(uint32_t cp)
{
    return char_byte(cp);
}

bool tok_unmap(const char *s, size_t n, struct buf *out)
{
    size_t n_byte = 0;
    char *to = buf_room(out, n);
    int byte = 0;
    for (size_t i = 0; to && i < n && byte >= 0;) {
        uint32_t cp = (unsigned char)s[i++];
        if (cp >= 0x80 && i < n) /* the alphabet ends at U+0143: two bytes */
            cp = cp <= 0xc5 ? (cp & 0x1f) << 6 | ((unsigned char)s[i++] & 0x3f) : UINT32_MAX;
        byte = char_byte(cp);
        to[n_byte++] = (char)byte;
    }
    if (to) {
        out->len += byte >= 0 ? n_byte : 0;
        out->data[out->len] = '\0';
    }
    return byte >= 0;
}
