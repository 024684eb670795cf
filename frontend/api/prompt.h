/* SPDX-License-Identifier: Apache-2.0 */
/* prompt - from what a request says to token ids: texts, token ids, or a conversation through the
 * chat template.
 *
 * Reading (prompts_read, turn_read) only looks at JSON; encoding renders and tokenizes, takes
 * time with long texts, and may run on another thread. Threads: reentrant; a list of prompts has
 * one owner at a time. */
#ifndef QUIRE_FRONTEND_API_PROMPT_H
#define QUIRE_FRONTEND_API_PROMPT_H
#include <jansson.h>
#include "common/chat/turn.h"
#include "frontend/api/params.h"
#include "frontend/api/served.h"

#define PROMPTS_MAX 2048 /* of one request */

struct prompt {
    struct token_list ids;
    const char *text; /* [n_text] given or rendered; NULL when the request gave ids */
    size_t n_text;
    struct buf rendered;   /* owns text when a conversation was rendered */
    struct ranges content; /* of the rendered text: what came from the request */
};
struct prompts {
    struct prompt *items; /* [n] */
    size_t n;
};
void prompts_release(struct prompts *p);

/* `prompt` of /v1/completions and /tokenize: a string, strings, token ids, or lists of them. Texts
 * are borrowed from the JSON. Errors: Q_INVALID, Q_TOO_LARGE; the message starts with "prompt". */
FALLIBLE prompts_read(struct prompts *p, const json_t *value, const struct served *s,
                      struct q_err *e);

/* What the request says to turn_read. */
struct turn_ask prompts_ask(const struct served *s, const struct params *params,
                            const struct sample_params *sampling);
/* Render the conversation to one prompt's text. */
FALLIBLE prompts_render(struct prompts *p, const struct turn *t, struct q_err *e);
/* Tokenize one that is text. What a conversation spells out is no control token, unless
 * --parse-special-in-content says so. */
FALLIBLE prompt_encode(struct prompt *p, const struct served *s, bool add_special, struct q_err *e);
/* Tokenize those given as text. */
FALLIBLE prompts_encode(struct prompts *p, const struct served *s, bool add_special,
                        struct q_err *e);
/* Keep at most n tokens of each: the last ones when `left` is cut off, else the first. Their text
 * is not theirs any more. */
void prompts_truncate(struct prompts *p, size_t n, bool left);

#endif
