/* SPDX-License-Identifier: Apache-2.0 */
#include "common/output.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;

static void check(int code, void *unused)
{
    (void)unused;
    int failed = ferror(stdout);
    errno = 0;
    if (fflush(stdout) == 0 && !failed)
        return;
    fprintf(stderr, "%s: cannot write to standard output: %s\n", name,
            errno ? strerror(errno) : "part of the output is lost");
    fflush(stderr);
    _exit(code ? code : 1); /* the code is exit()'s already: there is no other way to change it */
}

void output_check_at_exit(const char *program)
{
    if (!name)
        on_exit(check, NULL);
    name = program;
}
