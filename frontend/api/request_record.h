/* SPDX-License-Identifier: Apache-2.0 */
/* request_record - the file of --record-requests: a line for each prompt that an engine computed,
 * to send the same load again with `quire bench serve --dataset-path FILE`.
 *
 *     {"timestamp": 1790000000123, "input_length": 2051, "output_length": 97, "hash_ids": [81…, 7…],
 *      "request": {"temperature": 0.7, "n": 2}, "endpoint": "chat", "stream": true, "tools": 3,
 *      "grammar": false, "items": false, "finish": "stop", "ms": 1840}
 *
 * It is redacted: no text, no token id, no name, no key, no user and no address is written. Of the
 * prompt there is its length, and for each full block of REQUEST_RECORD_BLOCK tokens a number that
 * equal beginnings have in common: a hash with a random key that each process draws and tells
 * nobody. Of parameters those of `kept` in request_record.c, which are numbers or booleans. What is
 * text or names tokens (stop, logit_bias, grammars, tools, messages) is left out.
 *
 * Lines are written by a thread; a full queue drops lines and says so in the log. The file is
 * shared by frontends (O_APPEND) and becomes FILE.1 at its size limit. Threads: the loop's. */
#ifndef QUIRE_FRONTEND_API_REQUEST_RECORD_H
#define QUIRE_FRONTEND_API_REQUEST_RECORD_H
#include <jansson.h>
#include "common/options.h"

#define REQUEST_RECORD_BLOCK 512u /* tokens, as in Mooncake's traces */

struct recorded_request { /* of one prompt; borrowed for the call */
    const uint32_t *ids;  /* [n_id] */
    size_t n_id;
    const json_t *body; /* of the request: `kept` are taken from it */
    int64_t arrived_us;
    uint32_t n_output;  /* tokens of the longest answer */
    const char *finish; /* of the first one; NULL: none ended */
    size_t n_tool;
    bool is_chat, is_stream, has_grammar, has_items;
};

struct request_record;
/* NULL without --record-requests. Errors: Q_IO (the file), Q_NO_MEMORY. */
FALLIBLE request_record_new(struct request_record **out, const struct options *o, struct q_err *e);
void request_record_free(struct request_record *r); /* writes what waits; NULL is fine */
/* At the end of a request. */
void request_record_add(struct request_record *r, const struct recorded_request *q);

#endif
