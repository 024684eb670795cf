/* SPDX-License-Identifier: Apache-2.0 */
/* literal - a value as a model writes it, turned into JSON byte by byte.
 *
 * JSON goes through as it is, white space included. What models mix in from other languages is
 * translated: 'single quotes', True, None, tuples, a comma too many at the end, .5 and 1_000, raw
 * newlines and unknown escapes inside strings, keys without quotes, delimiters of a format's own.
 * What is no value in any of them is refused at the byte that shows it.
 * Threads: one owner; no allocation of its own. */
#ifndef QUIRE_COMMON_PARSERS_LITERAL_H
#define QUIRE_COMMON_PARSERS_LITERAL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"

#define LITERAL_DEPTH_MAX 512 /* objects and arrays inside each other */
#define LITERAL_WORD_MAX  128 /* bytes of a number or word */
#define LITERAL_GAP_MAX   32  /* blanks kept behind a comma; more are dropped */

struct literal {
    const char *quote; /* a string delimiter beside " and ', or NULL; borrowed */
    bool bare_keys;    /* {key: value} */
    bool bare_words;   /* {key: some text, …}: what is no value is a string */
    bool python;       /* all that Python takes for a literal, see literal.c */
    /* private */
    uint8_t state, back; /* back: the string's own state, during an escape */
    char delimiter;      /* of the current string: ", ' or Q for `quote` */
    bool key;            /* the current string is a key */
    bool raw, triple;    /* it is r'…', or '''…''' */
    bool comment;        /* in a comment, up to the line's end */
    bool comma;          /* one waits for what follows, with the blanks behind it in gap */
    uint8_t n_gap, n_word, n_quote, n_hex, hex_want;
    uint16_t depth, octal;
    char gap[LITERAL_GAP_MAX], word[LITERAL_WORD_MAX];
    char stack[LITERAL_DEPTH_MAX]; /* closing brackets that are due */
};

enum literal_step {
    LITERAL_MORE, /* the byte belongs to the value, which goes on */
    LITERAL_END,  /* the byte was the value's last */
    LITERAL_PAST, /* the value (a number, a word) ended before this byte */
    LITERAL_BAD
};
/* Before the first byte; blanks before the value are let through. */
void literal_init(struct literal *l, const char *quote, bool bare_keys);
/* In place of a value's first byte, which is the brace of a set: {"a", "b"} is an array. */
void literal_begin_set(struct literal *l, struct buf *out);
/* Append the JSON that is certain after this byte. */
enum literal_step literal_byte(struct literal *l, char c, struct buf *out);
/* Would a brace begin an object or a set here? */
bool literal_at_value(const struct literal *l);
/* Would this byte close a string that is the whole value? */
bool literal_closes(const struct literal *l, char c);
/* The text is over: true if the value is complete (a number or word without an end). */
bool literal_finish(struct literal *l, struct buf *out);
/* The same, but inside of objects and arrays too: a number or word that the end shows to be whole
 * comes out, and no more. */
void literal_settle(struct literal *l, struct buf *out);
/* One complete value, with blanks around it. */
bool literal_whole(const char *text, size_t n, struct buf *out);
bool literal_whole_python(const char *text, size_t n, struct buf *out);

/* Append one byte of a string's text to a JSON string literal, escaped. */
void literal_escape(struct buf *out, char c);

#endif
