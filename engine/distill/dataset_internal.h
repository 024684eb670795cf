/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_internal - the parts of dataset.h: the key of a cache file, the tokenizer that lines with
 * text need, and the reading of all lines into a file of sequences. Threads: as dataset.h. */
#ifndef QUIRE_ENGINE_DISTILL_DATASET_INTERNAL_H
#define QUIRE_ENGINE_DISTILL_DATASET_INTERNAL_H
#include "engine/distill/dataset.h"
#include "engine/distill/sample.h"
#include "engine/distill/sequence_file.h"

#define DATASET_LINE_MAX ((size_t)64 << 20) /* bytes; a longer line is a broken one */

/* Hexadecimal digits of what the sequences depend on: the bytes of the data, of the tokenizer's
 * folder (all small files of text), and the options. Errors: Q_NOT_FOUND, Q_IO, Q_NO_MEMORY. */
FALLIBLE dataset_key(char out[SEQUENCE_FILE_KEY], const struct dataset_options *o, struct q_err *e);

struct dataset_text { /* what lines with text need; all zero: nothing is open */
    struct tokenizer *tokenizer;
    struct chat *chat;
    char chat_error[Q_MESSAGE_MAX];
    uint32_t eos;
};
/* Errors: Q_INVALID (no folder was given), those of tokenizer_open; a missing or unusable template
 * is no error, chat_error says it. */
FALLIBLE dataset_text_open(struct dataset_text *t, const char *dir, struct q_err *e);
void dataset_text_release(struct dataset_text *t);

/* Read all lines: *fd is the finished file, at `path` (NULL: without a name). Errors: as
 * dataset_open. */
FALLIBLE dataset_fill(const struct dataset_options *o, const char key[SEQUENCE_FILE_KEY],
                      const char *path, int *fd, struct q_err *e);

#endif
