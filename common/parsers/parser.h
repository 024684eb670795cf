/* SPDX-License-Identifier: Apache-2.0 */
/* parser - finds reasoning and tool calls in a model's text while it streams.
 *
 * text -> reasoning stage (a row of reasonings.def) -> tool stage (a row of tools.def) -> events
 *
 * A parser is a state machine over bytes: the same text cut anywhere gives the same concatenated
 * events, equal to the result of one piece; time is linear; text that resembles a tag but is not
 * one becomes content. Most formats are one row of tools.def; see the README for the rules.
 * Threads: one owner per parser. */
#ifndef QUIRE_COMMON_PARSERS_PARSER_H
#define QUIRE_COMMON_PARSERS_PARSER_H
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum parsed_kind {
    PARSED_CONTENT,    /* text: ordinary content */
    PARSED_REASONING,  /* text: reasoning, without its tags */
    PARSED_CALL_BEGIN, /* call: index, text: the complete name of the function */
    PARSED_CALL_ARGS,  /* call: index, text: the next piece of the arguments' JSON text */
    PARSED_CALL_END,   /* call: index; the arguments are complete, valid JSON */
    PARSED_CALL_BROKEN /* call: index of a call that is not valid. text: the next piece of its raw
                        * text, from its first tag on */
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
#define PARSER_TAGS_MAX       8          /* tags of one kind */
#define PARSER_BEFORE_MAX     512        /* bytes of a format's tags, a NUL behind each */

/* Whether the text begins inside reasoning; the end of the prompt decides (parser_reasoning_start).
 */
enum reasoning_start {
    REASONING_BY_FORMAT, /* the prompt is unknown: the format's row decides */
    REASONING_OPEN,      /* the prompt ends inside reasoning */
    REASONING_NOT_OPEN   /* it does not: reasoning begins with a tag or is absent */
};

struct parser_config {
    const char *tool;      /* a row of tools.def or an alias; NULL: calls are not parsed */
    const char *reasoning; /* a row of reasonings.def or an alias; NULL: reasoning is not parsed */
    const json_t *tools;   /* the request's tools, which give the types of arguments; NULL: unknown;
                            * borrowed for the lifetime of the parser */
    enum reasoning_start start;
};

struct parser;
/* Errors: Q_NOT_FOUND (the message lists the names), Q_NO_MEMORY. */
FALLIBLE parser_new(struct parser **out, const struct parser_config *config, struct q_err *e);
void parser_free(struct parser *p);
/* Feed the next bytes (any cut). Errors: those of the sink, Q_NO_MEMORY. A malformed call is not an
 * error: its text is content. */
FALLIBLE parser_feed(struct parser *p, const char *text, size_t n, parsed_sink *sink, void *ctx,
                     struct q_err *e);
/* Declare that a limit, not the model, ends the text: parser_finish then completes no call. */
void parser_cut(struct parser *p);
/* End of text: emits the held text. A call that misses only closing brackets and tags is completed;
 * any other open call is broken if it was announced, else content. */
FALLIBLE parser_finish(struct parser *p, parsed_sink *sink, void *ctx, struct q_err *e);
uint32_t parser_n_calls(const struct parser *p); /* announced so far */
/* Bytes read so far; a byte that is read again counts again. */
uint64_t parser_work(const struct parser *p);

/* Whether the text fed so far ends inside reasoning. */
enum parser_thinking {
    THINKING_NOT,
    THINKING,     /* inside, and all of it was emitted */
    THINKING_HELD /* inside, unless the last bytes become the end tag */
};
enum parser_thinking parser_thinking(const struct parser *p);

/* The names of tools.def and reasonings.def, NULL-terminated; "none" is the last. */
const char *const *parser_tool_names(void);
const char *const *parser_reasoning_names(void);

/* Other names of rows, NULL-terminated: SGLang's spelling, or the name of the model. */
struct parser_alias {
    const char *name, *row;
};
const struct parser_alias *parser_tool_aliases(void);
const struct parser_alias *parser_reasoning_aliases(void);
/* The name of the row for a name or an alias; NULL: unknown. */
const char *parser_tool_row(const char *name);
const char *parser_reasoning_row(const char *name);

/* The formats detected in a chat template's text: row names, or NULL when none is recognised. */
struct parser_detected {
    const char *tool, *reasoning;
};
struct parser_detected parser_detect(const char *template_text);
/* The suffix (":opensource") that a checkpoint's template gives to its tags, or "". out:
 * [PARSER_SUFFIX_MAX + 1]. */
void parser_suffix(const char *template_text, char *out);
/* Derived from the end of a rendered prompt. reasoning: a row of reasonings.def. */
enum reasoning_start parser_reasoning_start(const char *reasoning, const char *prompt, size_t n);
/* Text that may precede the answer to this prompt and is outside the answer's grammar. */
struct parser_before {
    /* Not "": the prompt ends inside reasoning and the answer follows this tag. */
    char end[PARSER_TAG_MAX];
    /* [n_tags] Else the text may begin with one of these pairs: start NUL end NUL, repeated; the
     * answer begins after the end (after the start when the end is empty). None: at once. */
    char tags[PARSER_BEFORE_MAX];
    size_t n_tags;
};
/* The tags of a format, for a thinking budget. */
struct parser_tags {
    /* [n_pair] The starts, each with its end; with `open` the first is the prompt's. */
    char starts[PARSER_TAGS_MAX][PARSER_TAG_MAX], ends[PARSER_TAGS_MAX][PARSER_TAG_MAX];
    size_t n_pair;
    char others[PARSER_TAGS_MAX][PARSER_TAG_MAX]; /* [n_other] other texts that end reasoning */
    size_t n_other;
    bool open;  /* the prompt ends inside reasoning */
    bool again; /* a start counts anywhere, else only at the begin of the text, blanks aside */
};
/* reasoning: a row of reasonings.def. calls: calls are looked for, which may end reasoning. prompt,
 * template_text: as below. False: reasoning of the format is no text between tags. */
bool parser_reasoning_tags(struct parser_tags *out, const char *reasoning, bool calls,
                           const char *template_text, const char *prompt, size_t n);
/* reasoning: a row of reasonings.def, or NULL. prompt: rendered. template_text: for the suffix of
 * tags; may be NULL. */
void parser_reasoning_before(struct parser_before *out, const char *reasoning,
                             const char *template_text, const char *prompt, size_t n);

#endif
