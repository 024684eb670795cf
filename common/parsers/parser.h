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
    PARSED_CALL_END,   /* call: index; the arguments are complete, valid JSON */
    PARSED_CALL_BROKEN /* call: index; it is none after all. text: the next piece of what the model
                        * wrote for it, from its first tag on */
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
#define PARSER_BEFORE_MAX     512        /* bytes of a format's tags, a NUL behind each */

/* Is the model thinking when its text begins? The prompt's end says so (parser_reasoning_start). */
enum reasoning_start {
    REASONING_BY_FORMAT, /* the prompt is not known: the format's row decides */
    REASONING_OPEN,      /* the prompt ends inside reasoning */
    REASONING_NOT_OPEN   /* it does not: the model begins with a tag, or does not think */
};

struct parser_config {
    const char *tool;      /* a row of tools.def or an alias; NULL: no calls are looked for */
    const char *reasoning; /* a row of reasonings.def or an alias; NULL: nothing is looked for */
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
/* The text will end where a limit cut it, not where the model ended it: parser_finish completes no
 * call then. */
void parser_cut(struct parser *p);
/* The text is over: what is still held comes out. A call of which only closing brackets and tags
 * are missing is completed; another one is broken if it was announced, else content. */
FALLIBLE parser_finish(struct parser *p, parsed_sink *sink, void *ctx, struct q_err *e);
uint32_t parser_n_calls(const struct parser *p); /* announced so far */
/* Bytes that were read so far, those that were read again counted again. */
uint64_t parser_work(const struct parser *p);

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

/* Other names of rows, NULL-terminated: as SGLang spells them, or after the model. */
struct parser_alias {
    const char *name, *row;
};
const struct parser_alias *parser_tool_aliases(void);
const struct parser_alias *parser_reasoning_aliases(void);
/* The name of the row that a name or an alias stands for; NULL: there is none. */
const char *parser_tool_row(const char *name);
const char *parser_reasoning_row(const char *name);

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
/* What may stand before the answer to this prompt, and not under the answer's grammar. */
struct parser_before {
    char end[PARSER_TAG_MAX]; /* not "": the prompt ends inside reasoning, the answer begins here */
    /* [n_tags] Else the text may begin with one of these: start NUL end NUL, again and again; the
     * answer begins behind the end (an empty one: behind the start). None: it begins at once. */
    char tags[PARSER_BEFORE_MAX];
    size_t n_tags;
};
/* reasoning: a row of reasonings.def, or NULL. prompt: rendered. template_text: for the suffix of
 * tags; may be NULL. */
void parser_reasoning_before(struct parser_before *out, const char *reasoning,
                             const char *template_text, const char *prompt, size_t n);

#endif
