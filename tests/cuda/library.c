/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_library FILE: libquire-cuda.so where no card can be seen. It loads with every symbol
 * resolved, its table is of this build, and opening a device says that there is none. Exit status
 * 1: not so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/device.h"

static int wrong(const char *what)
{
    fprintf(stderr, "library: %s\n", what);
    return 1;
}

int main(int argc, char **argv)
{
    const struct device_table *t = NULL;
    const struct device_options options = {.index = 0};
    struct device *d = NULL;
    struct q_err e = Q_ERR_INIT;
    if (argc != 2)
        return wrong("usage: library FILE");
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* where there is a card */
    if (device_library_open(&t, argv[1], &e))
        return wrong(e.message);
    if (strcmp(t->name, "cuda") != 0 || t->kern_bytes != sizeof(struct kern_table))
        return wrong("the table is not of this build");
    const enum q_code rc = t->open(&d, &options, &e);
    if (rc != Q_NOT_FOUND || d || strncmp(e.message, "CUDA: no device", 15) != 0)
        return wrong(rc ? e.message : "a device was opened, and none can be seen");
    printf("library: loads; without a card: %s\n", e.message);
    return 0;
}
