/* SPDX-License-Identifier: Apache-2.0 */
/* output - a file that is there as a whole or not at all: it is written beside its place, as
 * PATH.part, and takes it when it is complete. What is no regular file (a pipe, /dev/stdout) is
 * written as it is. Threads: one. */
#ifndef TERRA_OUTPUT_H
#define TERRA_OUTPUT_H
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#define OUTPUT_WHY_MAX 200u

struct output {
    FILE *f;
    const char *path;    /* the caller's */
    char part[PATH_MAX]; /* "": path is written as it is */
};

/* Could it be written, as far as can be seen? To be asked before hours of work. */
bool output_check(const char *path, char why[OUTPUT_WHY_MAX]);
bool output_open(struct output *o, const char *path, char why[OUTPUT_WHY_MAX]);
/* After an error of writing nothing is left, and what was there before stays. */
bool output_close(struct output *o, char why[OUTPUT_WHY_MAX]);

#endif
