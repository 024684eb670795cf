/* SPDX-License-Identifier: Apache-2.0 */
/* progress - what a download shows: a bar on a terminal, lines in a log, JSON lines on standard
 * output. Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_PROGRESS_H
#define QUIRE_COMMON_HUB_REMOTE_PROGRESS_H
#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool bar, json;
    const char *id;
    uint64_t total, done;    /* bytes; those that were there already are in both */
    unsigned n_file, n_done; /* files */
    uint64_t begun_with;     /* of done at the start */
    int64_t begun_ms, shown_ms;
    bool is_shown; /* a bar is on the terminal's line */
};

/* Nothing is shown yet. id: borrowed. json: lines of JSON instead of text and bars. */
void progress_init(struct progress *p, const char *id, bool json);
/* Files and bytes are known, bytes move from now on. */
void progress_begin(struct progress *p);
void progress_add(struct progress *p, uint64_t bytes);
/* A file is there. cached: no byte of it was loaded. */
void progress_file(struct progress *p, const char *name, uint64_t size, bool cached);
/* Call at least every second. */
void progress_tick(struct progress *p);
/* Remove the bar, before other text is written. */
void progress_end(struct progress *p);

#endif
