/* SPDX-License-Identifier: Apache-2.0 */
/* prompt - from a request to token ids: texts, token ids, or a conversation with the chat template.
 *
 * Reading (prompts_read, turn_read) only reads JSON; encoding renders and tokenizes, is slow for
 * long texts, and may run on another thread. Threads: reentrant; a list of prompts has one owner at
 * a time. */
#ifndef QUIRE_FRONTEND_API_PROMPT_H
#define QUIRE_FRONTEND_API_PROMPT_H
#include <jansson.h>
#include "common/chat/turn.h"
#include "frontend/api/params.h"
#include "frontend/api/served_model.h"

#define PROMPTS_MAX 2048 /* of one request */

struct prompt {
    struct token_list ids;
    const char *text; /* [n_text] given or rendered; NULL for ids */
    size_t n_text;
    struct buf rendered;   /* owns the text of a rendered conversation */
    struct ranges content; /* ranges of the rendered text copied from the request */
    /* [n_insert] placeholders of items in the text; borrowed from the turn */
    struct tokenizer_insert *inserts;
    size_t n_insert;
    struct token_list expanded; /* ids with all tokens of items, when the engine has said it */
};
/* The ids as the engine computes them. */
static inline const struct token_list *prompt_ids(const struct prompt *p)
{
    return p->expanded.n ? &p->expanded : &p->ids;
}
/* The id at positions[i] stands n_token[i] times in `expanded`. Once; nothing happens where they do
 * not fit the ids. Errors: Q_NO_MEMORY, Q_TOO_LARGE. */
FALLIBLE prompt_expand(struct prompt *p, const uint32_t *positions, const uint32_t *n_token,
                       size_t n, struct q_err *e);
struct prompts {
    struct prompt *items; /* [n] */
    size_t n;
};
void prompts_release(struct prompts *p);

/* `prompt` of /v1/completions and /tokenize: a string, strings, token ids, or lists of them. Texts
 * are borrowed from the JSON. placeholders: ids may be negative, which stand for items and are
 * checked by the engine. Errors: Q_INVALID, Q_TOO_LARGE; the message starts with "prompt". */
FALLIBLE prompts_read(struct prompts *p, const json_t *value, const struct served_model *s,
                      bool placeholders, struct q_err *e);

/* Which files a request's items may name. is_batch: the process reads its own user's requests. */
struct item_rules prompts_item_rules(const struct options *o, bool is_batch);
/* The request's fields for turn_read, but what content parts may be (item_types, item_rules). */
struct turn_ask prompts_ask(const struct served_model *s, const struct params *params,
                            const struct sample_params *sampling);
/* Render the conversation to one prompt's text. */
FALLIBLE prompts_render(struct prompts *p, struct turn *t, struct q_err *e);
/* Tokenize one text prompt. Control tokens in the text of a conversation are plain text unless
 * --parse-special-in-content is set. */
FALLIBLE prompt_encode(struct prompt *p, const struct served_model *s, bool add_special,
                       struct q_err *e);
/* Texts that are too long for max_model_len tokens, whatever they are. what: the field that they
 * are from. Errors: Q_INVALID. */
FALLIBLE prompts_check_bytes(const struct prompts *p, const struct served_model *s,
                             uint32_t max_model_len, const char *what, struct q_err *e);
/* Tokenize all text prompts. */
FALLIBLE prompts_encode(struct prompts *p, const struct served_model *s, bool add_special,
                        struct q_err *e);
/* Keep at most n tokens of each: the last ones if `left` is truncated, else the first. Their text
 * is then invalid. */
void prompts_truncate(struct prompts *p, size_t n, bool left);

#endif
