/* SPDX-License-Identifier: Apache-2.0 */
/* scan - reads the two large values of tokenizer.json, model.vocab and model.merges, directly from
 * the text: they have hundreds of thousands of small values, and a tree of JSON objects would take
 * ten times as long. It also returns numbers as they are written, which decides ties
 * (scan_number).
 *
 * A cursor moves over valid or invalid JSON; every function returns false if the expected value is
 * not there, and the caller reports the place. Private to common/tokenizer. Threads: one owner. */
#ifndef QUIRE_COMMON_TOKENIZER_SCAN_H
#define QUIRE_COMMON_TOKENIZER_SCAN_H
#include <stdbool.h>
#include "common/buf.h"
#include "common/tokenizer/json.h"

struct tok_scan {
    const char *p, *end; /* borrowed from the file */
    struct buf text;     /* the last string, if it had escapes */
    size_t n_item;       /* of what scan_value read, an array or object: its own commas and one */
    bool more;           /* inside a list: something was read in it already */
};
void scan_init(struct tok_scan *s, struct tok_str json);
void scan_release(struct tok_scan *s);

/* Step over `open`, one of [ and {. */
bool scan_open(struct tok_scan *s, char open);
/* Before each item of a list: steps over the comma; false at `close`, which is stepped over too,
 * and at what is neither (scan_failed then). */
bool scan_item(struct tok_scan *s, char close);
bool scan_failed(const struct tok_scan *s);
/* A string, without its quotes and escapes; UTF-8. *out is good until the next scan_string. */
bool scan_string(struct tok_scan *s, struct tok_str *out);
/* A string of two parts with one space between them, without escapes; whether it is UTF-8 is not
 * looked at. False: it is not that, and nothing was stepped over but white space. */
bool scan_two_words(struct tok_scan *s, struct tok_str *a, struct tok_str *b);
bool scan_colon(struct tok_scan *s);
/* A number as the reference's JSON library reads it: its digits as an integer, times or divided by
 * a power of ten, so that the last bit may differ from the nearest double. */
bool scan_number(struct tok_scan *s, double *out);
bool scan_uint(struct tok_scan *s, uint64_t *out);
bool scan_skip(struct tok_scan *s); /* any one value */
/* One value as text. Of an array or object only brackets and quotes are looked at: what is inside
 * is read, and found out to be wrong, by whoever wants the value. */
bool scan_value(struct tok_scan *s, struct tok_str *out);
char scan_peek_far(struct tok_scan *s);
/* The next character that is not white space, 0 at the end; p stands at it then. */
static inline char scan_peek(struct tok_scan *s)
{
    const bool is_near = s->p && s->p != s->end && *s->p > ' ';
    return is_near ? *s->p : scan_peek_far(s);
}

/* Where the values of model.vocab and model.merges stand; empty strings where there are none. */
struct tok_big {
    struct tok_str vocab, merges;
    size_t n_vocab, n_merge; /* their items, as far as commas tell */
};
/* False when the text is not an object that holds an object "model"; then nothing was found. */
bool tok_big_find(struct tok_str json, struct tok_big *out);

#endif
