/* SPDX-License-Identifier: Apache-2.0 */
/* stream - incremental conversion of tokens to text, and stop strings in that text.
 *
 * detok converts ids to text one at a time: text that was returned never changes and never ends
 * inside a UTF-8 sequence (text that may still change is held). stop searches the text for the
 * request's stop strings and holds a possible prefix of one. O(1) amortised per byte in both.
 * Threads: one owner each; the tokenizer is only read. */
#ifndef QUIRE_COMMON_TOKENIZER_STREAM_H
#define QUIRE_COMMON_TOKENIZER_STREAM_H
#include "common/tokenizer/tokenizer.h"

/* The pieces together are tokenizer_decode of all ids, but for ill-formed runs of SentencePiece
 * byte tokens: what was sent of such a run before it turned out to be ill-formed stays sent. */
struct detok;
/* tokenizer is borrowed until detok_free. */
FALLIBLE detok_new(struct detok **out, const struct tokenizer *t, bool skip_special,
                   struct q_err *e);
void detok_free(struct detok *d);
/* Append the text that became final with this token to `out` (often the token's own text, sometimes
 * nothing). */
FALLIBLE detok_push(struct detok *d, uint32_t id, struct buf *out, struct q_err *e);
/* Append what is still held (an unfinished sequence as U+FFFD). */
FALLIBLE detok_flush(struct detok *d, struct buf *out, struct q_err *e);

#define STOP_STRINGS_MAX 16   /* per request */
#define STOP_BYTES_MAX   1024 /* of one stop string */

struct stop; /* the stop strings of one request and how far the text matches each */
/* stops: [n_stop] non-empty UTF-8 strings, copied. include: the stop string itself is part of the
 * output. Errors: Q_INVALID (too many, empty, too long; names the index). */
FALLIBLE stop_new(struct stop **out, const char *const *stops, size_t n_stop, bool include,
                  struct q_err *e);
void stop_free(struct stop *s);
/* Feed text; append to `out` what may be sent. *i_hit = index of the stop string found first (the
 * rest of the text is dropped and later calls append nothing), or -1. Of several matches that end
 * at the same byte the longest wins. */
FALLIBLE stop_push(struct stop *s, const char *text, size_t n, struct buf *out, int *i_hit,
                   struct q_err *e);
FALLIBLE stop_flush(struct stop *s, struct buf *out,
                    struct q_err *e); /* no more text: give what was held */

#endif
