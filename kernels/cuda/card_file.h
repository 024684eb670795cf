/* SPDX-License-Identifier: Apache-2.0 */
/* card_file - text files of what was found out about a card (tune_file.h, trial_verdict.h): a first
 * line, head lines that say what card, driver and library the file is for, lines of words, and
 *
 *     sum 9e3779b97f4a7c15
 *
 * FNV-1a of all text before it. It detects damage but not manipulation: readers check every value.
 * Threads: pure functions, and files. */
#ifndef QUIRE_KERNELS_CUDA_CARD_FILE_H
#define QUIRE_KERNELS_CUDA_CARD_FILE_H
#include <limits.h>
#include <stdbool.h>
#include "common/buf.h"

#define CARD_NAME_MAX 96u

struct card { /* of whom a file speaks */
    char name[CARD_NAME_MAX];
    uint32_t major, minor; /* compute capability */
    uint32_t driver;
};

/* dir/CARD-MAJOR.MINOR-driverDRIVER SUFFIX. Errors: Q_TOO_LARGE. */
FALLIBLE card_file_path(char out[PATH_MAX], const char *dir, const struct card *c,
                        const char *suffix, struct q_err *e);
/* dir and the folders above it. Errors: Q_IO, Q_TOO_LARGE. */
FALLIBLE card_file_make_dirs(const char *dir, struct q_err *e);

/* The lines of the card: "card …", "capability …", "driver …". */
void card_file_head(struct buf *out, const struct card *c);
/* Add the line of the sum of out from byte `from` on. */
void card_file_sum(struct buf *out, size_t from);
/* Text must begin with head, whose first line identifies the kind of file, and end with its sum;
 * the lines between are text[*begin … *end). Errors: Q_CORRUPT (the first line, the sum),
 * Q_MISMATCH (another line of the head; the message has both). */
FALLIBLE card_file_check(size_t *begin, size_t *end, const struct buf *head, const char *text,
                         size_t n, struct q_err *e);
/* The line at text[*at … n) into `line` without its newline; *at becomes the next line's place.
 * number: for the message. Errors: Q_CORRUPT (too long, a NUL byte, no newline). */
FALLIBLE card_file_line(char *line, size_t room, size_t *at, const char *text, size_t n,
                        uint32_t number, struct q_err *e);

struct words { /* the rest of a line */
    const char *at;
};
/* The next word of the line into `word`; false: there is none, or it is too long. */
bool words_next(struct words *w, char *word, size_t room);
/* The next word is a number of this base (10, 16), at most max. */
bool words_number(struct words *w, uint64_t *out, unsigned base, uint64_t max);

#endif
