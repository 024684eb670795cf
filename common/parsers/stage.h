/* SPDX-License-Identifier: Apache-2.0 */
/* stage - the two halves of a parser and what they hand each other: reasoning.c cuts off what the
 * model thinks and passes the rest on, byte by byte, to the tool stage in parser.c. Where a model
 * writes messages on channels, channels.c stands in its place.
 * Threads: one owner per parser. */
#ifndef QUIRE_COMMON_PARSERS_STAGE_H
#define QUIRE_COMMON_PARSERS_STAGE_H
#include "common/parsers/parser_internal.h"

#define CITE_MAX 256 /* bytes of a citation's tag, or of a citation that begins with a blank */

struct reasoning_format {
    const char *name;
    const char *start[FORMAT_TAGS], *end[FORMAT_TAGS];
    /* Begin of a call that a model may write without ending its reasoning, which it ends. */
    const char *call[FORMAT_TAGS];
    const char *drop[FORMAT_TAGS]; /* tags around the answer */
    bool open;              /* without a prompt to look at: the text begins inside reasoning */
    bool again;             /* the tags are special tokens and count anywhere */
    bool stray;             /* a further end tag is layout, one at the text's begin too */
    bool lead;              /* only one at the text's begin */
    const char *label;      /* a line behind the start tag that is layout */
    bool cites;             /* <co>text</co: 0:[1]> is text */
    enum channels channels; /* reasoning is a message of its own (channels.c) */
    const char *before;     /* there is no reasoning; this stands before the text */
};
/* The row of this name, or of an alias; NULL: there is none (nor for NULL). */
const struct reasoning_format *reasoning_format_named(const char *name);
/* Q_NOT_FOUND, with the names there are. */
enum q_code reasoning_format_unknown(const char *name, struct q_err *e);

struct reasoning_stage {
    const struct reasoning_format *format; /* NULL: everything is passed on */
    const struct tool_format *tool;        /* of the stage behind */
    int place;
    bool begun;
    bool open, any; /* begins inside; some reasoning came out */
    bool ended;     /* there was reasoning */
    bool cited;     /* a citation is open */
    bool trim;      /* blanks that follow are layout */
    bool labelled;  /* the label may stand here: n_label bytes of it did */
    size_t n_label;
    struct buf blanks;
    char held[CITE_MAX];
    size_t n_held;
    struct buf probe; /* what the tool stage reads on trial */
    struct buf again; /* what it read in vain, to be read as reasoning from i_again */
    size_t i_again;
};
void reasoning_byte(struct parser *p, struct reasoning_stage *r, char c);
void reasoning_finish(struct parser *p, struct reasoning_stage *r);
enum parser_thinking reasoning_thinking(const struct reasoning_stage *r);
void reasoning_release(struct reasoning_stage *r);

/* Messages, each with a header that says whom it is for: the model itself (reasoning), the user, or
 * a function (calls, which the tool stage reads). */
struct channel_stage {
    enum channels names;
    int place;
    int within;        /* where a header begins: the message that it would end */
    bool inside;       /* it begins in that message, with a blank, and without a tag */
    struct buf header; /* what came of one */
    char held[FORMAT_TAG_MAX];
    size_t n_held;
    bool any; /* a message of reasoning came out */
};
void channel_byte(struct parser *p, struct channel_stage *s, char c);
void channel_finish(struct parser *p, struct channel_stage *s);
enum parser_thinking channel_thinking(const struct channel_stage *s);
void channel_release(struct channel_stage *s);

/* n bytes were read: counted for parser_work. */
void count_work(struct parser *p, size_t n);
/* One byte of what is not reasoning: content, or part of a call. */
void tool_stage_byte(struct parser *p, char c);
/* A trial: may these bytes, in the middle of reasoning, be a call? The tool stage reads them and
 * says nothing before it is certain. TRIAL_CALL: they are one, announced. TRIAL_NOT: they are none;
 * the tool stage is as it was before tool_trial_begin, and the caller has to read the bytes. */
enum trial { TRIAL_MORE, TRIAL_CALL, TRIAL_NOT };
void tool_trial_begin(struct parser *p);
enum trial tool_trial_byte(struct parser *p, char c);
enum trial tool_trial_finish(struct parser *p); /* the text is over */
/* Is the tool stage within a region? */
bool tool_stage_busy(const struct parser *p);
/* Read these bytes before what `unread` holds from *at on. */
void put_back(struct parser *p, struct buf *unread, size_t *at, const char *text, size_t n);
/* The text is over, or the message: a region that is still open is one no longer; what it gives
 * back may open another one, shorter every time. */
void tool_stage_finish(struct parser *p);

#endif
