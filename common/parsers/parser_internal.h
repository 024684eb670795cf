/* SPDX-License-Identifier: Apache-2.0 */
/* parser_internal - the description of a tool-call format and the interface of its parser code.
 *
 * A format is a row of tools.def: the tags that open and close a call, and the family of code that
 * reads the bytes between them. The core finds the tags, keeps the bytes of a region until a call
 * in it is announced, returns them as text when the region has no call, and sends events. A family
 * only reads and classifies bytes:
 *
 *   core: TEXT -open tag-> REGION (family->byte) -PART_END-> TEXT
 *                            |-PART_BAD, nothing announced-> TEXT, its bytes are text; or, of a
 *                            |  format with another family, REGION again, read by that one
 *                            |-PART_BAD, announced-> SKIP -tag-> TEXT, the call is complete if
 *                               only closing brackets are missing before the tag, else broken
 *
 * Errors of call_* and say_* are kept in the parser and end the feed; a family ignores them.
 * Threads: one owner per parser. */
#ifndef QUIRE_COMMON_PARSERS_PARSER_INTERNAL_H
#define QUIRE_COMMON_PARSERS_PARSER_INTERNAL_H
#include <stdbool.h>
#include "common/buf.h"
#include "common/parsers/parser.h"

#define FORMAT_TAGS     7 /* of one kind in a row, and the NULL behind them */
#define FORMAT_TAG_MAX  PARSER_TAG_MAX
/* In a tag: nothing, or ':' and the name a checkpoint gives its tags (<tool_call:opensource>). */
#define TAG_SUFFIX      "\1"
#define TAG_SUFFIX_MAX  PARSER_SUFFIX_MAX
#define FORMAT_NAME_MAX 256 /* bytes of a function's or a parameter's name */

enum part {
    PART_MORE, /* the byte belongs to the region, which continues */
    PART_END,  /* the byte is the last of the region */
    PART_PAST, /* the region ended before this byte; unannounced bytes are read again as text */
    PART_BAD   /* the region cannot become a call */
};

/* Recipients of messages: unnamed, commentary and developer (channels.c). */
enum channels { CHANNELS_NONE, CHANNELS_GLIMMER, CHANNELS_SPARK };

struct tool_family {
    size_t state_bytes;              /* zeroed memory of the family: format_state(p) */
    bool whole;                      /* receives the whole text, with tags; never in TEXT */
    void (*begin)(struct parser *p); /* a region begins: reset the state, keep its buffers */
    enum part (*byte)(struct parser *p, char c);
    /* The text ended inside a region. True: only layout is missing. May be NULL (false). */
    bool (*finish)(struct parser *p);
    void (*release)(struct parser *p);
    enum parser_thinking (*thinking)(const void *state); /* of a whole text; NULL: never */
};

struct tool_format {
    const char *name;
    const struct tool_family *family;
    const struct tool_family *otherwise; /* reads the regions that `family` cannot parse */
    const char *open[FORMAT_TAGS];       /* each begins a region */
    const char *close[FORMAT_TAGS];      /* may end a region */
    const char *layout[FORMAT_TAGS];     /* wrap calls without content: dropped next to calls */
    const char *drop[FORMAT_TAGS];       /* have no content and are dropped everywhere */
    const char *behind[3]; /* begin regions too, but only before any content: at the beginning,
                            * directly after reasoning, a layout tag or a call */
    const char *bare; /* characters that begin a region without a tag: at the start of a line, or
                       * anywhere if the names of functions are known */
    bool bare_behind; /* only directly after a layout tag or a call, and for `otherwise` */
    bool tag_drops;   /* a tag of `open` without a call after it is dropped when no content precedes
                       * it; a region may begin with `bare` anywhere after it */
    unsigned flags;   /* of the family */
    const char *name_end[4]; /* the text after a name that is not part of JSON */
    /* parameters as tags: <key_open>KEY<key_end>[<value_open>]VALUE<value_close>, and before
     * value_open there may be <type_open>TYPE<type_close> */
    const char *key_also[3]; /* other spellings of key_open */
    const char *key_open, *key_end, *value_open, *value_close, *type_open, *type_close;
    const char *quote;      /* a string delimiter of this format */
    enum channels channels; /* calls are messages to functions (channels.c) */
};
extern const struct tool_format tool_formats[];
extern const size_t n_tool_format;
/* The row of this name or alias; NULL: unknown. */
const struct tool_format *tool_format_named(const char *name);
/* Q_NOT_FOUND; the message lists the names. */
enum q_code tool_format_unknown(const char *name, struct q_err *e);

/* the families and their flags; a flag belongs to one family */
extern const struct tool_family family_json, family_xml, family_call, family_harmony, family_nested,
    family_none;
#define JSON_KEY_IS_NAME 1u /* {"f": {arguments}} */
#define JSON_TWO_HEADS   2u /* KIND<name_end>NAME newline {arguments}, the kind being optional */
#define JSON_NUMBERED    4u /* the name is functions.NAME:NUMBER */
#define JSON_ARGS        8u /* "args" is a key of the arguments */
#define JSON_ID_FIRST    65536u /* an id up to name_end[0], the name up to name_end[1] */
#define JSON_FLAGS       (15u | JSON_ID_FIRST) /* flags that change the head */
#define JSON_WRAPPED     131072u /* the arguments may stand in a member "arguments" or "input" */
#define XML_TRIM         16u     /* one newline on either side of a value is layout */
#define XML_ATTRIBUTES   32u     /* names are in quotes, attributes may follow: string="true" */
#define XML_KEY_TAGS     64u     /* the name is text up to a newline or a tag */
#define XML_CDATA        128u    /* a value may be in <![CDATA[ ]]> */
#define XML_ESCAPED      256u    /* names have &quot; and &amp; */
#define XML_BODY         262144u /* a JSON object may stand in place of the parameters */
#define XML_TWICE        512u    /* a function f may be called f.f */
#define XML_KEY_ENDS     4096u  /* the tag of the next parameter ends a value that was not closed */
#define XML_WRAPPED      8192u  /* one parameter, called "arguments" or similar, may hold all */
#define XML_NONE         16384u /* None is null where strings are allowed, too */
#define XML_ONCE         32768u /* a repeated parameter is dropped */
#define CALL_BRACES      1024u  /* call:f{a:1}, not f(a=1) */
#define CALL_LINES       2048u  /* calls are on lines, without brackets around them */

const struct tool_format *format_row(const struct parser *p); /* the table's row of p */
void *format_state(struct parser *p); /* of the format, state_bytes of its family */
/* The request's schema of a function's parameters, of one of them; NULL when unknown. */
const json_t *format_function(const struct parser *p, const char *name);
bool format_tools_known(const struct parser *p);
const json_t *format_tools(const struct parser *p); /* an array, or NULL */

/* Text outside calls. */
void say_content(struct parser *p, const char *text, size_t n);
void say_reasoning(struct parser *p, const char *text, size_t n);
/* Announce a call when its name and the start of its arguments are certain. Until then the core
 * keeps the bytes of the region. */
void call_announce(struct parser *p, const char *name, size_t n);
bool call_announced(const struct parser *p);
/* The region began without a tag: stricter checks apply before a call is announced. */
bool region_bare(const struct parser *p);
/* No content precedes the region, or follows the last call. */
bool region_first(const struct parser *p);
void call_args(struct parser *p, const char *text, size_t n); /* only after call_announce */
void call_end(struct parser *p); /* its arguments are complete; the region may have another */
/* The call is malformed or ended early: its raw text is emitted as PARSED_CALL_BROKEN. */
void call_cut(struct parser *p);
/* The call contains text that is dropped: it must then end with its closing tag. */
void call_noise(struct parser *p);
/* The call ended early and misses only closing brackets: adds them and ends it. */
bool call_complete(struct parser *p);
bool text_was_cut(const struct parser *p); /* by a limit: the last call is incomplete */
/* For a family that reads the whole text: these bytes belong to the call. */
void call_keep(struct parser *p, const char *text, size_t n);
/* The kept bytes are layout: discard them. */
void call_drop_kept(struct parser *p);
/* Check b after writing to it: the feed fails when the text of a call did not fit in memory. */
void kept(struct parser *p, const struct buf *b);
/* Read these bytes (again) before the next input. */
void region_unread(struct parser *p, const char *text, size_t n);

/* Bytes of the suffix at the start of `text`; 0: none. */
size_t tag_suffix(const char *text, size_t n);
/* Index of the tag that `text` starts with or is a prefix of, or -1; *whole: the bytes of the tag
 * in the text, 0 when the tag is incomplete. */
int tag_begun(const char *const *tags, const char *text, size_t n, size_t *whole);
/* Bytes of the tag at the end of `text`, or 0. */
size_t tag_ends(const char *tag, const char *text, size_t n);
/* True when this layout tag is the second of a pair. */
bool tag_closes(const char *tag);
/* The tag with this suffix (its colon included; may be empty). out: [FORMAT_TAG_MAX]. */
const char *tag_write(const char *tag, const char *suffix, size_t n, char *out);

static inline bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

#endif
