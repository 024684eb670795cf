/* SPDX-License-Identifier: Apache-2.0 */
/* loose_files - the weights of a folder without model.safetensors and without an index: all files
 * X.safetensors beside config.json, such as gptq_model-4bit-128g.safetensors, or shards
 * model-00001-of-00002.safetensors. Mistral's consolidated*, adapters (adapter_*) and hidden files
 * are not among them. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_LOOSE_FILES_H
#define QUIRE_COMMON_HUB_LOOSE_FILES_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

struct loose_files {
    char (*names)[NAME_MAX + 1]; /* [n], sorted; links to nothing are among them */
    size_t n;
};

#define LOOSE_FILES_INIT \
    {                    \
        .n = 0           \
    }

/* Is a file of this name one of them? */
bool loose_files_is(const char *name);
/* Does the folder have any? */
bool loose_files_any(const char *dir);
/* Shapes: out->n is at least 1. Errors: Q_NOT_FOUND (there is none, or a file that is number k of n
 * by its name and another of the n is missing), Q_IO, Q_NO_MEMORY. Ownership: loose_files_release.
 */
FALLIBLE loose_files_list(struct loose_files *out, const char *dir, struct q_err *e);
void loose_files_release(struct loose_files *l);

#endif
