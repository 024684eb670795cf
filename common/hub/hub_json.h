/* SPDX-License-Identifier: Apache-2.0 */
/* hub_json - the JSON files of a model folder, through jansson, with struct q_err.
 *
 * The file is untrusted: its size is limited, duplicate keys are rejected, nesting is limited by
 * jansson (2048), and every getter checks type and range; errors name file, key, value and accepted
 * values. An absent key and a null key are equivalent: "not given". Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_HUB_JSON_H
#define QUIRE_COMMON_HUB_HUB_JSON_H
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define HUB_JSON_FILE_MAX \
    ((size_t)64 << 20) /* bytes; index files of the largest checkpoints have a few MB */

/* Parse `n` bytes that must be one JSON object; NaN, Infinity and -Infinity, which Python writes,
 * are null, and whole numbers of more than 64 bits are floats. `what` is the path for messages.
 * The caller releases the result with json_decref. Errors: Q_CORRUPT (line and column),
 * Q_NO_MEMORY. */
FALLIBLE hub_json_parse(json_t **out, const char *data, size_t n, const char *what,
                        struct q_err *e);
/* The same for a whole file. Errors: also Q_NOT_FOUND, Q_IO, Q_TOO_LARGE. */
FALLIBLE hub_json_load(json_t **out, const char *path, struct q_err *e);

struct hub_json_at { /* where a value is looked up; for messages */
    const json_t *object;
    const char *path; /* of the file */
};
/* NULL when the key is absent or null. */
const json_t *hub_json_find(const struct hub_json_at *at, const char *key);
struct hub_json_range {
    double min, max; /* both accepted; whole numbers are exact below 2^53 */
};
/* *out is unchanged if the key is absent. Errors: Q_CORRUPT. */
FALLIBLE hub_json_int(int64_t *out, const struct hub_json_at *at, const char *key,
                      struct hub_json_range r, struct q_err *e);
FALLIBLE hub_json_number(double *out, const struct hub_json_at *at, const char *key,
                         struct hub_json_range r, struct q_err *e);
FALLIBLE hub_json_bool(bool *out, const struct hub_json_at *at, const char *key, struct q_err *e);
/* *out is borrowed from the object. */
FALLIBLE hub_json_str(const char **out, const struct hub_json_at *at, const char *key,
                      struct q_err *e);
/* "a number", "a list": the kind of a value, for messages. */
const char *hub_json_kind(const json_t *v);

#endif
