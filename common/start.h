/* SPDX-License-Identifier: Apache-2.0 */
/* start - reporting of start errors, once.
 *
 * A supervisor checks its children before it starts them: with QUIRE_CHECK in the environment a
 * program checks everything that is possible before listening and loading, and exits with 0, or
 * prints one line with the reason and exits with the code of a real start. The supervisor prints
 * that line as its own. Threads: main, before others start. */
#ifndef QUIRE_COMMON_START_H
#define QUIRE_COMMON_START_H
#include <stdbool.h>
#include "common/err.h"

#define START_CHECK "QUIRE_CHECK" /* environment: only check */

/* Was this program started to check only, and to end before it listens or loads? */
bool start_is_check(void);
/* Print "NAME: MESSAGE" to standard error, or only the message in a check. */
void start_fail(const char *name, const char *message);

#endif
