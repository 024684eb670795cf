/* SPDX-License-Identifier: Apache-2.0 */
/* json - texts and fields of the objects in tokenizer.json. A wrong type is Q_CORRUPT; the message
 * names `at` (the path of the object), the key, the expected type and the type found. Private to
 * common/tokenizer. Threads: pure. */
#ifndef QUIRE_COMMON_TOKENIZER_JSON_H
#define QUIRE_COMMON_TOKENIZER_JSON_H
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/json_kind.h"

#define TOK_ID_MAX (1u << 24) /* ids must be below; bounds the tables that are indexed by id */

struct tok_str { /* borrowed from the JSON */
    const char *s;
    size_t n;
};
#define CONFIG_NAME "tokenizer_config.json"
/* name: CONFIG_NAME or another file's, for messages. Errors: Q_CORRUPT (line and column),
 * Q_NO_MEMORY. Ownership: *out by json_decref. */
FALLIBLE tok_json_parse(json_t **out, struct tok_str json, const char *name, struct q_err *e);
FALLIBLE tok_json_str(const json_t *o, const char *key, const char *at, struct tok_str *s,
                      struct q_err *e);
/* Absent or null leaves *out as it is. */
FALLIBLE tok_json_bool(const json_t *o, const char *key, const char *at, bool *out,
                       struct q_err *e);
FALLIBLE tok_json_id(const json_t *v, const char *at, const char *key, uint32_t *out,
                     struct q_err *e);
/* Always fails: Q_CORRUPT, what was wanted and what is there. */
FALLIBLE tok_json_bad(const json_t *found, const char *at, const char *key, const char *want,
                      struct q_err *e);

#endif
