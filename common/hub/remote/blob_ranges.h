/* SPDX-License-Identifier: Apache-2.0 */
/* blob_ranges - which bytes of a large blob are there while several connections write it.
 *
 *     ETAG.ranges.incomplete
 *     content, with holes  [size]   ranges of RANGE_BYTES, the last one shorter
 *     "QRANGES1"           u64
 *     RANGE_BYTES          u64
 *     bytes of each range  u64 [n]  from its beginning on, without holes
 *
 * Numbers are of this machine's order. A number is written after the bytes that it counts, so a
 * process that is killed leaves numbers that are right or too small; after a power failure the
 * checksum of the whole tells. A file of another length than this layout has is a beginning without
 * holes, as ETAG.incomplete. Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_BLOB_RANGES_H
#define QUIRE_COMMON_HUB_REMOTE_BLOB_RANGES_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "common/file.h"

#define RANGE_BYTES ((uint64_t)32 << 20) /* asked for at once: seconds of a fast connection */
#define RANGE_NONE  UINT32_MAX

struct blob_ranges {
    uint64_t size;   /* of the content */
    uint64_t *there; /* [n] bytes of each range, from its beginning on */
    bool *taken;     /* [n] a request loads it */
    uint64_t sum;    /* of all there */
    uint32_t n;      /* 0: the blob is not in ranges */
    uint32_t front;  /* the first one that is not whole; n: none */
};
/* clang-format off */
#define BLOB_RANGES_INIT {0}
/* clang-format on */

/* What the file has, or, when its end has another layout, of a beginning of as many bytes as it
 * has. Reserves the space. Errors: Q_IO, Q_NO_SPACE, Q_NO_MEMORY, Q_TOO_LARGE. */
FALLIBLE blob_ranges_open(struct blob_ranges *r, const struct file_open *f, uint64_t size,
                          struct q_err *e);
void blob_ranges_release(struct blob_ranges *r);
/* Nothing is there. Errors: Q_IO. */
FALLIBLE blob_ranges_reset(struct blob_ranges *r, const struct file_open *f, struct q_err *e);

/* A range that is not whole and not taken, which is then; RANGE_NONE: there is none. */
uint32_t blob_ranges_take(struct blob_ranges *r);
bool blob_ranges_is_free(const struct blob_ranges *r); /* is there one? */
void blob_ranges_give_back(struct blob_ranges *r, uint32_t i);
uint64_t blob_ranges_begin(uint32_t i);
uint64_t blob_ranges_end(const struct blob_ranges *r, uint32_t i); /* behind the last byte */

/* Count n bytes that were written at `at`: where the bytes of a range that are there end. They may
 * go on in the ranges behind it, of which nothing is there. Errors: Q_IO. */
FALLIBLE blob_ranges_add(struct blob_ranges *r, const struct file_open *f, uint64_t at, uint64_t n,
                         struct q_err *e);
/* Bytes from the beginning of the content on that are there without a hole. */
uint64_t blob_ranges_front(const struct blob_ranges *r);

#endif
