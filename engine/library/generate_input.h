/* SPDX-License-Identifier: Apache-2.0 */
/* generate_input - the prompts of quire-generate, one after the other: arguments, --prompt,
 * --prompt-ids, then the lines of --input-file. At most one line is in memory.
 *
 *     {"prompt": "Once" or [1, 2], "custom_id": "a", "max_tokens": 5, "temperature": 0, …}
 *     {"messages": [{"role": "user", "content": "…"}], "tools": […], …}
 *     {"prompt_token_ids": [5, -3], "multi_modal_data": {"actions": [[0.1, 0.2]]}, …}
 *
 * Threads: main. */
#ifndef QUIRE_ENGINE_LIBRARY_GENERATE_INPUT_H
#define QUIRE_ENGINE_LIBRARY_GENERATE_INPUT_H
#include <jansson.h>
#include <stdio.h>
#include "common/buf.h"
#include "common/items/items.h"
#include "common/options.h"
#include "engine/quire.h"

#define GENERATE_CHAT_FIELDS 5

struct generate_prompt {
    const char *text; /* [n_text]; NULL: ids, or messages */
    size_t n_text;
    uint32_t *ids; /* [n_ids] owned */
    size_t n_ids;
    json_t *line; /* of a file; NULL = none. text, custom_id and stops are borrowed from it */
    const char *custom_id;
    struct buf
        chat[GENERATE_CHAT_FIELDS]; /* messages, tools, …: JSON of the line; empty = absent */
    const char **stops;             /* [n_stop] owned; NULL = those of the command line */
    size_t n_stop;
    struct item_list items;     /* multi_modal_data */
    struct quire_input *inputs; /* [items.n] owned: the same */
    bool no_text;               /* "detokenize": false */
    uint32_t n_answer;
    uint64_t number; /* from 0; in a file the line number, from 1 */
};
void generate_prompt_release(struct generate_prompt *p);
/* True for messages, false for a text or ids. */
bool generate_prompt_has_messages(const struct generate_prompt *p);
/* Apply the line's fields over those of the command line. Errors: Q_INVALID (an unknown field or a
 * wrong type). */
FALLIBLE generate_prompt_params(const struct generate_prompt *p, struct quire_params *q,
                                struct q_err *e);

struct generate_input {
    const struct options *o;
    uint32_t i_argument, i_prompt, i_ids; /* taken so far */
    uint64_t n_prompt, n_line;
    FILE *file; /* NULL = none */
    uint64_t file_bytes, done_bytes;
    struct buf line, whole; /* whole: standard input as one prompt */
};
/* Errors: Q_INVALID (no prompt at all), Q_IO. */
FALLIBLE generate_input_open(struct generate_input *in, const struct options *o, struct q_err *e);
void generate_input_close(struct generate_input *in);
/* *more = false: the end. Errors: Q_INVALID, Q_TOO_LARGE: this prompt is invalid (out->number is
 * set), the next one may be read; Q_IO, Q_NO_MEMORY. */
FALLIBLE generate_input_next(struct generate_input *in, struct generate_prompt *out, bool *more,
                             struct q_err *e);

#endif
