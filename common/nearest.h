/* SPDX-License-Identifier: Apache-2.0 */
/* nearest - what a misspelt name may mean. Threads: reentrant. */
#ifndef QUIRE_COMMON_NEAREST_H
#define QUIRE_COMMON_NEAREST_H
#include <stddef.h>

/* Which of the names, one space between two, the given one is a misspelling of: its length, and
 * where it begins; 0: none is near. */
size_t nearest_name(const char *name, const char *names, const char **nearest);

#endif
