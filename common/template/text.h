/* SPDX-License-Identifier: Apache-2.0 */
/* text - strings of the template language, and values as text: str(), repr(), json.dumps().
 *
 * New text is built at the end of in->out: mark, append, take. Slices share their source's bytes;
 * appending to the last string in the arena extends it in place, so `s = s + x` in a loop is
 * linear. Origin: a string records which of its bytes came from the request (messages, tools, …)
 * and which from the template; in->content does the same for in->out. Slices, joining and all
 * functions that use text_add preserve it byte by byte; the result of a function over several
 * bytes belongs to the request if one of them does (text_made_of). Threads: one rendering. */
#ifndef QUIRE_COMMON_TEMPLATE_TEXT_H
#define QUIRE_COMMON_TEMPLATE_TEXT_H
#include "common/template/template_internal.h"

FALLIBLE text_new(struct interp *in, const char *data, size_t n, struct value *out); /* copies */
FALLIBLE text_borrow(struct interp *in, const char *data, size_t n,
                     struct value *out); /* data outlives the rendering */
extern const unsigned char TEXT_ALL[1];  /* str.content of a string that is the request's whole */
FALLIBLE text_slice(struct interp *in, const struct str *s, size_t from, size_t to,
                    struct value *out); /* bytes */
FALLIBLE text_concat(struct interp *in, struct str *a, struct str *b, struct value *out);
size_t text_chars(struct str *s);
size_t text_offset(struct str *s, size_t i_char); /* byte offset; n when past the end */
bool text_is(const struct str *s, const char *literal);
int text_compare(const struct str *a, const struct str *b); /* by code point, as memcmp */

size_t text_mark(const struct interp *in); /* where new text begins; for text_take */
FALLIBLE text_take(struct interp *in, size_t mark,
                   struct value *out); /* what was appended since, as a string */

/* Append s[from..to), bytes, to in->out, and where they came from. */
void text_add(struct interp *in, const struct str *s, size_t from, size_t to);
void text_add_all(struct interp *in, const struct str *s);
/* What was appended since `mark`, with nothing of text_add in it, was made of s[from..to). */
void text_made_of(struct interp *in, size_t mark, const struct str *s, size_t from, size_t to);

/* Append to in->out. */
FALLIBLE print_str(struct interp *in, struct value v); /* as {{ v }} does */
FALLIBLE print_repr(struct interp *in, struct value v);
FALLIBLE print_escaped(struct interp *in, const struct str *s); /* & < > ' " as HTML entities */
void print_float(struct buf *out, double f);
/* str(v) as a string value; strings are returned as they are. */
FALLIBLE text_of(struct interp *in, struct value v, struct str **out);

struct json_style {
    bool ensure_ascii, sort_keys;
    const struct str *indent; /* NULL: one line */
    const struct str *item_separator, *key_separator;
};
FALLIBLE print_json(struct interp *in, struct value v, const struct json_style *style,
                    size_t level);
/* Values of JSON; strings are borrowed. origin: NULL, or TEXT_ALL for what the request says. Then a
 * known role ("user") counts as the template's all the same: templates make control tokens of it.
 */
FALLIBLE value_from_json(struct interp *in, const json_t *j, const unsigned char *origin,
                         struct value *out);

/* Markup-aware helpers of filters: a str argument or a TypeError naming `what`. */
FALLIBLE need_str(struct interp *in, struct value v, const char *what, struct str **out);
FALLIBLE need_int(struct interp *in, struct value v, const char *what, int64_t *out);

/* printf-style "%" and str.format (format.c). */
FALLIBLE format_percent(struct interp *in, struct str *format, struct value args,
                        struct value *out);
FALLIBLE format_braces(struct interp *in, struct str *format, const struct value *args,
                       struct value *out);

#endif
