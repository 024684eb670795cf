/* SPDX-License-Identifier: Apache-2.0 */
/* params - params.json of Mistral's (and Meta's) own layout as a config.json.
 *
 * Its keys are renamed by a table (params.c) and the rest of config.h reads the result, so that
 * both layouts have one reader. A key that the table does not know is refused, as its meaning would
 * be lost. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_PARAMS_H
#define QUIRE_COMMON_HUB_PARAMS_H
#include <jansson.h>
#include <limits.h>
#include "common/buf.h"
#include "common/dtype.h"
#include "common/err.h"

/* The text of dir's config.json appended to `out` and its path; of a folder that has only a
 * params.json, that file as a config.json; of a GGUF file its metadata (gguf_config.h). Errors:
 * Q_NOT_FOUND, Q_CORRUPT (file, key, found, expected), Q_UNSUPPORTED (a key that is not known, by
 * name), Q_IO, Q_NO_MEMORY. */
FALLIBLE params_read_config(struct buf *out, char path[PATH_MAX], const char *dir, struct q_err *e);
/* params.json's object as one of config.json: a new reference. dtype: of the weights. Errors: as
 * above. */
FALLIBLE params_to_config(json_t **out, const json_t *params, enum dtype dtype, const char *path,
                          struct q_err *e);

#endif
