/* SPDX-License-Identifier: Apache-2.0 */
/* json_scan - checks whether a byte stream is a JSON value (RFC 8259) and finds its end, one byte
 * at a time, in constant memory.
 *
 * Unlike the standard it accepts control characters inside strings (models write raw newlines
 * there); the caller escapes them.
 * Threads: one owner; no allocation. */
#ifndef QUIRE_COMMON_PARSERS_JSON_SCAN_H
#define QUIRE_COMMON_PARSERS_JSON_SCAN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"

#define JSON_SCAN_DEPTH_MAX 512 /* objects and arrays inside each other */

struct json_scan {
    uint16_t state; /* 0 = before the value */
    uint16_t depth;
    uint8_t literal, n_hex;                     /* progress in true/false/null or \uXXXX */
    uint8_t is_object[JSON_SCAN_DEPTH_MAX / 8]; /* bit per level */
};
/* clang-format off */
#define JSON_SCAN_INIT {0}
/* clang-format on */

enum json_scan_step {
    JSON_SCAN_MORE,  /* the byte belongs to the value, which is not complete */
    JSON_SCAN_SPACE, /* white space before the value or between its parts */
    JSON_SCAN_END,   /* the byte is the last of the value */
    JSON_SCAN_PAST,  /* the value (a number) ended before this byte */
    JSON_SCAN_BAD
};
enum json_scan_step json_scan_byte(struct json_scan *s, char c);
bool json_scan_in_string(const struct json_scan *s);
/* Append the brackets that close the value here. True when only brackets are missing: a member, an
 * item or the whole value has just ended (the whole value needs no bracket). */
bool json_scan_close(const struct json_scan *s, struct buf *out);
/* True when the value may end here, which only numbers can. */
bool json_scan_may_end(const struct json_scan *s);
/* True when the text is one complete value with optional white space around it. */
bool json_scan_valid(const char *text, size_t n);
/* Append the text of a JSON string literal (with its quotes) that the scanner accepted. */
void json_scan_unquote(struct buf *out, const char *literal, size_t n);

#endif
