/* SPDX-License-Identifier: Apache-2.0 */
/* chat - the chat template of a model folder, applied as transformers' apply_chat_template does.
 *
 * Finds the template (chat_template.jinja, else tokenizer_config.json's chat_template: a string, or
 * a list of named ones of which "tool_use" serves requests with tools; a folder with Mistral's
 * tekken.json and none of them has the one of mistral.h), supplies bos_token & co., drops null keys
 * of messages, adds reasoning aliases, and renders.
 * Threads: a loaded chat is read-only. */
#ifndef QUIRE_COMMON_TEMPLATE_CHAT_H
#define QUIRE_COMMON_TEMPLATE_CHAT_H
#include <stdbool.h>
#include "common/template/template.h"

struct chat;

/* dir: the model folder. template_path: NULL, or a file that replaces the folder's template
 * (--chat-template), or the text of a template. Errors: Q_NOT_FOUND (the folder has no template;
 * the message says how to give one), Q_INVALID, Q_CORRUPT. */
FALLIBLE chat_open(struct chat **out, const char *dir, const char *template_path, struct q_err *e);
/* True when --chat-template is the template itself, which has braces, not a file (as in vLLM). */
bool chat_is_text(const char *given);
/* The same from a template's text, without a folder: no bos_token & co. Errors: Q_INVALID; fault
 * (may be NULL) is filled. */
FALLIBLE chat_from_source(struct chat **out, const char *source, size_t n,
                          struct template_fault *fault, struct q_err *e);
void chat_free(struct chat *c);
const char *chat_source(const struct chat *c);      /* the template's text */
const char *chat_tool_source(const struct chat *c); /* the one for requests with tools */

/* Has the template, or the one for requests with tools, {% generation %} blocks? */
bool chat_marks_generation(const struct chat *c, bool with_tools);

/* The form of a message's content in the template. */
enum chat_content {
    CHAT_CONTENT_AS_IS,  /* transformers: unchanged */
    CHAT_CONTENT_AUTO,   /* parts if the template iterates over them and accepts no other form */
    CHAT_CONTENT_STRING, /* text */
    CHAT_CONTENT_OPENAI  /* [{"type": "text", "text": …}] */
};

/* Does a template with this source write images as content parts, {"type": "image"}? OPENAI: yes,
 * AUTO: if it iterates over a message's content, also where it accepts a string as well, and has
 * something for an image: the word as a type of a part, or `token`, the model's image token. */
bool chat_takes_images(enum chat_content content, const char *source, const char *token);

struct chat_request {       /* all borrowed, NULL = absent */
    const json_t *messages; /* array of objects, already checked for shape */
    const json_t *tools;    /* array or NULL */
    const json_t *documents;
    const json_t *kwargs;        /* object: chat_template_kwargs */
    const char *template_source; /* request's own template (only if the operator allows it) */
    bool add_generation_prompt;
    bool continue_final_message;
    /* Other than AS_IS: messages are OpenAI's, with text as content, or parts as the template wants
     * them (chat_takes_images); role developer is system for templates without it. */
    enum chat_content content;
    int64_t now;
    /* NULL, or receives the ranges of the request's text in the output: messages, tools, documents,
     * kwargs. tokenizer_encode_prompt finds no control tokens there. */
    struct ranges *origin;
    struct ranges *generated; /* NULL, or receives those of {% generation %} blocks */
};
/* Append the prompt text. Errors: Q_INVALID with a reason that the user can act on. */
FALLIBLE chat_render(const struct chat *c, const struct chat_request *r, struct buf *out,
                     struct template_fault *fault, struct q_err *e);

#endif
