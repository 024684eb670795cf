/* SPDX-License-Identifier: Apache-2.0 */
#include "common/start.h"
#include <stdio.h>
#include <stdlib.h>

bool start_is_check(void)
{
    return getenv(START_CHECK) != NULL;
}

void start_fail(const char *name, const char *message)
{
    const bool bare = start_is_check();
    fprintf(stderr, "%s%s%s\n", bare ? "" : name, bare ? "" : ": ", message);
}
