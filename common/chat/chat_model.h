/* SPDX-License-Identifier: Apache-2.0 */
/* chat_model - a model's chat template, the format of message content in it, and the parsers of its
 * tool calls and reasoning.
 *
 * The server and the C library both open it, so that a conversation means the same in both.
 * Threads: only read after chat_model_open. */
#ifndef QUIRE_COMMON_CHAT_CHAT_MODEL_H
#define QUIRE_COMMON_CHAT_CHAT_MODEL_H
#include <jansson.h>
#include "common/options.h"
#include "common/template/chat.h"
#include "common/tokenizer/tokenizer.h"

struct chat_model {
    struct chat *template; /* NULL: error says why */
    char error[Q_MESSAGE_MAX];
    bool broken;    /* error is why its template cannot be used, and not that it has none */
    json_t *kwargs; /* --default-chat-template-kwargs: an object, or NULL */
    enum chat_content content;                  /* --chat-template-content-format */
    bool parse_special;                         /* --parse-special-in-content */
    const char *tool_parser, *reasoning_parser; /* rows of the parsers' tables, by option or as the
                                                 * template shows; NULL: no such format */
    const struct tokenizer
        *tokenizer;            /* of the vocabulary; NULL: none. Borrowed, chat_model_tags */
    struct buf reasoning_tags; /* with which the model may begin to reason (thinking.h) */
};
/* The options' own values, before anything is read: --chat-template-content-format,
 * --tool-call-parser, --reasoning-parser. Errors: Q_INVALID, which names the option. */
FALLIBLE chat_model_check(const struct options *o, struct q_err *e);
/* Load the template of --chat-template, else of tokenizer_path where that is a folder, else of dir.
 * A missing or unusable template of the model is not an error; m->error has the reason.
 * Errors: Q_INVALID (the options, a template that was given), Q_NOT_FOUND (the file that was
 * given). */
FALLIBLE chat_model_open(struct chat_model *m, const struct options *o, const char *dir,
                         const char *tokenizer_path, struct q_err *e);
/* m->reasoning_tags, by the vocabulary, which m->tokenizer borrows for the texts of image tokens.
 * Without it an answer under a grammar has no reasoning but what its prompt opens, and templates
 * get no lists with images. Errors: Q_NO_MEMORY. */
FALLIBLE chat_model_tags(struct chat_model *m, const struct tokenizer *t, struct q_err *e);
void chat_model_release(struct chat_model *m); /* all zero is the empty value */

#endif
