/* SPDX-License-Identifier: Apache-2.0 */
#include "common/output.h"
#include <errno.h>
#include <fcntl.h>
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
    _exit(code ? code : 1); /* exit() has fixed its code; only _exit can end with another one */
}

/* With a standard stream closed (`>&-`) the next file or socket that is opened gets its number, and
 * would receive the output. Writes to /dev/full fail, as those to a closed stream do. */
static void open_standard_streams(void)
{
    static const char *const paths[] = {"/dev/null", "/dev/full", "/dev/null"};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open(paths[fd], fd ? O_WRONLY : O_RDONLY); /* the lowest number is free: fd */
}

void output_check_at_exit(const char *program)
{
    if (!name) {
        open_standard_streams();
        on_exit(check, NULL);
    }
    name = program;
}
