/* SPDX-License-Identifier: Apache-2.0 */
/* nearest - suggestions for misspelt names. Threads: reentrant. */
#ifndef QUIRE_COMMON_NEAREST_H
#define QUIRE_COMMON_NEAREST_H
#include <stddef.h>

#define NEAREST_MAX 64 /* maximum length of a text in bytes */

/* Edit distance from a [n_a] to b [n_b]: insertion, deletion, substitution or swap of two
 * neighbours. If one is longer than NEAREST_MAX: the length of the longer text. */
size_t nearest_distance(const char *a, size_t n_a, const char *b, size_t n_b);
/* The nearest of the space-separated names: its length and start; 0: none is near. */
size_t nearest_name(const char *name, const char *names, const char **nearest);

#endif
