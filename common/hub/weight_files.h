/* SPDX-License-Identifier: Apache-2.0 */
/* weight_files - which files of a model folder hold its weights, by names alone.
 *
 * weight_files.def lists the names; the first that is there and of the wanted format counts. Where
 * none is, all other *.safetensors of the folder are the weights (loose_files.h). A
 * folder with params.json and without config.json is of Mistral's own layout, so that its
 * consolidated files come first. Where a GGUF file is the model, `dir` is its path.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_WEIGHT_FILES_H
#define QUIRE_COMMON_HUB_WEIGHT_FILES_H
#include <limits.h>
#include <stdbool.h>
#include "common/err.h"

enum weight_format {
    WEIGHTS_AUTO,
    WEIGHTS_SAFETENSORS,
    WEIGHTS_PT,
    WEIGHTS_MISTRAL,
    WEIGHTS_GGUF /* the model is that file, or the first of those that it is split into */
};

struct weight_files {
    enum weight_format format; /* never WEIGHTS_AUTO */
    bool is_index;             /* the file lists the shards */
    bool is_torch;             /* torch.save wrote it, or the shards */
    bool is_loose;             /* all files of loose_files.h */
    const char *name;          /* static; "" of a GGUF file */
    char path[PATH_MAX];       /* of loose files that of the folder */
};

/* Errors: Q_NOT_FOUND, Q_UNSUPPORTED (what is there instead: folder.h; parts of a model that was
 * divided among devices), Q_TOO_LARGE. */
FALLIBLE weight_files_find(struct weight_files *out, const char *dir, enum weight_format wanted,
                           struct q_err *e);
/* Check that the weights exist, by file names and first bytes. Cost: a few small reads. Errors:
 * also Q_CORRUPT (the index, or a pointer in the place of a file), Q_NOT_FOUND (a shard is
 * missing). */
FALLIBLE weight_files_check(const char *dir, enum weight_format wanted, struct q_err *e);
/* "auto", "safetensors", "pt", "mistral", "gguf". */
const char *weight_format_name(enum weight_format f);
/* Is the model a GGUF file, by its path's end? */
bool weight_files_is_gguf(const char *dir);
/* Are there weights of any name of weight_files.def? */
bool weight_files_any(const char *dir);
/* Is the folder's config params.json: is it there, and no config.json? */
bool weight_files_has_params(const char *dir);

#endif
