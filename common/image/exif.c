/* SPDX-License-Identifier: Apache-2.0 */
/* A block of EXIF is a TIFF file of which one number is wanted:
 *
 *     "II" 42 | offset of the directory (u32)          "MM": big-endian
 *     directory: n (u16) | n entries of 12 bytes: tag, type (u16), count, value (u32) | …
 *
 * The entry 0x0112 of type SHORT and count 1 has the orientation in the first two bytes of its
 * value. Nothing else is followed: no other directory, no value outside of an entry. Source: TIFF
 * 6.0, section 2; Exif 2.32, 4.6.4. */
#include <stdbool.h>
#include "common/image/image_internal.h"

#define ENTRY_BYTES     12
#define TAG_ORIENTATION 0x0112
#define TYPE_SHORT      3

struct tiff {
    const unsigned char *data;
    size_t n;
    bool is_big_endian;
};

/* `offset` and what follows it up to n_byte bytes lie in the block. */
static bool has(const struct tiff *t, size_t offset, size_t n_byte)
{
    return offset <= t->n && t->n - offset >= n_byte;
}

static uint32_t read_u16(const struct tiff *t, size_t offset)
{
    const unsigned char *p = t->data + offset;
    return t->is_big_endian ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
}

static uint32_t read_u32(const struct tiff *t, size_t offset)
{
    const uint32_t first = read_u16(t, offset), second = read_u16(t, offset + 2);
    return t->is_big_endian ? first << 16 | second : second << 16 | first;
}

unsigned image_exif_orientation(const unsigned char *data, size_t n)
{
    struct tiff t = {data, n, false};
    if (n >= 6 && memcmp(data, "Exif\0", 6) == 0) {
        t.data += 6;
        t.n -= 6;
    }
    if (!has(&t, 0, 8))
        return 1;
    t.is_big_endian = t.data[0] == 'M';
    if (memcmp(t.data, t.is_big_endian ? "MM\0*" : "II*", 4) != 0)
        return 1;
    const size_t directory = read_u32(&t, 4);
    if (!has(&t, directory, 2))
        return 1;
    const uint32_t n_entry = read_u16(&t, directory);
    for (uint32_t i = 0; i < n_entry; i++) {
        const size_t entry = directory + 2 + (size_t)i * ENTRY_BYTES;
        if (!has(&t, entry, ENTRY_BYTES))
            return 1;
        if (read_u16(&t, entry) != TAG_ORIENTATION)
            continue;
        const uint32_t value = read_u16(&t, entry + 8);
        const bool is_one = read_u16(&t, entry + 2) == TYPE_SHORT && read_u32(&t, entry + 4) == 1;
        return is_one && value >= 1 && value <= 8 ? value : 1;
    }
    return 1;
}
