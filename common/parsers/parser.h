/* SPDX-License-Identifier: Apache-2.0 */
/* parser - finds reasoning and tool calls in a model's text while it streams.
 *
 * text -> reasoning stage (a row of reasonings.def) -> tool stage (a row of tools.def) -> events
 *
 * A parser is a state machine over bytes: the same text cut anywhere gives the same concatenated
 * events, equal to the result of one piece; time is linear; what looked like a tag and is none
 * comes out as content. Most formats are one row of tools.def; see the README for the rules.
 * Threads: one owner per parser. */
#ifndef QUIRE_COMMON_PARSERS_PARSER_H
#define QUIRE_COMMON_PARSERS_PARSER_H
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum parsed_kind {
    PARSED_CONTENT,    /* text: ordinary content */
    PARSED_REASONING,  /* text: what the model thinks, without its tags */
    PARSED_CALL_BEGIN, /* call: index, text: the function's name, whole */
    PARSED_CALL_ARGS,  /* call: index, text: the next piece of the arguments' JSON text */
    PARSED_CALL_END    /* call: index; the arguments are complete, valid JSON */
};

struct parsed_event {
    enum parsed_kind kind;
    uint32_t call;    /* 0, 1, … in order of appearance */
    const char *text; /* [n] borrowed until the sink returns; UTF-8 */
    size_t n;
};
/* Returns Q_OK or an error that ends the parse. */
typedef enum q_code parsed_sink(void *ctx, const struct parsed_event *event, struct q_err *e);

#define PARSER_CALLS_MAX      128
#define PARSER_CALL_BYTES_MAX (1u << 20) /* of one call's text */
#define PARSER_TAG_MAX        64         /* bytes of a tag with its NUL */
#define PARSER_SUFFIX_MAX     32         /* bytes of a suffix of tags, with its colon */

/* Is the model thinking when its text begins? The prompt's end says so (parser_reasoning_start). */
enum reasoning_start {
    REASONING_BY_FORMAT, /* the prompt is not known: the format's row decides */
    REASONING_OPEN,      /* the prompt ends inside reasoning */
    REASONING_NOT_OPEN   /* it does not: the model begins with a tag, or does not think */
};

struct parser_config {
    const char *tool;      /* a row of tools.def; NULL: no calls are looked for */
    const char *reasoning; /* a row of reasonings.def; NULL: no reasoning is looked for */
    const json_t *tools; /* the request's tools, which give arguments their types; NULL: not known;
                            * borrowed as long as the parser */
    enum reasoning_start start;
};

struct parser;
/* Errors: Q_NOT_FOUND (the message lists the names), Q_NO_MEMORY. */
FALLIBLE parser_new(struct parser **out, const struct parser_config *config, struct q_err *e);
void parser_free(struct parser *p);
/* Feed the next bytes (any cut). Errors: the sink's, Q_NO_MEMORY. Malformed calls are no error:
 * their text is content. */
FALLIBLE parser_feed(struct parser *p, const char *text, size_t n, parsed_sink *sink, void *ctx,
                     struct q_err *e);
/* The text is over: what is still held comes out. A call cut short after it was announced stays as
 * far as it came (finish_reason tells why), without PARSED_CALL_END; before that it is content. */
FALLIBLE parser_finish(struct parser *p, parsed_sink *sink, void *ctx, struct q_err *e);
uint32_t parser_n_calls(const struct parser *p); /* announced so far */

/* Is what was fed so far the model's thinking? */
enum parser_thinking {
    THINKING_NOT,
    THINKING,     /* it is, and all of it came out */
    THINKING_HELD /* it is, unless the last bytes become the tag that ends it */
};
enum parser_thinking parser_thinking(const struct parser *p);

/* The names of tools.def and reasonings.def, NULL-terminated; "none" is the last. */
const char *const *parser_tool_names(void);
const char *const *parser_reasoning_names(void);

/* The formats a chat template's text shows: row names, or NULL when nothing is recognised. */
struct parser_detected {
    const char *tool, *reasoning;
};
struct parser_detected parser_detect(const char *template_text);
/* The suffix (":opensource") that a checkpoint's template gives to its tags, or "". out:
 * [PARSER_SUFFIX_MAX + 1]. */
void parser_suffix(const char *template_text, char *out);
/* What the end of a rendered prompt says. reasoning: a row of reasonings.def. */
enum reasoning_start parser_reasoning_start(const char *reasoning, const char *prompt, size_t n);
/* The text behind which the answer to this prompt begins, NULL: at once, because there is no such
 * format or the prompt has ended the reasoning. Some models think with no word of it in the prompt:
 * for those of their formats the row's .open decides. Static, or in `out`: [PARSER_TAG_MAX]. */
const char *parser_reasoning_end(const char *reasoning, const char *prompt, size_t n, char *out);

#endif
