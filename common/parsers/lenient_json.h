/* SPDX-License-Identifier: Apache-2.0 */
/* lenient_json - translates a value in the notation of a model into JSON, byte by byte.
 *
 * JSON passes unchanged, including white space. Notation of other languages is translated: 'single
 * quotes', True, None, tuples, a trailing comma, .5 and 1_000, raw newlines and unknown escapes
 * inside strings, keys without quotes, string delimiters of one format. Text that is a value in
 * none of them is rejected at the first byte that proves it.
 * Threads: one owner; no allocation of its own. */
#ifndef QUIRE_COMMON_PARSERS_LENIENT_JSON_H
#define QUIRE_COMMON_PARSERS_LENIENT_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"

#define LENIENT_JSON_DEPTH_MAX 512 /* objects and arrays inside each other */
#define LENIENT_JSON_WORD_MAX  128 /* bytes of a number or word */
#define LENIENT_JSON_GAP_MAX   32  /* blanks kept behind a comma; more are dropped */

struct lenient_json {
    const char *quote; /* a string delimiter beside " and ', or NULL; borrowed */
    bool bare_keys;    /* {key: value} */
    bool bare_words;   /* {key: some text, …}: text that is not a value is a string */
    bool python;       /* every literal of Python, see lenient_json.c */
    /* private */
    uint8_t state, back; /* back: the string's own state, during an escape */
    char delimiter;      /* of the current string: ", ' or Q for `quote` */
    bool key;            /* the current string is a key */
    bool raw, triple;    /* the string is r'…', or '''…''' */
    bool comment;        /* in a comment, up to the line's end */
    bool comma;          /* a comma is pending until the next byte; gap holds the blanks after it */
    uint8_t n_gap, n_word, n_quote, n_hex, hex_want;
    uint16_t depth, octal;
    char gap[LENIENT_JSON_GAP_MAX], word[LENIENT_JSON_WORD_MAX];
    char stack[LENIENT_JSON_DEPTH_MAX]; /* closing brackets still missing */
};

enum lenient_json_step {
    LENIENT_JSON_MORE, /* the byte belongs to the value, which is not complete */
    LENIENT_JSON_END,  /* the byte is the last of the value */
    LENIENT_JSON_PAST, /* the value (a number, a word) ended before this byte */
    LENIENT_JSON_BAD
};
/* Call before the first byte. Blanks before the value are passed on. */
void lenient_json_init(struct lenient_json *l, const char *quote, bool bare_keys);
/* Replaces the first byte when it is the brace of a set: {"a", "b"} becomes an array. */
void lenient_json_begin_set(struct lenient_json *l, struct buf *out);
/* Append the JSON that this byte makes certain. */
enum lenient_json_step lenient_json_byte(struct lenient_json *l, char c, struct buf *out);
/* True when a brace here begins an object or a set. */
bool lenient_json_at_value(const struct lenient_json *l);
/* True when this byte closes a string that is the whole value. */
bool lenient_json_closes(const struct lenient_json *l, char c);
/* End of text: true when the value is complete (a number or word that the end terminates). */
bool lenient_json_finish(struct lenient_json *l, struct buf *out);
/* The same inside objects and arrays: appends a number or word that the end terminates, and nothing
 * else. */
void lenient_json_settle(struct lenient_json *l, struct buf *out);
/* True when the text is one complete value with optional blanks around it. */
bool lenient_json_whole(const char *text, size_t n, struct buf *out);
bool lenient_json_whole_python(const char *text, size_t n, struct buf *out);

/* Append one byte of a string's text to a JSON string literal, escaped. */
void lenient_json_escape(struct buf *out, char c);

#endif
