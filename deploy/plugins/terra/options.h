/* SPDX-License-Identifier: Apache-2.0 */
/* options - the command line of terra-rollout. Threads: one. */
#ifndef TERRA_OPTIONS_H
#define TERRA_OPTIONS_H
#include <quire.h>
#include "trajectory.h"

struct rollout_options {
    struct trajectory_files files;
    const char *out, *picture;
    uint32_t columns;   /* of the picture's frames; 0: by itself */
    uint32_t tokens;    /* of the last frame, for measurements; 0: all */
    double temperature; /* 0: the most likely token */
    int64_t seed;       /* of the first rollout, the next has the next */
    bool json, progress;
    struct quire_options engine; /* quire_options_release when the engine is open */
};

/* Exit code, or -1 to go on. */
int options_read(struct rollout_options *o, int argc, char **argv);

#endif
