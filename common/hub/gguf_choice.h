/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_choice - which of a folder's GGUF files is the model.
 *
 * A folder of GGUF files has the model in several quantizations, and some of them split into files.
 * A tag names one, as in MODEL:Q4_K_M: a part of the file's name between '-', '.', '_' or '/', in
 * any case. Files of projectors (mmproj) and importance matrices are no models. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_HUB_GGUF_CHOICE_H
#define QUIRE_COMMON_HUB_GGUF_CHOICE_H
#include <limits.h>
#include <stdbool.h>
#include "common/err.h"

#define GGUF_TAG_MAX 64u

/* Does the folder, or a folder in it, have one? */
bool gguf_choice_has(const char *dir);
/* The file of that tag, "" for the only one; of a split model the first. Errors: Q_NOT_FOUND (with
 * the files that there are), Q_INVALID (several, with their names), Q_TOO_LARGE. */
FALLIBLE gguf_choose(char path[PATH_MAX], const char *dir, const char *tag, struct q_err *e);
/* "MODEL:TAG": its length before the tag, 0 without one. *tag: what is behind the colon. */
size_t gguf_choice_tag(const char **tag, const char *model);

#endif
