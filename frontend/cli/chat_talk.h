/* SPDX-License-Identifier: Apache-2.0 */
/* chat_talk - a conversation with a model: messages, tools, and printing of answers.
 * Threads: main. */
#ifndef QUIRE_FRONTEND_CLI_CHAT_TALK_H
#define QUIRE_FRONTEND_CLI_CHAT_TALK_H
#include <jansson.h>
#include <stdbool.h>
#include "common/options.h"
#include "frontend/cli/chat_stream.h"
#include "frontend/cli/wrap.h"

struct chat_talk {
    const struct options *options;
    struct chat_peer peer;
    char model[512];          /* to ask for */
    json_t *messages, *tools; /* tools NULL: none */
    json_t *images;           /* content parts of the next user message; NULL: none */
    bool terminal;            /* standard output is one */
    bool verbose;
    struct wrap wrap;
    bool thinking;            /* reasoning is being printed */
    struct printable thought; /* of it, where standard output is no terminal */
};
/* Start a new conversation with the system message only. */
void talk_reset(struct chat_talk *t);
void talk_release(struct chat_talk *t);
const char *talk_system(const struct chat_talk *t);                               /* NULL = none */
FALLIBLE talk_set_system(struct chat_talk *t, const char *text, struct q_err *e); /* NULL: none */
/* path NULL: remove the tools. Errors: Q_IO, Q_INVALID; the tools are kept. */
FALLIBLE talk_load_tools(struct chat_talk *t, const char *path, struct q_err *e);
FALLIBLE talk_save(const struct chat_talk *t, const char *path, bool replace, struct q_err *e);
/* Attach an image file to the next user message. path NULL: detach those that wait. Errors: Q_IO,
 * Q_NOT_FOUND, Q_TOO_LARGE. What the file is the server says. */
FALLIBLE talk_attach_image(struct chat_talk *t, const char *path, struct q_err *e);
/* Add a user message, with the images that wait before its text. Errors: Q_INVALID (not UTF-8). */
FALLIBLE talk_add_user(struct chat_talk *t, const char *text, struct q_err *e);
/* Add the result of the next call. Errors: as talk_add_user. */
FALLIBLE talk_add_result(struct chat_talk *t, const char *text, struct q_err *e);
/* The first call without a result, NULL: none waits. */
const json_t *talk_waiting_call(const struct chat_talk *t);
/* Remove the calls without results, and their message. */
void talk_drop_calls(struct chat_talk *t);
/* Remove the last answer. False: there is none. */
bool talk_rewind(struct chat_talk *t);
/* Request an answer, print it and add it. Without an answer the last message is removed, so that it
 * can be repeated. Errors: those of chat_stream; after Q_CANCELLED the partial answer is kept. */
FALLIBLE talk_answer(struct chat_talk *t, struct q_err *e);

#endif
