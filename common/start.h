/* SPDX-License-Identifier: Apache-2.0 */
/* start - how a program says why it cannot start, once.
 *
 * A supervisor asks its children before it starts them: with QUIRE_CHECK in the environment a
 * program checks all that can be known before it listens and loads, and ends with 0 or, after one
 * line with the reason and nothing else in it, with the code it would have ended with. The
 * supervisor says that line as its own. Threads: main, before others start. */
#ifndef QUIRE_COMMON_START_H
#define QUIRE_COMMON_START_H
#include <stdbool.h>
#include "common/err.h"

#define START_CHECK "QUIRE_CHECK" /* environment: only check */

/* Was this program started to check only, and to end before it listens or loads? */
bool start_is_check(void);
/* "NAME: MESSAGE" to standard error, or the message alone when it is a check. */
void start_fail(const char *name, const char *message);

#endif
