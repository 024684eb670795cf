/* SPDX-License-Identifier: Apache-2.0 */
/* sequence_internal - the bytes that writer and reader of a sequence file share (the picture is in
 * sequence_file.h). Threads: types only. */
#ifndef QUIRE_ENGINE_DISTILL_SEQUENCE_INTERNAL_H
#define QUIRE_ENGINE_DISTILL_SEQUENCE_INTERNAL_H
#include <stddef.h>
#include "engine/distill/sequence_file.h"

#define SEQUENCE_MAGIC   "quireseq"
#define SEQUENCE_VERSION 2u
#define SEQUENCE_LABELS  1u /* flag of a record: labels of their own */
#define SEQUENCE_BUFFER  ((size_t)1 << 20)

struct sequence_head {
    char magic[8];
    uint32_t version, head_bytes;
    char key[SEQUENCE_FILE_KEY];
    uint64_t file_bytes, index_at, notes_at;
    struct sequence_totals totals;
    uint64_t content_sum; /* of the bytes from SEQUENCE_FILE_HEAD to notes_at */
    uint64_t body_sum;    /* of all bytes behind SEQUENCE_FILE_HEAD */
    uint64_t head_sum;    /* of this struct up to here */
};
_Static_assert(sizeof(struct sequence_head) <= SEQUENCE_FILE_HEAD, "the head's room");

struct sequence_entry { /* of the index */
    uint64_t at;
    uint32_t n_row, n_counted;
};
_Static_assert(sizeof(struct sequence_entry) == 16, "no padding on disk");

struct sequence_record { /* followed by what sequence_file.h lists */
    uint32_t n_segment, flags;
};

static inline size_t sequence_mask_words(uint32_t n_row)
{
    return ((size_t)n_row + 31) / 32;
}

#endif
