/* SPDX-License-Identifier: Apache-2.0 */
/* literal - translates a value in the notation of a model into JSON, byte by byte.
 *
 * JSON passes unchanged, including white space. Notation of other languages is translated: 'single
 * quotes', True, None, tuples, a trailing comma, .5 and 1_000, raw newlines and unknown escapes
 * inside strings, keys without quotes, string delimiters of one format. Text that is a value in
 * none of them is rejected at the first byte that proves it.
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
    bool bare_words;   /* {key: some text, …}: text that is not a value is a string */
    bool python;       /* every literal of Python, see literal.c */
    /* private */
    uint8_t state, back; /* back: the string's own state, during an escape */
    char delimiter;      /* of the current string: ", ' or Q for `quote` */
    bool key;            /* the current string is a key */
    bool raw, triple;    /* the string is r'…', or '''…''' */
    bool comment;        /* in a comment, up to the line's end */
    bool comma;          /* a comma is pending until the next byte; gap holds the blanks after it */
    uint8_t n_gap, n_word, n_quote, n_hex, hex_want;
    uint16_t depth, octal;
    char gap[LITERAL_GAP_MAX], word[LITERAL_WORD_MAX];
    char stack[LITERAL_DEPTH_MAX]; /* closing brackets still missing */
};

enum literal_step {
    LITERAL_MORE, /* the byte belongs to the value, which is not complete */
    LITERAL_END,  /* the byte is the last of the value */
    LITERAL_PAST, /* the value (a number, a word) ended before this byte */
    LITERAL_BAD
};
/* Call before the first byte. Blanks before the value are passed on. */
void literal_init(struct literal *l, const char *quote, bool bare_keys);
/* Replaces the first byte when it is the brace of a set: {"a", "b"} becomes an array. */
void literal_begin_set(struct literal *l, struct buf *out);
/* Append the JSON that this byte makes certain. */
enum literal_step literal_byte(struct literal *l, char c, struct buf *out);
/* True when a brace here begins an object or a set. */
bool literal_at_value(const struct literal *l);
/* True when this byte closes a string that is the whole value. */
bool literal_closes(const struct literal *l, char c);
/* End of text: true when the value is complete (a number or word that the end terminates). */
bool literal_finish(struct literal *l, struct buf *out);
/* The same inside objects and arrays: appends a number or word that the end terminates, and nothing
 * else. */
void literal_settle(struct literal *l, struct buf *out);
/* True when the text is one complete value with optional blanks around it. */
bool literal_whole(const char *text, size_t n, struct buf *out);
bool literal_whole_python(const char *text, size_t n, struct buf *out);

/* Append one byte of a string's text to a JSON string literal, escaped. */
void literal_escape(struct buf *out, char c);

#endif
