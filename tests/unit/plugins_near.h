/* SPDX-License-Identifier: Apache-2.0 */
/* plugins_near - where the plugins of tests/plugins lie that were built with a test. Threads: the
 * test's. */
#ifndef QUIRE_TESTS_UNIT_PLUGINS_NEAR_H
#define QUIRE_TESTS_UNIT_PLUGINS_NEAR_H
#include <limits.h>
#include "check.h"

#define PLUGINS_DIR_MAX 1024u

/* program: argv[0] of main. */
static inline void plugins_near(char dir[PLUGINS_DIR_MAX], const char *program)
{
    char full[PATH_MAX];
    if (!realpath(program, full) || strlen(full) + 9 > PLUGINS_DIR_MAX) {
        fprintf(stderr, "%s: no path to it\n", program);
        exit(2);
    }
    *strrchr(full, '/') = '\0';
    snprintf(dir, PLUGINS_DIR_MAX, "%.*s/plugins", (int)PLUGINS_DIR_MAX - 9, full);
}

#endif
