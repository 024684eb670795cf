/* SPDX-License-Identifier: Apache-2.0 */
/* chars - properties of single characters and bytes in the reference. Private to common/tokenizer.
 * Threads: pure. */
#ifndef QUIRE_COMMON_TOKENIZER_CHARS_H
#define QUIRE_COMMON_TOKENIZER_CHARS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"

/* bytes.c: the byte-level alphabet, one printable code point for each byte. Source: the GPT-2
 * tokenizer. */
uint32_t tok_byte_char(unsigned char byte); /* code point */
int tok_char_byte(uint32_t code_point);     /* byte, or -1 */
/* Append the bytes that s spells; false and nothing appended if a character is not in the alphabet.
 */
bool tok_unmap(const char *s, size_t n, struct buf *out);

/* chars.c: classes of characters as the reference has them. */
bool tok_is_space(uint32_t cp);
bool tok_is_word(uint32_t cp);
bool tok_is_punct(uint32_t cp);
bool tok_is_numeric(uint32_t cp);
bool tok_is_other(uint32_t cp);      /* control and the like, but \t \n \r */
bool tok_is_nonspacing(uint32_t cp); /* accents to BertNormalizer */
bool tok_is_combining(uint32_t cp);  /* accents to StripAccents */
bool tok_is_newer(uint32_t cp);      /* the reference's normal forms leave it as it is */
bool tok_is_unicode15(uint32_t cp);  /* newer than Unicode 14, and known to the reference's regex */
uint32_t tok_script(uint32_t cp);    /* a number for each script; 0: goes with any */
uint32_t tok_lower(uint32_t cp);     /* the lower case where it is one character */
uint32_t tok_last_char(const char *s, size_t n); /* the code point that s ends with, n > 0 */
size_t tok_trim_end(const char *s, size_t n);    /* bytes of s without the white space at its end */

#endif
