/* SPDX-License-Identifier: Apache-2.0 */
/* folder - errors for a path that is not a model folder, or has no readable weights: a GGUF file, a
 * LoRA adapter, a pickle checkpoint, a folder of models, an incomplete download. Each message names
 * the content found and a remedy. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_FOLDER_H
#define QUIRE_COMMON_HUB_FOLDER_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

/* For a file that was given as a model. Errors: Q_UNSUPPORTED (a format that is not read),
 * Q_NOT_FOUND (it is not a folder), Q_CORRUPT (download.h). Never Q_OK. */
FALLIBLE folder_refuse_file(const char *path, struct q_err *e);
/* For a folder without config.json. Errors: as above, Q_IO (no permission). Never Q_OK. */
FALLIBLE folder_refuse(const char *dir, struct q_err *e);
/* For a model folder in which there are no weights of a name that is read. Errors: as above. Never
 * Q_OK. */
FALLIBLE folder_refuse_weights(const char *dir, struct q_err *e);

/* The names in a folder, sorted, of the first 8192 entries. Shapes: *names [*n]; *names is NULL and
 * *n is 0 before. Errors: Q_NOT_FOUND, Q_IO, Q_NO_MEMORY (*names is to be freed all the same).
 * Ownership: the caller's, q_free. */
FALLIBLE folder_names(char (**names)[NAME_MAX + 1], size_t *n, const char *dir, struct q_err *e);

/* Check the small text files beside a tokenizer, as far as they exist. with_template: also those of
 * the chat template. Errors: those of download_check_file, download_check_link. */
FALLIBLE folder_check_text(const char *dir, bool with_template, struct q_err *e);

#endif
