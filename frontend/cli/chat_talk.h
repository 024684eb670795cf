/* SPDX-License-Identifier: Apache-2.0 */
/* chat_talk - a conversation with a model: its messages, its tools, and each answer as it is shown.
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
    bool terminal;            /* standard output is one */
    bool verbose;
    struct wrap wrap;
    bool thinking;            /* what the model thinks is being printed */
    struct printable thought; /* of it, where standard output is no terminal */
};
/* Begin anew: only the system message stays. */
void talk_reset(struct chat_talk *t);
void talk_release(struct chat_talk *t);
const char *talk_system(const struct chat_talk *t);                               /* NULL = none */
FALLIBLE talk_set_system(struct chat_talk *t, const char *text, struct q_err *e); /* NULL: none */
/* path NULL: none any more. Errors: Q_IO, Q_INVALID; the tools stay. */
FALLIBLE talk_load_tools(struct chat_talk *t, const char *path, struct q_err *e);
FALLIBLE talk_save(const struct chat_talk *t, const char *path, bool replace, struct q_err *e);
/* Add a message of the user's. Errors: Q_INVALID (no UTF-8). */
FALLIBLE talk_add_user(struct chat_talk *t, const char *text, struct q_err *e);
/* The result of the call that is next in turn. Errors: as talk_add_user. */
FALLIBLE talk_add_result(struct chat_talk *t, const char *text, struct q_err *e);
/* The first call without a result, NULL: none waits. */
const json_t *talk_waiting_call(const struct chat_talk *t);
/* Take the calls without results back, and what was said for them. */
void talk_drop_calls(struct chat_talk *t);
/* Go back to where the last answer began. False: there is none. */
bool talk_rewind(struct chat_talk *t);
/* Ask for an answer, print it, keep it. Without one the last message goes, so that it can be asked
 * again. Errors: chat_stream's; after Q_CANCELLED what had come is kept. */
FALLIBLE talk_answer(struct chat_talk *t, struct q_err *e);

#endif
