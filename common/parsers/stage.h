/* SPDX-License-Identifier: Apache-2.0 */
/* stage - the two halves of a parser and what they hand each other: reasoning.c cuts off what the
 * model thinks and passes the rest on, byte by byte, to the tool stage in parser.c. Where a model
 * writes messages on channels, channels.c stands in its place.
 * Threads: one owner per parser. */
#ifndef QUIRE_COMMON_PARSERS_STAGE_H
#define QUIRE_COMMON_PARSERS_STAGE_H
#include "common/parsers/format.h"

struct reasoning_format {
    const char *name;
    const char *start[FORMAT_TAGS], *end[FORMAT_TAGS];
    /* Begin of a call that a model may write without ending its reasoning, which it ends. */
    const char *call[FORMAT_TAGS];
    const char *drop[FORMAT_TAGS]; /* tags around the answer */
    bool open;          /* without a prompt to look at: the text begins inside reasoning */
    bool again;         /* the tags are special tokens and count anywhere */
    bool channels;      /* reasoning is a message of its own (channels.c) */
    const char *before; /* there is no reasoning; this stands before the text */
};
extern const struct reasoning_format reasoning_formats[];
extern const size_t n_reasoning_format;

struct reasoning_stage {
    const struct reasoning_format *format; /* NULL: everything is passed on */
    const struct tool_format *tool;        /* of the stage behind */
    int place;
    bool begun;
    bool open, any; /* begins inside; some reasoning came out */
    bool trim;      /* blanks that follow are layout */
    struct buf blanks;
    char held[FORMAT_TAG_MAX];
    size_t n_held;
};
void reasoning_byte(struct parser *p, struct reasoning_stage *r, char c);
void reasoning_finish(struct parser *p, struct reasoning_stage *r);
enum parser_thinking reasoning_thinking(const struct reasoning_stage *r);
void reasoning_release(struct reasoning_stage *r);

/* Messages, each with a header that says whom it is for: the model itself (reasoning), the user, or
 * a function (calls, which the tool stage reads). */
struct channel_stage {
    int place;
    int within;        /* where a header begins: the message that it would end */
    struct buf header; /* what came of one */
    char held[FORMAT_TAG_MAX];
    size_t n_held;
    bool any; /* a message of reasoning came out */
};
void channel_byte(struct parser *p, struct channel_stage *s, char c);
void channel_finish(struct parser *p, struct channel_stage *s);
enum parser_thinking channel_thinking(const struct channel_stage *s);
void channel_release(struct channel_stage *s);

/* One byte of what is not reasoning: content, or part of a call. */
void tool_stage_byte(struct parser *p, char c);
/* The text is over, or the message: a region that is still open is one no longer; what it gives
 * back may open another one, shorter every time. */
void tool_stage_finish(struct parser *p);

#endif
