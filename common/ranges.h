/* SPDX-License-Identifier: Apache-2.0 */
/* ranges - which bytes of a text have a property: a sorted list of ranges that do not touch.
 *
 * A rendered prompt carries one: the bytes that came from the request, in which no control token is
 * looked for (template/chat.h makes it, tokenizer/tokenizer.h takes it).
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

/* Add [start, end), which begins no earlier than the last range ends; touching ranges become one,
 * an empty one is none. Errors: Q_TOO_LARGE, Q_NO_MEMORY; nothing is added then. */
FALLIBLE ranges_add(struct ranges *r, size_t start, size_t end, struct q_err *e);
/* Nothing from `end` on. */
void ranges_cut(struct ranges *r, size_t end);
/* Index of the first range that ends behind `at`; r->n when there is none. Cost: O(log n). */
size_t ranges_find(const struct ranges *r, size_t at);
/* Is a byte of [start, end) in a range? */
bool ranges_meet(const struct ranges *r, size_t start, size_t end);
void ranges_release(struct ranges *r);

#endif
