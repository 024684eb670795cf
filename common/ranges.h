/* SPDX-License-Identifier: Apache-2.0 */
/* ranges - the bytes of a text with a property: a sorted list of disjoint ranges.
 *
 * A rendered prompt has one: the bytes copied from the request, in which control tokens are not
 * recognized (made by template/chat.h, used by tokenizer/tokenizer.h).
 * Threads: one owner. */
#ifndef QUIRE_COMMON_RANGES_H
#define QUIRE_COMMON_RANGES_H
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

#define RANGES_MAX ((size_t)1 << 21) /* ranges of one text */

struct byte_range {
    size_t start, end; /* bytes, end exclusive, start < end */
};
struct ranges {
    struct byte_range *at; /* [n] */
    size_t n, cap;
};
/* clang-format off */
#define RANGES_INIT {NULL, 0, 0}
/* clang-format on */

/* Add [start, end), which starts at or after the end of the last range; adjacent ranges are merged,
 * empty ones ignored. Errors: Q_TOO_LARGE, Q_NO_MEMORY; nothing is added then. */
FALLIBLE ranges_add(struct ranges *r, size_t start, size_t end, struct q_err *e);
/* Remove everything from `end` on. */
void ranges_cut(struct ranges *r, size_t end);
/* Index of the first range that ends after `at`; r->n if there is none. Cost: O(log n). */
size_t ranges_find(const struct ranges *r, size_t at);
/* Is a byte of [start, end) in a range? */
bool ranges_meet(const struct ranges *r, size_t start, size_t end);
void ranges_release(struct ranges *r);

#endif
