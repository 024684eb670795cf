/* SPDX-License-Identifier: Apache-2.0 */
/* nearest - what a misspelt name may mean. Threads: reentrant. */
#ifndef QUIRE_COMMON_NEAREST_H
#define QUIRE_COMMON_NEAREST_H
#include <stddef.h>

#define NEAREST_MAX 64 /* bytes of each text whose distance is counted */

/* Edits from a [n_a] to b [n_b]: a letter more, less, another, or two neighbours exchanged. With
 * one longer than NEAREST_MAX: the length of the longer. */
size_t nearest_distance(const char *a, size_t n_a, const char *b, size_t n_b);
/* Which of the names, one space between two, the given one is a misspelling of: its length, and
 * where it begins; 0: none is near. */
size_t nearest_name(const char *name, const char *names, const char **nearest);

#endif
