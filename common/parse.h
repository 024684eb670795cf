/* SPDX-License-Identifier: Apache-2.0 */
/* parse - numbers and sizes from text; the whole string must match. Threads: pure. */
#ifndef QUIRE_COMMON_PARSE_H
#define QUIRE_COMMON_PARSE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

/* Decimal integer within [min, max]. Errors: Q_INVALID; the message starts with `what` and states
 * the range. */
FALLIBLE parse_i64(int64_t *out, const char *text, int64_t min, int64_t max, const char *what,
                   struct q_err *e);
/* Whether the text is of digits alone, and more than an int64_t holds; jansson refuses such. */
bool parse_exceeds_i64(const char *text, size_t n);
/* Finite decimal number within [min, max]; always the C locale's '.'. Errors: Q_INVALID. */
FALLIBLE parse_f64(double *out, const char *text, double min, double max, const char *what,
                   struct q_err *e);
/* As parse_i64, and with a unit: k, m, g, t are powers of 1000 ("32k", "1.5k"), K, M, G, T powers
 * of 1024 with whole numbers ("32K"), as in vLLM. */
FALLIBLE parse_count(int64_t *out, const char *text, int64_t min, int64_t max, const char *what,
                     struct q_err *e);
/* Bytes: "1048576", "512K", "1.5G", "2GiB" (powers of 1024), "2GB" or "2g" (powers of 1000; k, m, g
 * and t alone follow vLLM). Errors: Q_INVALID. */
FALLIBLE parse_bytes(uint64_t *out, const char *text, const char *what, struct q_err *e);

#endif
