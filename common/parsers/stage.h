/* SPDX-License-Identifier: Apache-2.0 */
/* stage - the two stages of a parser and their interface: reasoning.c separates the reasoning and
 * passes the rest, byte by byte, to the tool stage in parser.c. For models that write messages on
 * channels, channels.c replaces reasoning.c.
 * Threads: one owner per parser. */
#ifndef QUIRE_COMMON_PARSERS_STAGE_H
#define QUIRE_COMMON_PARSERS_STAGE_H
#include "common/parsers/parser_internal.h"

#define CITE_MAX 256 /* bytes of a citation's tag, or of a citation that begins with a blank */

struct reasoning_format {
    const char *name;
    const char *start[FORMAT_TAGS], *end[FORMAT_TAGS];
    /* The start of a call that implicitly ends the reasoning. */
    const char *call[FORMAT_TAGS];
    const char *drop[FORMAT_TAGS]; /* tags around the answer */
    bool open;                     /* without a prompt: the text begins inside reasoning */
    bool again;                    /* the tags are special tokens and count anywhere */
    bool stray;                    /* an extra end tag is layout, also at the start of the text */
    const char *label;             /* a line after the start tag that is layout */
    bool cites;                    /* <co>text</co: 0:[1]> is text */
    enum channels channels;        /* reasoning is a separate message (channels.c) */
    const char *before;            /* the format has no reasoning; this precedes the text */
};
/* The row of this name or alias; NULL: unknown, or the name is NULL. */
const struct reasoning_format *reasoning_format_named(const char *name);
/* Q_NOT_FOUND; the message lists the names. */
enum q_code reasoning_format_unknown(const char *name, struct q_err *e);

struct reasoning_stage {
    const struct reasoning_format *format; /* NULL: everything is passed on */
    const struct tool_format *tool;        /* of the tool stage */
    int place;
    bool begun;
    bool open, any; /* begins inside; some reasoning was emitted */
    bool ended;     /* there was reasoning */
    bool cited;     /* a citation is open */
    bool trim;      /* blanks that follow are layout */
    bool labelled;  /* the label may stand here: n_label bytes of it did */
    size_t n_label;
    struct buf blanks;
    char held[CITE_MAX];
    size_t n_held;
    struct buf probe; /* the text that the tool stage reads on trial */
    struct buf again; /* the text of a failed trial, read as reasoning from i_again on */
    size_t i_again;
};
void reasoning_byte(struct parser *p, struct reasoning_stage *r, char c);
void reasoning_finish(struct parser *p, struct reasoning_stage *r);
enum parser_thinking reasoning_thinking(const struct reasoning_stage *r);
void reasoning_release(struct reasoning_stage *r);

/* Messages with a header that names the recipient: the model itself (reasoning), the user, or a
 * function (calls, which the tool stage reads). */
struct channel_stage {
    enum channels names;
    int place;
    int within;        /* at the start of a header: the message that the header ends */
    bool inside;       /* the header begins in that message, with a blank, without a tag */
    struct buf header; /* what came of one */
    char held[FORMAT_TAG_MAX];
    size_t n_held;
    bool any; /* a reasoning message was emitted */
};
void channel_byte(struct parser *p, struct channel_stage *s, char c);
void channel_finish(struct parser *p, struct channel_stage *s);
enum parser_thinking channel_thinking(const struct channel_stage *s);
void channel_release(struct channel_stage *s);

/* Count n bytes read, for parser_work. */
void count_work(struct parser *p, size_t n);
/* One byte outside reasoning: content, or part of a call. */
void tool_stage_byte(struct parser *p, char c);
/* A trial checks whether bytes inside reasoning are a call. The tool stage reads them and emits no
 * event before the result is certain. TRIAL_CALL: a call, announced. TRIAL_NOT: no call; the state
 * of tool_trial_begin is restored, and the caller must read the bytes as reasoning. */
enum trial { TRIAL_MORE, TRIAL_CALL, TRIAL_NOT };
void tool_trial_begin(struct parser *p);
enum trial tool_trial_byte(struct parser *p, char c);
enum trial tool_trial_finish(struct parser *p); /* end of text */
/* True when the tool stage is inside a region. */
bool tool_stage_busy(const struct parser *p);
/* Read these bytes before those of `unread` from *at on. */
void put_back(struct parser *p, struct buf *unread, size_t *at, const char *text, size_t n);
/* End of the text or message: an open region is closed. Its returned bytes may open another region,
 * which is shorter each time. */
void tool_stage_finish(struct parser *p);

#endif
