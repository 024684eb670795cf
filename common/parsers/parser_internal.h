/* SPDX-License-Identifier: Apache-2.0 */
/* parser_internal - what a tool-call format is, and what the parser gives the code behind it.
 *
 * A format is a row of tools.def: which tags open and close a call, and which family of code reads
 * what is between them. The core looks for the tags, keeps the bytes of a region until a call in it
 * is announced, gives them back as text when the region turns out to be none, and sends events. A
 * family only reads bytes and says what they are:
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
    PART_MORE, /* the byte belongs to the region, which goes on */
    PART_END,  /* the byte was the region's last */
    PART_PAST, /* the region was over before this byte; unannounced bytes are read again as text */
    PART_BAD   /* no call can come of this */
};

/* Which messages are for whom: to no one named, commentary and developer (channels.c). */
enum channels { CHANNELS_NONE, CHANNELS_GLIMMER, CHANNELS_SPARK };

struct tool_family {
    size_t state_bytes;              /* zeroed memory the family gets as format_state(p) */
    bool whole;                      /* gets the whole text, tags and all; never in TEXT */
    void (*begin)(struct parser *p); /* a region begins: reset the state, keep its buffers */
    enum part (*byte)(struct parser *p, char c);
    /* The text ended inside a region. True: nothing but layout was left. May be NULL (false). */
    bool (*finish)(struct parser *p);
    void (*release)(struct parser *p);
    enum parser_thinking (*thinking)(const void *state); /* of a whole text; NULL: never */
};

struct tool_format {
    const char *name;
    const struct tool_family *family;
    const struct tool_family *otherwise; /* reads the regions of which `family` can make no call */
    const char *open[FORMAT_TAGS];       /* each begins a region */
    const char *close[FORMAT_TAGS];      /* may end one */
    const char *layout[FORMAT_TAGS];     /* wrap calls and say nothing: dropped beside calls */
    const char *drop[FORMAT_TAGS];       /* say nothing and are dropped everywhere */
    const char
        *behind[3];   /* begin regions too, but only where nothing was said before: at the begin,
                            * right behind reasoning, a layout tag or a call */
    const char *bare; /* characters that begin a region without a tag: at the start of a line, or
                       * anywhere if the names of functions are known */
    bool bare_behind; /* but only right behind a layout tag or a call, and for `otherwise` */
    bool tag_drops; /* a tag of `open` that no call follows is dropped where nothing was said before
                       * it; a region may begin with `bare` anywhere behind it */
    unsigned flags; /* of the family */
    const char *name_end[4]; /* what follows a name that is no part of JSON */
    /* parameters as tags: <key_open>KEY<key_end>[<value_open>]VALUE<value_close>, and before
     * value_open there may be <type_open>TYPE<type_close> */
    const char *key_also[3]; /* other spellings of key_open */
    const char *key_open, *key_end, *value_open, *value_close, *type_open, *type_close;
    const char *quote;      /* a string delimiter of the format's own */
    enum channels channels; /* calls stand in messages to functions (channels.c) */
};
extern const struct tool_format tool_formats[];
extern const size_t n_tool_format;
/* The row of this name, or of an alias; NULL: there is none. */
const struct tool_format *tool_format_named(const char *name);
/* Q_NOT_FOUND, with the names there are. */
enum q_code tool_format_unknown(const char *name, struct q_err *e);

/* the families, and their flags, each of which one family knows */
extern const struct tool_family family_json, family_xml, family_call, family_harmony, family_nested,
    family_none;
#define JSON_KEY_IS_NAME 1u /* {"f": {arguments}} */
#define JSON_TWO_HEADS   2u /* KIND<name_end>NAME newline {arguments}, the kind being optional */
#define JSON_NUMBERED    4u /* the name is functions.NAME:NUMBER */
#define JSON_ARGS        8u /* "args" is a key of the arguments */
#define JSON_ID_FIRST    65536u /* an id up to name_end[0], the name up to name_end[1] */
#define JSON_FLAGS       (15u | JSON_ID_FIRST) /* which change the head */
#define JSON_WRAPPED     131072u /* the arguments may stand in a member "arguments" or "input" */
#define XML_TRIM         16u     /* one newline on either side of a value is layout */
#define XML_ATTRIBUTES   32u     /* names stand in quotes, attributes may follow: string="true" */
#define XML_KEY_TAGS     64u     /* the name is text up to a newline or a tag */
#define XML_CDATA        128u    /* a value may stand in <![CDATA[ ]]> */
#define XML_ESCAPED      256u    /* names have &quot; and &amp; */
#define XML_TWICE        512u    /* a function f may be called f.f */
#define XML_KEY_ENDS     4096u  /* the tag of the next parameter ends a value that was not closed */
#define XML_WRAPPED      8192u  /* all arguments may stand in one, called "arguments" or alike */
#define XML_NONE         16384u /* None is null where strings are allowed, too */
#define XML_ONCE         32768u /* a parameter that comes again is dropped */
#define CALL_BRACES      1024u  /* call:f{a:1}, not f(a=1) */
#define CALL_LINES       2048u  /* calls stand on lines, without brackets around them */

const struct tool_format *format_row(const struct parser *p); /* the table's row of p */
void *format_state(struct parser *p); /* the format's own, of the size its row says */
/* The request's schema of a function's parameters, of one of them; NULL when unknown. */
const json_t *format_function(const struct parser *p, const char *name);
bool format_tools_known(const struct parser *p);
const json_t *format_tools(const struct parser *p); /* an array, or NULL */

/* Text that is no call. */
void say_content(struct parser *p, const char *text, size_t n);
void say_reasoning(struct parser *p, const char *text, size_t n);
/* A call: announced once its name and the begin of its arguments are certain. Until then the core
 * keeps the region's bytes. */
void call_announce(struct parser *p, const char *name, size_t n);
bool call_announced(const struct parser *p);
/* The region began without a tag: more care is due before something is called a call. */
bool region_bare(const struct parser *p);
/* Nothing was said before the region, or since the last call. */
bool region_first(const struct parser *p);
void call_args(struct parser *p, const char *text, size_t n); /* only after call_announce */
void call_end(struct parser *p); /* its arguments are complete; another may follow in the region */
/* It went wrong or ended early: what the model wrote for it goes out as PARSED_CALL_BROKEN. */
void call_cut(struct parser *p);
/* Something stood in it that is dropped: it has to end properly then. */
void call_noise(struct parser *p);
/* It ended early, but only closing brackets are missing: they are added, and it ends. */
bool call_complete(struct parser *p);
bool text_was_cut(const struct parser *p); /* by a limit: the last call may go on */
/* A family that reads the whole text: these bytes belong to the call. */
void call_keep(struct parser *p, const char *text, size_t n);
/* The kept bytes are layout: forget them. */
void call_drop_kept(struct parser *p);
/* Out of memory while text was kept for a call: the feed fails. Asked after a buffer was filled. */
void kept(struct parser *p, const struct buf *b);
/* Read these bytes (again) before what comes next. */
void region_unread(struct parser *p, const char *text, size_t n);

/* The bytes of a suffix that `text` begins with, which may be none. */
size_t tag_suffix(const char *text, size_t n);
/* Does `text` begin one of the tags, or begin with it? Returns its index or -1; *whole: the bytes
 * of the tag in the text, 0 if it is not all there. */
int tag_begun(const char *const *tags, const char *text, size_t n, size_t *whole);
/* Does `text` end in the tag? Its bytes there, or 0. */
size_t tag_ends(const char *tag, const char *text, size_t n);
/* Is this layout tag the second of a pair? */
bool tag_closes(const char *tag);
/* The tag with this suffix (its colon included; may be empty). out: [FORMAT_TAG_MAX]. */
const char *tag_write(const char *tag, const char *suffix, size_t n, char *out);

static inline bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

#endif
