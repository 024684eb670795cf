/* SPDX-License-Identifier: Apache-2.0 */
/* zip - the entries of a mapped zip archive, as views of the mapping.
 *
 *     | local header, name, extra, data | … | central directory | zip64 end, locator | end |
 *
 * Entries are found through the central directory; with zip64 sizes and offsets of 64 bits. Nothing
 * is unpacked: an entry that is compressed or encrypted is refused when it is asked for. Checksums
 * are not compared: torch may leave them out, and every page would have to be read.
 * Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 to 4.3.16. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_ZIP_H
#define QUIRE_COMMON_HUB_ZIP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define ZIP_ENTRIES_MAX ((size_t)1 << 20)

struct zip_entry {
    const char *name; /* [n_name], borrowed from the mapping */
    uint32_t n_name;
    uint16_t method, flags;     /* as in the file */
    uint64_t header;            /* offset of its local header */
    uint64_t n_stored, n_bytes; /* in the file, unpacked */
};

struct zip {
    const unsigned char *data; /* [size], borrowed */
    size_t size;
    const char *path;        /* for messages, borrowed */
    uint64_t end;            /* entries lie before it: the central directory */
    struct zip_entry *items; /* [n], sorted by name */
    size_t n, cap;
};

/* Does a file begin as a zip archive does? */
bool zip_is(const void *data, size_t n);
/* List the entries. z: all zeros. Errors: Q_CORRUPT (path, entry, reason), Q_UNSUPPORTED (archives
 * on several disks), Q_TOO_LARGE, Q_NO_MEMORY; `z` is released then. */
FALLIBLE zip_open(struct zip *z, const void *data, size_t size, const char *path, struct q_err *e);
void zip_release(struct zip *z);
/* NULL: there is no such entry. */
const struct zip_entry *zip_find(const struct zip *z, const char *name, size_t n_name);

struct zip_bytes {
    const unsigned char *data; /* into the mapping, without alignment */
    uint64_t n;
};
/* Errors: Q_UNSUPPORTED (compressed, encrypted), Q_CORRUPT. */
FALLIBLE zip_bytes(struct zip_bytes *out, const struct zip *z, const struct zip_entry *entry,
                   struct q_err *e);

#endif
