/* SPDX-License-Identifier: Apache-2.0 */
/* utf8 - reading and writing UTF-8, one code point at a time. Source: RFC 3629, Unicode 15 table
 * 3-7. Threads: pure functions. */
#ifndef QUIRE_COMMON_UTF8_H
#define QUIRE_COMMON_UTF8_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT 0xFFFDu

/* Decode the first code point of s[0..n), n >= 1. Returns its length in bytes. Ill-formed input
 * gives U+FFFD and consumes the maximal subpart (Unicode 15, section 3.9), so that decoding agrees
 * with Python's and Rust's lossy decoders. */
size_t utf8_decode(const char *s, size_t n, uint32_t *code_point);
/* Encode into out[4]; returns 1..4. Surrogates and values above U+10FFFF are written as U+FFFD. */
size_t utf8_encode(uint32_t code_point, char out[4]);
bool utf8_valid(const char *s, size_t n);
/* Length of the longest prefix of s[0..n) that does not end inside an incomplete sequence. */
size_t utf8_complete_prefix(const char *s, size_t n);
size_t utf8_count(const char *s, size_t n); /* code points, each ill-formed subpart counting one */
/* Length of a leading byte order mark: 3 or 0. */
size_t utf8_mark(const char *text, size_t n);

#endif
